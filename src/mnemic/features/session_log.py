"""Writes messages to a session, and enforces its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConflictError, InvalidValueError, LimitError, SettingsChangedError
from ..event_loop import call, off_loop
from ..messages import Message, decode
from ..recall.index_entry import RECALL
from ..records import Record, Ref, ScopePath
from ..store.protocol import Store
from ..store.query import Delete, Expect, Limit, Op, Outcome, Put, Scan, StreamScan, Write, checked
from ..store.rules import over_limit
from ..tokens import TokenCounter, tokens_of
from .kinds import ARCHIVED, LEASE, MESSAGE, SUMMARY
from .settings import KnownSettings, SessionSettings
from .summary import SUMMARY_KEY, Summarize, summary_record
from .turns import NEWEST, Entry, Group, evictable, spoken

SPARE_MESSAGES = 64
"""How many of the oldest messages are loaded as eviction candidates, for this and the next adds."""
AT_ONCE = 10_000
"""Maximum number of messages that one add evicts, after a limit was lowered a lot."""
ATTEMPTS = 100
"""Maximum number of attempts on conflicts; each failed one means that another write succeeded."""
LEASE_TIME = timedelta(minutes=5)
"""Duration of the lease on shrinking a session, after which another writer takes over."""


class LimitedLog:
    """Adds messages to a session and enforces its limits."""

    def __init__(self, store: Store, scope: ScopePath, tokens: TokenCounter, known: KnownSettings) -> None:
        self._store = store
        self._scope = scope
        self._tokens = tokens
        self._known = known
        self._next_to_go: list[Leaving] = []
        """Eviction candidates, oldest first, while `_spare` exists; others may have removed some."""
        self._spare: str | None = None
        """The user's last message, as last looked up."""
        self._held = (0, 0)
        """Number of messages and tokens after the last write that reported them."""

    async def write(
        self, ops: list[Op], added: list[Record], once: str | None = None, *, after: list[Record] | None = None
    ) -> list[Outcome]:
        """Run `ops`, which add the records `added`, and evict if necessary; return their outcomes.

        Dropping and archiving happen in the same atomic write. A function or a model runs after it, under a
        lease, so that an add never waits and a model is not called twice. `after` is the whole content of the
        session after `ops`, if known.
        """
        for _ in range(ATTEMPTS):
            view = self._known.view
            try:
                if view.limited or once is not None:
                    outcomes = await self._write(_Adding(ops, once, view.ops, added, after, view.settings))
                else:
                    # Adding a message never waits for the embedder: recall does, for many messages at once.
                    outcomes = await self._store.write(Write((*ops, *view.ops), lazy=True))
            except SettingsChangedError as error:
                self._known.learn(error.settings)
            else:
                if once is None:  # otherwise it may be a retry, done under other settings
                    self._known.confirm(view)
                return outcomes[: len(ops)]
        raise ConflictError(
            f"session {self._scope.path!r}: gave up after {ATTEMPTS} attempts, since others changed its "
            "settings each time"
        )

    async def _write(self, adding: _Adding) -> list[Outcome]:
        if not adding.settings.limited:
            return await self._store.write(adding.write())
        overflow = self._known.overflow
        if overflow == "drop":
            return await self._write_and_drop(adding)
        if overflow == "archive":
            return await self._write_and_archive(adding)
        limit = self._limit(adding.settings, (), strict=False)
        outcomes = await self._store.write(adding.write(limit))
        if over_limit(limit, outcomes[-1].count, outcomes[-1].weight):
            await self._make_room(adding.settings)
        return outcomes

    # ------------------------------------------------------------ in the same write

    async def _write_and_drop(self, adding: _Adding) -> list[Outcome]:
        groups, strict = self._next_to_go if adding.after is None else [], True
        for _ in range(ATTEMPTS):
            guard = self._guard(adding, groups)
            evict = tuple([group.keys for group in groups])
            try:
                outcomes = await self._store.write(adding.write(*guard, self._limit(adding.settings, evict, strict)))
            except LimitError as error:
                groups, strict = await self._plan(adding, error.count, error.weight)
            except ConflictError as error:
                if not guard or error.key != self._spare:
                    raise
                groups, strict = [], True
            else:
                self._done(adding, groups, outcomes[-1].removed, outcomes[-1])
                return outcomes
        raise self._overtaken()

    async def _write_and_archive(self, adding: _Adding) -> list[Outcome]:
        groups = self._next_to_go if adding.after is None else []
        count, weight = self._held
        going = _first(
            groups, adding.settings, count + len(adding.added), weight + sum(record.weight for record in adding.added)
        )
        strict = True
        for _ in range(ATTEMPTS):
            guard = self._guard(adding, going)
            leaving = [record for group in going for record in group.records]
            moved = [record.key for record in leaving]
            limit = self._limit(adding.settings, (), strict)
            try:
                outcomes = await self._store.write(adding.write(*guard, *_moves(leaving), limit))
            except LimitError as error:
                if going:  # others have added more meanwhile
                    groups = going = []
                    continue
                groups, strict = await self._plan(adding, error.count, error.weight, derived=(RECALL,))
                going = _first(groups, adding.settings, error.count, error.weight)
            except ConflictError as error:
                # Another writer has moved one of them. A conflict on an added message is a different error.
                ours = moved if not guard else [*moved, self._spare]
                if error.key not in ours or any(error.key == record.key for record in adding.added):
                    raise
                groups, going, strict = [], [], True
            else:
                self._done(adding, groups, moved, outcomes[-1])
                return outcomes
        raise self._overtaken()

    def _guard(self, adding: _Adding, groups: list[Leaving]) -> list[Op]:
        """Return the operation that fails the write if the protected last user message was deleted."""
        if adding.said is not None or adding.after is not None or not groups or self._spare is None:
            return []
        return [Expect(self._scope, MESSAGE, key=self._spare)]

    def _done(self, adding: _Adding, groups: list[Leaving], gone: Sequence[str], held: Outcome) -> None:
        """Remember eviction candidates for the next add: the groups after the last evicted one."""
        last = next((n for n, group in enumerate(groups, 1) if gone[-1] in group.keys), 0) if gone else 0
        self._next_to_go = groups[last:] if adding.after is None else []
        self._spare = adding.said or self._spare
        self._held = (held.count, held.weight)

    def _overtaken(self) -> LimitError:
        return LimitError(
            f"session {self._scope.path!r} could not be held to its limits: gave up after {ATTEMPTS} "
            "attempts, since others wrote to it each time",
            count=0,
            weight=0,
        )

    # ------------------------------------------------------------ keeping elsewhere

    async def _make_room(self, settings: SessionSettings) -> None:
        """Evict messages, unless another writer has the lease."""
        lease = Ref(self._scope, LEASE, "room")
        record = Record(scope=lease.scope, kind=lease.kind, key=lease.key, expires=self._store.clock() + LEASE_TIME)
        try:
            (held,) = await self._store.write(Write((Put(record, if_version=0),)))
        except ConflictError:
            return
        try:
            for _ in range(ATTEMPTS):
                if not await self._move_out(settings):
                    return
        finally:
            await self._let_go(lease, held.version)

    async def _let_go(self, lease: Ref, version: int) -> None:
        try:
            await self._store.write(Write((Delete(lease, version),)))
        except ConflictError:
            return  # it took so long that another writer has taken over

    async def _move_out(self, settings: SessionSettings) -> bool:
        """Evict the oldest messages; return whether there may be more."""
        page = await self._store.streams(StreamScan(scope=self._scope, kinds=(MESSAGE,), below=False))
        if not page.items:
            return False
        stream = page.items[0]
        if not over_limit(self._limit(settings, ()), stream.count, stream.weight):
            return False
        nothing = _Adding([], None, (), [], None, settings)
        groups, _ = await self._plan(nothing, stream.count, stream.weight, settings.keep, derived=(RECALL,))
        leaving = [record for group in groups for record in group.records]
        if not leaving:
            return False
        try:
            await self._store.write(Write(tuple(await self._handed_over(leaving)), lazy=True))
        except ConflictError:
            return True  # another writer changed one of them
        return True

    async def _handed_over(self, leaving: list[Record]) -> list[Op]:
        """Pass evicted messages to the function or model; return the operations that remove them."""
        overflow = self._known.overflow
        messages = [decode(record) for record in leaving]
        if isinstance(overflow, Summarize):
            (old,) = await self._store.read([Ref(self._scope, SUMMARY, SUMMARY_KEY)])
            return [*_moves(leaving), await summary_record(overflow, self._scope, old, leaving, messages)]
        if not callable(overflow):
            return _moves(leaving)  # another handle has changed the overflow policy
        await call(overflow, messages)
        return [Delete(record.ref, record.version) for record in leaving]

    # ------------------------------------------------------------ planning

    async def _plan(
        self, adding: _Adding, count: int, weight: int, share: float = 1.0, *, derived: tuple[str, ...] = ()
    ) -> tuple[list[Leaving], bool]:
        """Return the groups to evict, oldest first, and whether evicting them is enough.

        For a share of 1 these are all that were loaded, for the next adds. With `derived`, their derived values
        are loaded, so that they need not be recomputed.
        """
        settings, said = adding.settings, adding.said
        too_many = count - int((settings.max_messages or count) * share)
        too_much = weight - int((settings.max_tokens or weight) * share)
        if said is None and adding.after is None:
            said = self._spare = await _last_spoken(self._store, self._scope)
        records: list[Record] = []
        scan = Scan(scope=self._scope, kinds=(MESSAGE,), limit=SPARE_MESSAGES, derived=derived)
        while True:
            if adding.after is None:
                page = await self._store.scan(scan)
                records += page.items
                complete = page.cursor is None
                records += [_unwritten(record) for record in adding.added] if complete else []
            else:
                records, complete = [_unwritten(record) for record in adding.after], True
            by_key = {record.key: record for record in records}
            found = evictable([self._entry(record) for record in records], spare=said, complete=complete)
            going = _enough(found, too_many, too_much)
            if complete or going is not None or len(records) >= AT_ONCE:
                held = _enough(
                    found, count - (settings.max_messages or count), weight - (settings.max_tokens or weight)
                )
                chosen = found if share == 1 else found[:going]
                left = [Leaving(keys := group.keys, [by_key[key] for key in keys]) for group in chosen]
                return left, held is not None
            scan = replace(scan, cursor=page.cursor, limit=2 * scan.limit)

    def _limit(self, settings: SessionSettings, evict: tuple[tuple[str, ...], ...], strict: bool = True) -> Limit:
        return Limit(self._scope, MESSAGE, settings.max_messages, settings.max_tokens, evict, strict)

    def _entry(self, record: Record) -> Entry:
        return Entry(record.key, record.seq, decode(record), tokens_of(record, self._tokens))


class Leaving(Struct, frozen=True):
    """Messages that are evicted together, and their keys."""

    keys: tuple[str, ...]
    records: list[Record]


class _Adding:
    """One call that adds messages: its write without evictions, and its settings."""

    def __init__(
        self,
        ops: list[Op],
        once: str | None,
        checks: Sequence[Op],
        added: list[Record],
        after: list[Record] | None,
        settings: SessionSettings,
    ) -> None:
        self._ops = (*ops, *checks)
        self._once = once
        # Evictions differ between attempts, so the id of a call covers only `ops`.
        self._digest = None if once is None else Write(tuple(ops), once).digest
        self.added = added
        self.after = after
        self.settings = settings

    @cached_property
    def said(self) -> str | None:
        """The user's last message among those that are added."""
        records = reversed(self.added if self.after is None else self.after)
        return next((record.key for record in records if spoken(decode(record))), None)

    def write(self, *more: Op) -> Write:
        """Return the write of this call with its evictions."""
        return Write((*self._ops, *more), self._once, lazy=True, digest=self._digest)


def _moves(leaving: list[Record]) -> list[Op]:
    """Return the operations that move messages to the archive."""
    gone = [Delete(record.ref, record.version or None) for record in leaving]
    return [*gone, *(Put(replace(record, kind=ARCHIVED)) for record in leaving)]


def _unwritten(record: Record) -> Record:
    """Return a record of the planned write: it has no version yet."""
    return replace(record, version=0)


def _first(groups: list[Leaving], settings: SessionSettings, count: int, weight: int) -> list[Leaving]:
    """Return the groups to evict so that these totals are within the limits."""
    going: list[Leaving] = []
    for group in groups:
        too_many = settings.max_messages is not None and count > settings.max_messages
        if not too_many and (settings.max_tokens is None or weight <= settings.max_tokens):
            break
        going.append(group)
        count -= len(group.keys)
        weight -= sum([record.weight for record in group.records])
    return going


def _enough(groups: list[Group], too_many: int, too_much: int) -> int | None:
    """Return how many groups to evict, or None if all are not enough."""
    for n, group in enumerate(groups):
        if too_many <= 0 and too_much <= 0:
            return n
        too_many -= len(group.entries)
        too_much -= sum(entry.tokens for entry in group.entries)
    return len(groups) if too_many <= 0 and too_much <= 0 else None


async def _last_spoken(store: Store, scope: ScopePath) -> str | None:
    """Return the key of the user's newest message; None if there is none among the newest messages."""
    page = await store.scan(Scan(scope=scope, kinds=(MESSAGE,), reverse=True, limit=NEWEST))
    return next((record.key for record in page.items if spoken(decode(record))), None)


LONG = 50_000
"""Number of characters from which token counting runs in a thread."""


async def add_messages(
    store: Store, log: LimitedLog, messages: list[Message], encode: Callable[[Message], Record], once: str | None
) -> list[Message]:
    """Add messages; return them with their ids, the original ones if this is a retry.

    Raises ConflictError if a different message has one of the ids.
    """
    if any(len(message.text or "") > LONG for message in messages):
        records = await off_loop(lambda: [encode(message) for message in messages])
    else:
        records = [encode(message) for message in messages]
    while records:
        try:
            outcomes = await log.write([Put(record, if_version=0) for record in records], records, once)
        except ConflictError:
            # Some are stored already, as in a retry after a lost answer.
            missing = await _missing(store, records)
            if len(missing) == len(records):
                raise
            records = missing
        else:
            if once is None:
                break
            ids = [outcome.key for outcome in outcomes if outcome.key]
            if len(ids) != len(messages):
                break
            return [
                message if message.id == id else replace(message, id=id)
                for message, id in zip(messages, ids, strict=True)
            ]
    return messages


async def _missing(store: Store, records: list[Record]) -> list[Record]:
    """Return the records that are not stored yet; raises ConflictError if a stored one differs."""
    found = await store.read([record.ref for record in records])
    missing = []
    for record, stored in zip(records, found, strict=True):
        if stored is None:
            missing.append(record)
        elif _said(checked(record)) != _said(stored):
            raise ConflictError(
                f"session {record.scope.path!r} has another message with the id {record.key!r}",
                key=record.key,
                current=stored.version,
            )
    return missing


def _said(record: Record) -> tuple[Any, ...]:
    """Return the identity of a message: everything except its times."""
    return (record.text, record.data, record.meta, record.weight)


def difference(
    stored: list[Record], messages: list[Message], encode: Callable[[Message, datetime | None], Record]
) -> tuple[list[Op], list[Record]]:
    """Return the operations that turn `stored` into `messages`, and the resulting records.

    A new record goes to the end of its stream, so everything after the first new or moved message is deleted and
    put again. Raises InvalidValueError for duplicate ids.
    """
    known = {record.key: record for record in stored}
    ops: list[Op] = []
    placed: list[Record] = []
    moved: list[Record] = []
    after: list[Record] = []
    last = 0
    for message in messages:
        old = known.pop(message.id, None)
        if old is None or decode(old) != message:
            record = encode(message, old.expires if old is not None else None)
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
