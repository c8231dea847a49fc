"""Sessions: conversations with limits, retention, and a window for prompts."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..checks import check_count, check_name, check_several, check_text, check_ttl, shown
from ..errors import ConflictError, HeldError, InvalidValueError, NotFoundError, SettingsChangedError
from ..event_loop import off_loop
from ..images import read_images
from ..layers.auxiliary_stores import decrypted_file, encrypted_file
from ..layers.layer import find_layer
from ..layers.redact import RedactLayer, redact_messages
from ..messages import SYSTEM_ID, Content, Message, MessageLike, Role, decode, encode, one_message, to_message
from ..recall.index_entry import RECALL
from ..records import ARCHIVED, MESSAGE, SUMMARY, Record, Ref, ScopePath, Stream
from ..store.matching import conditions
from ..store.protocol import SearchableStore, scan_all
from ..store.query import Delete, Expect, Op, Outcome, Purge, Put, Scan, StreamScan, Write
from ..store.retry import retry_conflicts
from ..telemetry.calls import observed
from ..tokens import DEFAULT_ENCODING, TokenCounter, count_message
from .listing import SessionInfo, list_sessions
from .session_log import ATTEMPTS, LimitedLog, archive_ops, missing_records, replacement_ops
from .session_settings import GivenSettings, Overflow, Retention, SessionSettings, SettingsCache, known_session
from .summary import SUMMARY_KEY
from .turns import read_summary, read_window, system_records

if TYPE_CHECKING:
    from .versions import Version

LONG = 50_000
"""Number of characters from which token counting runs in a thread."""
COPIED_AT_ONCE = 1000
"""How many messages are read at once when copying a session."""


@observed
class AsyncSession:
    """One conversation.

    Its settings, such as limits, are stored with it, and every handle obeys the newest. With `ttl` it expires
    that long after its last message. Its retention defines when it is cleared: after each `run()`, at the end of
    an `async with`, or never.
    """

    scope: ScopePath

    def __init__(
        self, store: SearchableStore, scope: ScopePath, tokens: TokenCounter, given: GivenSettings | None = None
    ) -> None:
        """Use the `given` settings from the next write on; others stay unchanged."""
        self.scope = scope
        self._store = store
        self._redact = find_layer(store, RedactLayer)
        self._clock = store.clock
        self._tokens = tokens
        self._count = functools.partial(count_message, tokens=tokens)
        self._encoding = None if tokens.name == DEFAULT_ENCODING else tokens.name
        self._given = given or GivenSettings()
        self._cached: SettingsCache | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scope.path!r}>"

    @property
    def name(self) -> str:
        """The last segment of the session's scope."""
        return self.scope.name

    async def add(
        self,
        message: MessageLike | Role | None = None,
        content: Content = None,
        *,
        role: Role | None = None,
        ttl: timedelta | None = None,
        once: str | None = None,
        **fields: Any,
    ) -> Message:
        """Add a message: a role and content with other message fields, a dict of these, or a Message.

        Image paths are read now and stored as data; the returned message has the data. With `ttl` the message
        expires. A message that exists already is not added again. `once` is an idempotency id of this call in
        this session: a retry within 24 hours returns the first message, even if it has another id or was evicted.
        Raises ConflictError if a different message has its id, or different content the same `once`;
        InvalidValueError for a value that cannot be stored; NotFoundError for a missing image file, TooLargeError
        for one that is too large.
        """
        given = [one_message(message, content, role, fields, self._clock)]
        expires = None if ttl is None else self._clock() + check_ttl(ttl)
        if given[0].images:
            given = await read_images(given)
        return (await self._add(given, once, expires))[0]

    async def add_many(
        self,
        messages: Iterable[MessageLike],
        *,
        ttl: timedelta | None = None,
        once: str | None = None,
        open_images: bool = True,
    ) -> list[Message]:
        """Add messages, or dicts of their fields, in order, all or none; existing ones are skipped.

        `ttl`, `once` and errors are as in `add`. Without `open_images`, for messages from an untrusted source, image
        paths stay paths and are never opened.
        """
        given = self._messages(messages)
        expires = None if ttl is None else self._clock() + check_ttl(ttl)
        return await self._add(await read_images(given) if open_images else given, once, expires)

    async def messages(
        self,
        limit: int | None = None,
        offset: int = 0,
        *,
        roles: Sequence[Role] | Role | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Message]:
        """Return the messages that pass all filters, oldest first.

        `limit` and `offset` count back from the newest. `metadata` tests equality, or membership in a list.
        `since` and `until` are inclusive.
        """
        scan = Scan(
            scope=self.scope,
            kinds=(MESSAGE,),
            where=conditions(metadata, roles=roles, since=since, until=until),
            reverse=True,
            skip=check_count(offset, "offset"),
            limit=COPIED_AT_ONCE if limit is None else check_count(limit, "limit"),
        )
        if limit is not None:
            found = list((await self._store.scan(scan)).items)
        else:
            found = [record async for record in scan_all(self._store, scan)]
        return [decode(record) for record in reversed(found)]

    async def recent(self, limit: int = 10) -> list[Message]:
        """Return the newest `limit` messages, oldest first."""
        return await self.messages(limit)

    async def transcript(self, limit: int = 10) -> str:
        """Return the newest `limit` messages as text, one line each: who said what."""
        recent = await self.recent(limit)
        return "\n".join(f"{message.name or message.role}: {message.text or ''}" for message in recent)

    async def get(self, id: str) -> Message:
        """Return one message; raises NotFoundError."""
        return decode(await self._record(id))

    async def system(self) -> Message | None:
        """Return the system message: the one that was set, or else the newest that was added."""
        found = await system_records(self._store, self.scope)
        chosen = next((record for record in found if record.key == SYSTEM_ID), found[-1] if found else None)
        return decode(chosen) if chosen is not None else None

    async def set_system(self, content: str) -> Message:
        """Set the system message, replacing the previous one; limits never evict it."""
        (message,) = await redact_messages(
            self._store,
            self.scope,
            [Message("system", check_text(content, "content"), SYSTEM_ID, timestamp=self._clock())],
        )
        record = self._encode(message)
        await self._write([Put(record)], [record])
        return message

    async def settings(self) -> SessionSettings:
        """Return the session's settings: the stored ones, with those this handle was opened with."""
        stream = await self._stream()
        ended = stream is not None and stream.expires is not None and stream.expires <= self._clock()
        self._settings.learn(None if stream is None or ended else stream.settings)
        return self._settings.view.settings

    async def configure(
        self,
        *,
        max_messages: int | None | UnsetType = UNSET,
        max_tokens: int | None | UnsetType = UNSET,
        overflow: Overflow | UnsetType = UNSET,
        keep: float | UnsetType = UNSET,
        retention: Retention | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
    ) -> SessionSettings:
        """Change the given settings for every handle; others stay. Returns all settings.

        None removes a limit or the time to live. A lower limit takes effect with the next message. Raises
        InvalidValueError for an invalid value, ConflictError if concurrent changes win every attempt.
        """
        given = GivenSettings(max_messages, max_tokens, overflow, keep, retention, ttl)
        await self.settings()

        async def change() -> SessionSettings:
            view = self._settings.change(given)
            try:
                await self._store.write(Write(view.ops))
            except SettingsChangedError as error:
                self._settings.learn(error.settings)
                raise
            self._settings.confirm(view)
            return view.settings

        return await retry_conflicts(change, f"changing the settings of session {self.scope.path!r}")

    async def clear(self, *, keep_system: bool = False) -> None:
        """Delete all messages, the archive and the summary; with `keep_system`, keep the system messages."""
        keep = tuple(record.key for record in await system_records(self._store, self.scope)) if keep_system else ()
        await self._store.write(Write(tuple(self._purge(keep))))

    async def delete(self, *messages: Message | str) -> int:
        """Delete messages, given as such or by id, in one write; return how many existed.

        Raises InvalidValueError for anything else.
        """
        ops = tuple(map(Delete, self._refs("delete", messages)))
        return sum(len(did.removed) for did in await self._store.write(Write(ops)))

    async def pop(self) -> Message | None:
        """Delete the newest message and return it; None if there is none.

        Concurrent calls return different messages. Raises ConflictError if concurrent writes win every attempt.
        """
        scan = Scan(scope=self.scope, kinds=(MESSAGE,), reverse=True, limit=1)

        async def take() -> Message | None:
            stream = await self._stream()
            newest = next(iter((await self._store.scan(scan)).items), None)
            if stream is None or newest is None:
                return None
            await self._store.write(Write((Expect(self.scope, MESSAGE, stream.version), Delete(newest.ref))))
            return decode(newest)

        return await retry_conflicts(take, f"taking the newest message of session {self.scope.path!r}")

    async def archive(self, *messages: Message | str) -> int:
        """Move messages, given as such or by id, to the archive, in one write; return how many existed.

        They leave the conversation, and recall still finds them. Raises InvalidValueError for anything else,
        ConflictError if concurrent writes win every attempt.
        """
        refs = list(dict.fromkeys(self._refs("archive", messages)))

        async def move() -> int:
            leaving = [record for record in await self._store.read(refs) if record is not None]
            await self._store.write(Write(tuple(archive_ops(leaving)), lazy=True))
            return len(leaving)

        return await retry_conflicts(move, f"archiving messages of session {self.scope.path!r}")

    async def edit(self, message: MessageLike, *, open_images: bool = True) -> Message:
        """Replace the message with the same id, which keeps its place; return the new one.

        A dict without a timestamp keeps the old one. Images are as in `add_many`. Raises NotFoundError if there is no
        such message, InvalidValueError without an id, ConflictError if concurrent writes win every attempt.
        """
        if isinstance(message, Message):
            fields: Mapping[str, Any] = {name: getattr(message, name) for name in Message.__struct_fields__}
        elif isinstance(message, Mapping):
            fields = message
        else:
            raise InvalidValueError(f"a message is a Message or a dict, not {shown(message)}")
        id = check_name(fields.get("id"), "id")

        async def change() -> Message:
            old = await self._record(id)
            (new,) = self._messages([{"timestamp": old.created, **fields}])
            if open_images:
                (new,) = await read_images([new], skip=set(decode(old).images))
            (new,) = await redact_messages(self._store, self.scope, [new])
            record = self._encode(new, old.expires)
            record = replace(record, importance=old.importance, pinned=old.pinned or record.pinned)
            await self._write([Put(record, old.version)], [])
            return new

        return await retry_conflicts(change, f"replacing message {shown(id)} of session {self.scope.path!r}")

    async def replace(
        self,
        messages: Iterable[MessageLike] | Callable[[list[Message]], Iterable[MessageLike]],
        *,
        archive: bool = False,
        open_images: bool = True,
    ) -> list[Message]:
        """Replace all messages by these, or by the result of a function of them, in one write; return the new ones.

        Messages are identified by their ids; unchanged ones are not written. With `archive`, those that are not among
        the new ones move to the archive. On concurrent writes the function is
        called again with the current messages. New image paths are read, unless `open_images` is false; stored
        ones are not. Raises InvalidValueError for duplicate ids, ConflictError if concurrent writes win every
        attempt; the session is then unchanged.
        """
        fixed = [] if callable(messages) else check_several(messages, "messages")
        scan = Scan(scope=self.scope, kinds=(MESSAGE,), limit=COPIED_AT_ONCE, derived=(RECALL,))

        async def change() -> list[Message]:
            stream = await self._stream()
            stored = [record async for record in scan_all(self._store, scan)]
            before = [decode(record) for record in stored]
            after = self._messages(messages(before) if callable(messages) else fixed)
            if open_images:
                after = await read_images(after, skip={image for message in before for image in message.images})
            after = await redact_messages(self._store, self.scope, after)
            ops, records = replacement_ops(stored, after, self._encode)
            if archive:
                kept = {record.key for record in records}
                ops += [Put(replace(record, kind=ARCHIVED)) for record in stored if record.key not in kept]
            if ops:
                expected = Expect(self.scope, MESSAGE, stream.version if stream is not None else 0)
                await self._write([expected, *ops], [], after=records)
            return after

        return await retry_conflicts(change, f"replacing the messages of session {self.scope.path!r}")

    async def fork(self, name: str, at: str | None = None) -> AsyncSession:
        """Copy the session, up to the message `at` or all of it, to a new session beside it.

        The archive, summary and settings are copied too. Raises NotFoundError if there is no such message,
        ConflictError if the new session has messages.
        """
        last = (await self._record(at)).seq if at is not None else None
        target = self.scope.parent / name
        await self.settings()
        copy = AsyncSession(self._store, target, self._tokens, self._settings.all_given())
        ops: list[Op] = [await copy._if_empty()]
        for kind in (ARCHIVED, SUMMARY, MESSAGE):
            scan = Scan(scope=self.scope, kinds=(kind,), limit=COPIED_AT_ONCE, derived=(RECALL,))
            async with aclosing(scan_all(self._store, scan)) as records:
                async for record in records:
                    if kind == MESSAGE and last is not None and record.seq > last:
                        break
                    ops.append(Put(replace(record, scope=target)))
        await copy.settings()
        view = copy._settings.view
        await self._store.write(Write((*ops, *view.ops), lazy=True))
        copy._settings.confirm(view)
        return copy

    async def prefill(self, messages: Iterable[MessageLike]) -> bool:
        """Add messages if the session has none except system messages; return whether it did."""
        given = await redact_messages(self._store, self.scope, await read_images(self._messages(messages)))
        records = [self._encode(message) for message in given]

        async def fill() -> bool:
            try:
                empty = await self._if_empty()
            except ConflictError:
                return False
            await self._write([empty, *map(Put, records)], records)
            return True

        return await retry_conflicts(fill, f"filling session {self.scope.path!r}")

    async def window(self, max_tokens: int, *, interrupted: str | None = None, partial: bool = False) -> list[Message]:
        """Return the newest messages that fit into `max_tokens`, oldest first.

        Always included are the system messages and the user's last message, and a running summary if there is
        room. Tool calls and their results are never separated: an unanswered call is skipped or, with
        `interrupted`, shown with that text as the missing result. Raises BudgetError if the required messages do
        not fit; with `partial`, they are skipped instead.
        """
        return await read_window(
            self._store, self.scope, self._tokens, max_tokens, interrupted=interrupted, partial=partial
        )

    async def archived(self) -> list[Message]:
        """Return the archived messages, oldest first."""
        scan = Scan(scope=self.scope, kinds=(ARCHIVED,), limit=COPIED_AT_ONCE)
        return [decode(record) async for record in scan_all(self._store, scan)]

    async def summary(self) -> str | None:
        """Return the running summary of evicted messages; None if there is none."""
        return await read_summary(self._store, self.scope)

    async def info(self) -> SessionInfo | None:
        """Return title, counts, tokens and last activity; None if the session is empty."""
        return next(iter(await list_sessions(self._store, self.scope, below=False)), None)

    async def history(self, limit: int | None = None) -> list[Version]:
        """Return the messages that were replaced or deleted, as they were, the last change first.

        They are kept if the memory is opened with `history`, as long as that says.
        """
        from .versions import session_history

        return await session_history(self._store, self.scope, limit)

    async def restore(self) -> int:
        """Bring back the messages, archive, summary and settings that the last clearing or deletion removed.

        Messages that were added since then come after them. Returns how many messages are back, without those that the
        limits of the session leave no room for. Raises NotFoundError if the history knows no clearing
        or deletion, ConflictError if concurrent writes win every attempt.
        """
        from .versions import restore_session

        return await restore_session(self)

    async def save(self, path: str | PathLike[str], *, plain: bool = False) -> int:
        """Save the session to a JSON file, which is replaced atomically; return the number of messages.

        Includes the archive and the summary. The file of an encrypted memory is encrypted with the same key, unless
        `plain` is true. Raises StorePermissionError or StoreFullError if the file cannot be written.
        """
        from ..files import replace_file
        from .export import Saved, session_file

        saved = Saved(await self.messages(), await self.archived(), await self.summary())
        content = await off_loop(lambda: session_file(saved))
        if not plain:
            content = await encrypted_file(self._store, content)
        await off_loop(lambda: replace_file(path, content))
        return len(saved.messages)

    async def load(self, path: str | PathLike[str]) -> int:
        """Replace the session by a saved one, within its limits; return the number of messages.

        Raises NotFoundError if the file does not exist, InvalidValueError if it is not a saved session,
        DecryptionError if it is encrypted with another key; the session is then unchanged.
        """
        from ..files import check_path, read_file
        from .export import read_session

        name = str(check_path(path))
        content = await decrypted_file(self._store, await off_loop(lambda: read_file(path)), name)
        saved = await off_loop(lambda: read_session(content, name))
        messages = await redact_messages(self._store, self.scope, saved.messages)
        archived = await redact_messages(self._store, self.scope, saved.archived)
        records = [self._encode(message) for message in messages]
        ops: list[Op] = [*self._purge(), *map(Put, records)]
        ops += [Put(replace(self._encode(message), kind=ARCHIVED)) for message in archived]
        if saved.summary is not None:
            ops.append(Put(Record(scope=self.scope, kind=SUMMARY, key=SUMMARY_KEY, text=saved.summary)))
        await self._write(ops, [], after=records)
        info = await self.info()
        return info.messages if info is not None else 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[AsyncSession]:
        """Mark one run of an agent; a single-run session is cleared before and after it."""
        single = await self._retention() == "single_run"
        if single:
            await self._expire()
        try:
            yield self
        finally:
            if single:
                await self._expire()

    async def _expire(self) -> None:
        """Clear the session, since its retention says so; under a legal hold it stays as it is."""
        with suppress(HeldError):
            await self.clear(keep_system=True)

    async def _retention(self) -> Retention:
        return (self._settings.view.settings if self._settings.certain else await self.settings()).retention

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *error: object) -> None:
        if await self._retention() != "persistent":
            await self._expire()

    async def _add(self, messages: list[Message], once: str | None, expires: datetime | None = None) -> list[Message]:
        """Add messages; return them with their ids, the original ones if this is a retry."""
        if self._redact is not None:
            messages = await redact_messages(self._store, self.scope, messages)
        size = sum([len(one.content if isinstance(one.content, str) else one.text or "") for one in messages])
        if size > LONG:
            records = await off_loop(lambda: [self._encode(message, expires) for message in messages])
        else:
            records = [self._encode(message, expires) for message in messages]
        while records:
            try:
                outcomes = await self._write([Put(record, if_version=0) for record in records], records, once)
            except ConflictError:
                # Some are stored already, as in a retry after a lost answer.
                missing = await missing_records(self._store, records)
                if len(missing) == len(records):
                    raise
                records = missing
            else:
                if once is None or len(outcomes) != len(messages):
                    return messages
                return [
                    replace(message, id=outcome.key, timestamp=outcome.created or message.timestamp)
                    if outcome.key and outcome.key != message.id
                    else message
                    for message, outcome in zip(messages, outcomes, strict=True)
                ]
        return messages

    async def _write(
        self, ops: list[Op], added: list[Record], once: str | None = None, *, after: list[Record] | None = None
    ) -> list[Outcome]:
        """Run `ops`, which add the records `added`, within the current limits; return their outcomes.

        `after` is the whole content of the session after `ops`, if known.
        """
        for _ in range(ATTEMPTS):
            view = self._settings.view
            try:
                if view.limited or once is not None:
                    log = LimitedLog(self._store, self.scope, self._settings)
                    outcomes = await log.write(ops, added, once, view, after)
                else:
                    # Adding a message never waits for the embedder: recall does, for many messages at once.
                    outcomes = await self._store.write(Write((*ops, *view.ops), lazy=True))
            except SettingsChangedError as error:
                self._settings.learn(error.settings)
            else:
                if once is None and not view.confirmed:  # with an id, it may be a retry, done under other settings
                    self._settings.confirm(view)
                return outcomes[: len(ops)]
        raise ConflictError(
            f"session {self.scope.path!r}: gave up after {ATTEMPTS} attempts, since others changed its settings "
            "each time"
        )

    @property
    def _settings(self) -> SettingsCache:
        """The settings that this handle knows; a handle that only reads needs none."""
        if self._cached is None:
            self._cached = SettingsCache(self.scope, self._given, known_session(self._store, self.scope))
        return self._cached

    def _refs(self, call: str, messages: Sequence[Message | str]) -> list[Ref]:
        ids = [message.id if isinstance(message, Message) else message for message in messages]
        if wrong := [id for id in ids if not isinstance(id, str)]:
            raise InvalidValueError(f"{call} takes messages or their ids, one by one, not {shown(wrong[0])}")
        return [Ref(self.scope, MESSAGE, check_name(id, "message id")) for id in ids]

    async def _record(self, id: str) -> Record:
        (record,) = await self._store.read([Ref(self.scope, MESSAGE, check_name(id, "message id"))])
        if record is None:
            raise NotFoundError(f"session {self.scope.path!r} has no message with the id {shown(id)}")
        return record

    async def _if_empty(self) -> Expect:
        """Return the operation that fails a write unless the session is still empty.

        Raises ConflictError if it has messages other than system messages.
        """
        stream = await self._stream()
        if stream is not None and stream.count > len(await system_records(self._store, self.scope)):
            raise ConflictError(f"session {self.scope.path!r} already has messages")
        return Expect(self.scope, MESSAGE, stream.version if stream is not None else 0)

    async def _stream(self) -> Stream | None:
        scan = StreamScan(scope=self.scope, kinds=(MESSAGE,), below=False, empty=True)
        return next(iter((await self._store.streams(scan)).items), None)

    def _messages(self, given: Iterable[MessageLike]) -> list[Message]:
        return [to_message(one, self._clock) for one in check_several(given, "messages")]

    def _encode(self, message: Message, expires: datetime | None = None) -> Record:
        return encode(message, self.scope, self._count, self._encoding, expires)

    def _purge(self, keep: tuple[str, ...] = ()) -> list[Op]:
        return [Purge(self.scope, MESSAGE, keep), Purge(self.scope, ARCHIVED), Purge(self.scope, SUMMARY)]
