"""Conversations: a log of messages with limits, retention, and a window for the prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from os import PathLike
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ..checks import check_count, check_name, check_several, check_text, check_ttl, shown
from ..driving import off_loop
from ..errors import ConflictError, InvalidValueError, NotFoundError, SettingsChangedError
from ..images import with_data
from ..recall.entry import RECALL
from ..records import Message, Record, Ref, Role, ScopePath, Stream, check_fields, now
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Delete, Expect, Op, Purge, Put, Scan, StreamScan, Write, checked
from ..store.retry import retried
from ..tokens import TokenCounter, count_message
from .filters import conditions
from .messages import ARCHIVED, MESSAGE, SYSTEM_ID, decode, encode, tokens_of
from .overflow import ATTEMPTS, LATELY, LimitedLog
from .settings import GivenSettings, KnownSettings, Overflow, Retention, SessionSettings
from .summary import SUMMARY, SUMMARY_ID, SUMMARY_KEY, summary_message
from .turns import Entry, Window, spoken

COPIED_AT_ONCE = 1000
"""How many messages are read at once to copy a session."""
LONG = 50_000
"""From so many characters on, counting tokens would hold up an event loop."""


class SessionInfo(Struct, frozen=True, kw_only=True):
    """What a list of sessions shows."""

    name: str
    scope: ScopePath
    messages: int
    tokens: int
    started: datetime
    last_activity: datetime
    expires: datetime | None = None

    @classmethod
    def of(cls, stream: Stream) -> SessionInfo:
        """Return what there is to show of a session's stream."""
        return cls(
            name=stream.scope.name,
            scope=stream.scope,
            messages=stream.count,
            tokens=stream.weight,
            started=stream.created,
            last_activity=stream.updated,
            expires=stream.expires,
        )


class AsyncSession:
    """One conversation.

    Its settings, such as its limits, are stored with it, and every handle obeys the newest. With `ttl` it
    is gone that long after its last message. Its retention says when it is cleared: after each `run()`,
    at its `end()`, which the end of an `async with` calls, or never.
    """

    home: ScopePath

    def __init__(
        self,
        store: Store,
        home: ScopePath,
        tokens: TokenCounter,
        given: GivenSettings | None = None,
    ) -> None:
        """Take the settings that are `given` as the session's from the next write on; the others stay."""
        self.home = home
        self._store = store
        self._tokens = tokens
        self._known = KnownSettings(given or GivenSettings())
        self._log = LimitedLog(store, home, tokens, self._known)

    @property
    def name(self) -> str:
        """The last segment of the session's scope."""
        return self.home.name

    async def add(
        self,
        message: Message | Role,
        content: Any = None,
        /,
        *,
        ttl: timedelta | None = None,
        once: str | None = None,
        **fields: Any,
    ) -> Message:
        """Add a message, or a role and content with any other fields of a message.

        Images that are paths are read now and stored as data; the message that is returned has them so.
        With `ttl` it is gone after that long. A message that is there already is not added again;
        with `once`, a name for this call in this session, for 24 hours not even if it has another id,
        or has left the session since; what was added then is returned. Raises ConflictError if another
        message has its id, or other words were added under the name `once`; InvalidValueError for what
        cannot be stored; NotFoundError for an image file that is not there, TooLargeError for one that is
        too large.
        """
        if not isinstance(message, Message):
            check_fields(fields)
            message = Message(message, content, **fields)
        elif content is not None or fields:
            raise InvalidValueError("give either a message, or a role with content and fields, not both")
        return (await self._add(await _with_images([message]), ttl, once))[0]

    async def add_many(
        self, messages: Iterable[Message], *, once: str | None = None, open_images: bool = True
    ) -> list[Message]:
        """Add messages in their order, all or none; those that are there already are not added again.

        With `once`, and raising, as `add` does. Without `open_images`, for messages that come from elsewhere,
        images that are paths stay paths, and are never opened.
        """
        added = check_several(messages, "messages")
        return await self._add(await _with_images(added) if open_images else added, None, once)

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
        """Return the messages that pass every filter, oldest first.

        `limit` and `offset` count back from the newest. `metadata` compares by equality, or with a
        list by any of it. `since` and `until` include their moments.
        """
        scan = Scan(
            scope=self.home,
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
        found.reverse()
        return [decode(record) for record in found]

    async def recent(self, n: int = 10) -> list[Message]:
        """Return the newest `n` messages, oldest first."""
        return await self.messages(limit=n)

    async def transcript(self, n: int = 10) -> str:
        """Return the newest `n` messages as text for a prompt, a line each: who said what."""
        lines = (f"{message.name or message.role}: {message.text or ''}" for message in await self.recent(n))
        return "\n".join(lines)

    async def get(self, id: str) -> Message:
        """Return one message; raises NotFoundError."""
        return decode(await self._record(id))

    async def system(self) -> Message | None:
        """Return the system message: the one that was set, or else the newest that was added."""
        found = await self._system_records()
        chosen = next((record for record in found if record.key == SYSTEM_ID), found[-1] if found else None)
        return decode(chosen) if chosen is not None else None

    async def set_system(self, content: str) -> Message:
        """Set the system message, in place of the one set before; limits never drop it."""
        message = Message("system", check_text(content, "content"), SYSTEM_ID)
        record = self._encode(message)
        await self._log.write([Put(record)], [record])
        return message

    async def settings(self) -> SessionSettings:
        """Return the session's settings: what is stored, with what this handle was opened with."""
        scan = StreamScan(scope=self.home, kinds=(MESSAGE,), below=False, empty=True)
        page = await self._store.streams(scan)
        stream = page.items[0] if page.items else None
        ended = stream is not None and stream.expires is not None and stream.expires <= now()
        self._known.learn(None if stream is None or ended else stream.settings)
        return self._known.view.settings

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
        """Change the settings that are given, for every handle, and keep the others; return all of them.

        None removes a limit or a time to live. A lower limit takes effect with the next message. Raises
        InvalidValueError for a value that is not allowed, ConflictError if others change the settings at
        every attempt.
        """
        given = GivenSettings(max_messages, max_tokens, overflow, keep, retention, ttl)
        await self.settings()

        async def change() -> SessionSettings:
            view = self._known.change(given)
            try:
                await self._store.write(Write(tuple(view.ops(self.home))))
            except SettingsChangedError as error:
                self._known.learn(error.settings)
                raise
            self._known.confirm(view)
            return view.settings

        return await retried(change, f"changing the settings of session {self.home.path!r}")

    async def clear(self, *, keep_system: bool = False) -> None:
        """Remove all messages, the archive and the summary; with `keep_system`, not the system messages."""
        keep = tuple(record.key for record in await self._system_records()) if keep_system else ()
        await self._store.write(Write((Purge(self.home, MESSAGE, keep), *self._purge_kept())))

    async def pop(self) -> Message | None:
        """Remove the newest message that is not a system message and return it; None if there is none."""
        where = (Condition("data.role", "ne", "system"),)
        scan = Scan(scope=self.home, kinds=(MESSAGE,), where=where, reverse=True, limit=1)

        async def remove_newest() -> Message | None:
            for newest in (await self._store.scan(scan)).items:
                await self._store.write(Write((Delete(newest.ref, newest.version),)))
                return decode(newest)
            return None

        return await retried(remove_newest, f"taking the newest message of session {self.home.path!r}")

    async def remove(self, ids: Iterable[str]) -> int:
        """Remove the messages of these ids, all at once; return how many of them were there.

        Raises InvalidValueError for ids that are not a list of names.
        """
        several = check_several(ids, "message ids")
        ops = tuple(Delete(Ref(self.home, MESSAGE, check_name(id, "message id"))) for id in several)
        return sum(len(did.removed) for did in await self._store.write(Write(ops)))

    async def rewrite(
        self, change: Callable[[list[Message]], Iterable[Message]], *, open_images: bool = True
    ) -> list[Message]:
        """Replace all messages by what `change` returns for them, in one atomic write, and return those.

        Messages are identified by their ids, and one that stays the same is not written again. If others
        write meanwhile, `change` is called again with what is there then. Images that are new and paths are
        read, unless `open_images` is false; those that were there are not. Raises InvalidValueError for two
        messages of one id, ConflictError if others never stop writing; the session is then as it was.
        """
        streams = StreamScan(scope=self.home, kinds=(MESSAGE,), below=False, empty=True)
        scan = Scan(scope=self.home, kinds=(MESSAGE,), limit=COPIED_AT_ONCE, derived=(RECALL,))
        for _ in range(ATTEMPTS):
            page = await self._store.streams(streams)
            version = page.items[0].version if page.items else 0
            stored = [record async for record in scan_all(self._store, scan)]
            before = [decode(record) for record in stored]
            kept = {image for message in before for image in message.images}
            messages = list(change(before))
            if open_images:
                messages = await _with_images(messages, kept)
            ops, records = self._difference(stored, messages)
            try:
                if ops:
                    expected = Expect(self.home, MESSAGE, version)
                    await self._log.write([expected, *ops], [], after=records)
                return messages
            except ConflictError:
                # Expired messages that are still stored count in the version too.
                await self._store.write(Write((Purge(self.home, MESSAGE, expired_only=True),)))
        raise ConflictError(f"session {self.home.path!r} could not be rewritten: others keep writing to it")

    async def fork(self, name: str, at: str | None = None) -> AsyncSession:
        """Copy the session up to the message `at`, or all of it, to a new session beside it.

        Its archive, summary and settings are copied as well. Raises NotFoundError if there is no such
        message, ConflictError if that session has messages.
        """
        last = (await self._record(at)).seq if at is not None else None
        target = self.home.parent / name
        await self.settings()
        twin = AsyncSession(self._store, target, self._tokens, self._known.given())
        ops: list[Op] = [await twin._if_empty()]
        for kind in (ARCHIVED, SUMMARY, MESSAGE):
            scan = Scan(scope=self.home, kinds=(kind,), limit=COPIED_AT_ONCE, derived=(RECALL,))
            async with aclosing(scan_all(self._store, scan)) as records:
                async for record in records:
                    if kind == MESSAGE and last is not None and record.seq > last:
                        break
                    ops.append(Put(replace(record, scope=target)))
        await twin.settings()
        view = twin._known.view
        await self._store.write(Write((*ops, *view.ops(target)), lazy=True))
        twin._known.confirm(view)
        return twin

    async def prefill(self, messages: Iterable[Message]) -> bool:
        """Add messages if the session has none yet, but for system messages; tell whether it had none."""
        given = await _with_images(check_several(messages, "messages"))
        records = [self._encode(message) for message in given]
        try:
            await self._log.write([await self._if_empty(), *map(Put, records)], records)
        except ConflictError:
            return False
        return True

    async def window(
        self, max_tokens: int, *, interrupted: str | None = None, partial: bool = False
    ) -> list[Message]:
        """Return what fits a prompt of `max_tokens`: the newest messages, oldest first.

        The system messages and the user's last message are always in, and a running summary if
        there is room for it. A tool's answer never stands without its call, nor a call without its
        answers: a call that was never answered is left out or, with a text for `interrupted`, stands
        with that in place of each answer that is missing. Raises BudgetError if the budget is too
        small for what must be in; with `partial`, what is too long is left out instead.
        """
        budget = check_count(max_tokens, "max_tokens", least=1)
        window = Window(budget, self._stand_in(interrupted), partial=partial)
        required = [self._entry(record) for record in await self._system_records()]
        scan = Scan(scope=self.home, kinds=(MESSAGE,), reverse=True, limit=LATELY)
        page = await self._store.scan(scan)
        newest = [self._entry(record) for record in page.items]
        required += [entry for entry in newest if spoken(entry.message)][:1]
        present = {entry.key for entry in required}
        required = window.require(required)
        if (summary := await self._summary_entry()) is not None and summary.tokens <= window.left:
            required += window.require([summary])
        while True:
            for entry in newest:
                if entry.key not in present and not window.full:
                    window.offer(entry)
            if window.full or page.cursor is None:
                return window.messages(required)
            page = await self._store.scan(replace(scan, cursor=page.cursor))
            newest = [self._entry(record) for record in page.items]

    async def archived(self) -> list[Message]:
        """Return the messages that were moved to the archive, oldest first."""
        scan = Scan(scope=self.home, kinds=(ARCHIVED,), limit=COPIED_AT_ONCE)
        return [decode(record) async for record in scan_all(self._store, scan)]

    async def summary(self) -> str | None:
        """Return the running summary of what left the session; None if there is none."""
        (record,) = await self._store.read([Ref(self.home, SUMMARY, SUMMARY_KEY)])
        return record.text if record is not None else None

    async def info(self) -> SessionInfo | None:
        """Return counts, tokens and last activity; None if the session holds nothing."""
        page = await self._store.streams(StreamScan(scope=self.home, kinds=(MESSAGE,), below=False))
        return SessionInfo.of(page.items[0]) if page.items else None

    async def save(self, path: str | PathLike[str]) -> int:
        """Write the session to a JSON file, which is replaced whole or not at all; return how many messages.

        The archive and the summary are in it as well. Raises StorePermissionError or StoreFullError
        if the file cannot be written.
        """
        from .transfer import Saved, write_session

        saved = Saved(await self.messages(), await self.archived(), await self.summary())
        await off_loop(lambda: write_session(path, saved))
        return len(saved.messages)

    async def load(self, path: str | PathLike[str]) -> int:
        """Replace the session by one that `save` wrote; return how many messages it has, within its limits.

        Raises NotFoundError if there is no such file, InvalidValueError if it is not one of ours; the
        session is then as it was.
        """
        from .transfer import read_session

        saved = await off_loop(lambda: read_session(path))
        records = [self._encode(message) for message in saved.messages]
        ops: list[Op] = [Purge(self.home, MESSAGE), *self._purge_kept(), *map(Put, records)]
        ops += [Put(replace(self._encode(message), kind=ARCHIVED)) for message in saved.archived]
        if saved.summary is not None:
            ops.append(Put(Record(scope=self.home, kind=SUMMARY, key=SUMMARY_KEY, text=saved.summary)))
        await self._log.write(ops, [], after=records)
        info = await self.info()
        return info.messages if info is not None else 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[AsyncSession]:
        """Mark one run of an agent; a session kept for a single run is cleared before and after it."""
        single = await self.retention() == "single_run"
        if single:
            await self.clear(keep_system=True)
        try:
            yield self
        finally:
            if single:
                await self.clear(keep_system=True)

    async def end(self) -> None:
        """End the session: unless it is persistent, it is cleared but for its system messages."""
        if await self.retention() != "persistent":
            await self.clear(keep_system=True)

    async def retention(self) -> Retention:
        """Return when the session is cleared; read from the store only if no call has told it yet."""
        settings = self._known.view.settings if self._known.certain else await self.settings()
        return settings.retention

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end()

    async def _add(self, messages: list[Message], ttl: timedelta | None, once: str | None) -> list[Message]:
        """Add messages; return them with the ids that they have, which are others if it was done before."""
        expires = None if ttl is None else now() + check_ttl(ttl)
        if any(isinstance(message, Message) and len(message.text or "") > LONG for message in messages):
            records = await off_loop(lambda: [self._encode(message, expires) for message in messages])
        else:
            records = [self._encode(message, expires) for message in messages]
        while records:
            try:
                outcomes = await self._log.write(
                    [Put(record, if_version=0) for record in records], records, once
                )
            except ConflictError:
                # Some are there already, as they are when an add is sent again after a lost answer.
                missing = await self._missing(records)
                if len(missing) == len(records):
                    raise
                records = missing
            else:
                ids = [outcome.key for outcome in outcomes if outcome.key]
                if once is None or len(ids) != len(messages):
                    break
                return [
                    message if message.id == id else replace(message, id=id)
                    for message, id in zip(messages, ids, strict=True)
                ]
        return messages

    def _difference(self, stored: list[Record], messages: list[Message]) -> tuple[list[Op], list[Record]]:
        """Return the operations that turn `stored` into `messages`, and all records that are there then.

        A new record goes to the end of its stream, so whatever follows the first new or moved message
        is removed and put again.
        """
        known = {record.key: record for record in stored}
        ops: list[Op] = []
        placed: list[Record] = []
        moved: list[Record] = []
        after: list[Record] = []
        last = 0
        for message in messages:
            old = known.pop(message.id, None) if isinstance(message, Message) else None
            if old is None or decode(old) != message:
                record = self._encode(message, old.expires if old is not None else None)
            else:
                record = old
            after.append(record)
            if old is None or moved or old.seq < last:
                moved.append(record)
                ops += [Delete(old.ref)] if old is not None else []
            else:
                last = old.seq
                placed += [record] if record is not old else []
        if len({message.id for message in messages}) < len(messages):
            raise InvalidValueError("a session cannot hold two messages with the same id")
        ops += [Delete(record.ref) for record in known.values()]
        return [*ops, *map(Put, placed), *map(Put, moved)], after

    async def _missing(self, records: list[Record]) -> list[Record]:
        """Return the records that are not stored yet; raises ConflictError for one that is another."""
        found = await self._store.read([record.ref for record in records])
        missing = []
        for record, stored in zip(records, found, strict=True):
            if stored is None:
                missing.append(record)
            elif _said(checked(record)) != _said(stored):
                raise ConflictError(
                    f"session {self.home.path!r} has another message with the id {record.key!r}",
                    key=record.key,
                    current=stored.version,
                )
        return missing

    async def _record(self, id: str) -> Record:
        (record,) = await self._store.read([Ref(self.home, MESSAGE, check_name(id, "message id"))])
        if record is None:
            raise NotFoundError(f"session {self.home.path!r} has no message with the id {shown(id)}")
        return record

    async def _system_records(self) -> list[Record]:
        where = (Condition("labels.role", "eq", "system"),)
        scan = Scan(scope=self.home, kinds=(MESSAGE,), where=where)
        return [record async for record in scan_all(self._store, scan)]

    async def _summary_entry(self) -> Entry | None:
        if (text := await self.summary()) is None:
            return None
        message = summary_message(text)
        return Entry(SUMMARY_ID, 0, message, count_message(message, self._tokens))

    def _stand_in(self, interrupted: str | None) -> Entry | None:
        if interrupted is None:
            return None
        message = Message("tool", interrupted, metadata={"interrupted": True})
        return Entry("@interrupted", 0, message, count_message(message, self._tokens))

    async def _if_empty(self) -> Expect:
        """Return the operation that fails a write unless the session is as empty as it is now.

        Raises ConflictError if it has messages that are not system messages.
        """
        scan = StreamScan(scope=self.home, kinds=(MESSAGE,), below=False, empty=True)
        page = await self._store.streams(scan)
        if page.items and page.items[0].count > len(await self._system_records()):
            raise ConflictError(f"session {self.home.path!r} already has messages")
        return Expect(self.home, MESSAGE, page.items[0].version if page.items else 0)

    def _encode(self, message: Message, expires: datetime | None = None) -> Record:
        return encode(message, self.home, self._tokens, expires=expires)

    def _entry(self, record: Record) -> Entry:
        return Entry(record.key, record.seq, decode(record), tokens_of(record, self._tokens))

    def _purge_kept(self) -> list[Op]:
        return [Purge(self.home, kind) for kind in (ARCHIVED, SUMMARY)]


async def _with_images(messages: list[Message], kept: Collection[str] = ()) -> list[Message]:
    """Return messages with the image files that the caller names as data, but for those `kept` as paths."""
    if not any(isinstance(message, Message) and message.images for message in messages):
        return messages
    return await off_loop(
        lambda: [with_data(one, kept) if isinstance(one, Message) else one for one in messages]
    )


def _said(record: Record) -> tuple[Any, ...]:
    """Return what makes a message the one that it is: all but its times."""
    return (record.text, record.data, record.meta, record.weight)
