"""Writes to a session that has limits: evicts, archives or summarizes its oldest messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from msgspec.structs import replace

from ..errors import ConflictError, InvalidValueError, LimitError
from ..event_loop import call
from ..messages import Message, decode
from ..recall.index_entry import RECALL
from ..records import ARCHIVED, LEASE, MESSAGE, SUMMARY, Record, Ref, ScopePath
from ..store.protocol import Store
from ..store.query import Delete, Expect, Limit, Op, Outcome, Put, Scan, StreamScan, Write, checked_record
from ..store.stream_state import over_limit
from .session_settings import SessionSettings, SettingsCache, SettingsView
from .summary import SUMMARY_KEY, Summarize, summary_record
from .turns import NEWEST, Turn, TurnMessage, evictable, is_from_user

CANDIDATES = 64
"""How many of the oldest messages are loaded as eviction candidates, for this and the next adds."""
MOST_KEPT = 100_000
"""How many tokens eviction candidates may have that are kept for the next adds."""
MAX_EVICTED = 10_000
"""Maximum number of messages that one add evicts, after a limit was lowered a lot."""
ATTEMPTS = 100
"""Maximum number of attempts on conflicts; each failed one means that another write succeeded."""
LEASE_TIME = timedelta(minutes=5)
"""Duration of the lease on shrinking a session, after which another writer takes over."""


class LimitedLog:
    """Adds messages to a session and enforces its limits."""

    def __init__(self, store: Store, scope: ScopePath, settings: SettingsCache) -> None:
        self._store = store
        self._scope = scope
        self._settings = settings
        self._known = settings.known

    async def write(
        self, ops: list[Op], added: list[Record], once: str | None, view: SettingsView, after: list[Record] | None
    ) -> list[Outcome]:
        """Run `ops`, which add the records `added`, and evict if necessary; return their outcomes.

        Dropping and archiving happen in the same atomic write. A function or a model runs after it, under a
        lease, so that an add never waits and a model is not called twice. `after` is the whole content of the
        session after `ops`, if known.
        """
        adding = _Adding(ops, added, once, view, after)
        overflow = self._settings.overflow
        if not view.limited:
            return await self._store.write(adding.write())
        if overflow in ("drop", "archive"):
            return await self._write_and_evict(adding, archive=overflow == "archive")
        limit = self._limit(adding.settings, (), strict=False)
        outcomes = await self._store.write(adding.write(limit))
        if over_limit(limit, outcomes[-1].count, outcomes[-1].weight):
            await self._shrink(adding.settings)
        return outcomes

    # ------------------------------------------------------------ drop or archive, in the same write

    async def _write_and_evict(self, adding: _Adding, *, archive: bool) -> list[Outcome]:
        """Write and evict; the store decides how many to drop, while those to archive are chosen here."""
        turns = self._known.candidates if adding.after is None else []
        count, weight = self._known.totals
        count, weight = count + len(adding.added), weight + sum([record.weight for record in adding.added])
        strict = True
        for _ in range(ATTEMPTS):
            leaving = turns[: _needed(turns, *_excess(adding.settings, count, weight))] if archive else turns
            moved = [record for turn in leaving for record in turn.records] if archive else []
            guard = self._guard(adding, leaving)
            limit = self._limit(adding.settings, () if archive else tuple([turn.keys for turn in turns]), strict)
            try:
                outcomes = await self._store.write(adding.write(*guard, *archive_ops(moved), limit))
            except LimitError as error:
                if moved:  # others have added more meanwhile
                    turns = []
                    continue
                count, weight = error.count, error.weight
                turns, strict = await self._plan(adding, count, weight, derived=(RECALL,) if archive else ())
            except ConflictError as error:
                # Another writer has moved one of them. A conflict on an added message is a different error.
                expected = [record.key for record in moved] + ([self._known.last_user] if guard else [])
                if error.key not in expected or any(error.key == record.key for record in adding.added):
                    raise
                turns, strict = [], True
            else:
                gone = [record.key for record in moved] if archive else outcomes[-1].removed
                self._remember(adding, turns, gone, outcomes[-1])
                return outcomes
        raise LimitError(
            f"session {self._scope.path!r} could not be held to its limits: gave up after {ATTEMPTS} "
            "attempts, since others wrote to it each time",
            count=0,
            weight=0,
        )

    def _guard(self, adding: _Adding, leaving: list[Turn]) -> list[Op]:
        """Return the operation that fails the write if the protected last user message was deleted."""
        if adding.last_user is not None or adding.after is not None or not leaving or self._known.last_user is None:
            return []
        return [Expect(self._scope, MESSAGE, key=self._known.last_user)]

    def _remember(self, adding: _Adding, turns: list[Turn], gone: Sequence[str], totals: Outcome) -> None:
        """Keep the eviction candidates for the next add: the turns after the last evicted one."""
        last = next((n for n, turn in enumerate(turns, 1) if gone[-1] in turn.keys), 0) if gone else 0
        left = turns[last:] if adding.after is None else []
        self._known.candidates = left if sum(turn.weight for turn in left) <= MOST_KEPT else []
        self._known.last_user = adding.last_user or self._known.last_user
        self._known.totals = (totals.count, totals.weight)

    # ------------------------------------------------------------ hand over to a function or a model

    async def _shrink(self, settings: SessionSettings) -> None:
        """Evict messages, unless another writer has the lease."""
        lease = Record(self._scope, LEASE, "room", expires=self._store.clock() + LEASE_TIME)
        try:
            outcome = await self._take(lease)
        except ConflictError:
            return
        try:
            for _ in range(ATTEMPTS):
                if not await self._evict_oldest(settings):
                    return
        finally:
            with suppress(ConflictError):  # it took so long that another writer has taken over
                await self._store.write(Write((Delete(lease.ref, outcome.version),)))

    async def _take(self, lease: Record) -> Outcome:
        """Store a lease; raises ConflictError if another writer has it."""
        try:
            return (await self._store.write(Write((Put(lease, if_version=0),))))[0]
        except ConflictError:
            (held,) = await self._store.read([lease.ref])
            if held is None or not held.expires or not lease.expires or held.expires <= lease.expires + LEASE_TIME:
                raise
        # It was taken by a clock that was far ahead, and would not expire for long.
        return (await self._store.write(Write((Put(lease, if_version=held.version),))))[0]

    async def _evict_oldest(self, settings: SessionSettings) -> bool:
        """Evict the oldest messages; return whether there may be more."""
        page = await self._store.streams(StreamScan(scope=self._scope, kinds=(MESSAGE,), below=False))
        if not page.items:
            return False
        stream = page.items[0]
        if not over_limit(self._limit(settings, ()), stream.count, stream.weight):
            return False
        nothing = _Adding([], [], None, self._settings.view, None)
        nothing.settings = settings
        turns, _ = await self._plan(nothing, stream.count, stream.weight, settings.keep, derived=(RECALL,))
        if not turns:
            return False
        try:
            removing = await self._hand_over([record for turn in turns for record in turn.records])
            await self._store.write(Write(tuple(removing), lazy=True))
        except ConflictError:
            return True  # another writer changed one of them
        return True

    async def _hand_over(self, leaving: list[Record]) -> list[Op]:
        """Pass evicted messages to the function or model; return the operations that remove them."""
        overflow = self._settings.overflow
        messages = [decode(record) for record in leaving]
        if isinstance(overflow, Summarize):
            (old,) = await self._store.read([Ref(self._scope, SUMMARY, SUMMARY_KEY)])
            return [*archive_ops(leaving), await summary_record(overflow, self._scope, old, leaving, messages)]
        if not callable(overflow):
            return archive_ops(leaving)  # another handle has changed the overflow policy
        await call(overflow, messages)
        return [Delete(record.ref, record.version) for record in leaving]

    # ------------------------------------------------------------ planning

    async def _plan(
        self, adding: _Adding, count: int, weight: int, share: float = 1.0, *, derived: tuple[str, ...] = ()
    ) -> tuple[list[Turn], bool]:
        """Return the turns to evict, oldest first, and whether evicting them is enough.

        For a share of 1 these are all that were loaded, for the next adds. With `derived`, their derived values
        are loaded, so that they need not be recomputed.
        """
        last_user = adding.last_user
        if last_user is None and adding.after is None:
            last_user = self._known.last_user = await self._find_last_user()
        records: list[Record] = []
        scan = Scan(scope=self._scope, kinds=(MESSAGE,), limit=CANDIDATES, derived=derived)
        while True:
            if adding.after is None:
                page = await self._store.scan(scan)
                records += page.items
                complete = page.cursor is None
                records += [replace(record, version=0) for record in adding.added] if complete else []
            else:
                records, complete = [replace(record, version=0) for record in adding.after], True
            turns = evictable([TurnMessage.of(record) for record in records], last_user, complete=complete)
            needed = _needed(turns, *_excess(adding.settings, count, weight, share))
            if complete or needed is not None or len(records) >= MAX_EVICTED:
                enough = _needed(turns, *_excess(adding.settings, count, weight)) is not None
                return turns if share == 1 else turns[:needed], enough
            scan = replace(scan, cursor=page.cursor, limit=2 * scan.limit)

    async def _find_last_user(self) -> str | None:
        """Return the key of the user's last message; None if there is none among the newest messages."""
        page = await self._store.scan(Scan(scope=self._scope, kinds=(MESSAGE,), reverse=True, limit=NEWEST))
        return next((record.key for record in page.items if is_from_user(decode(record))), None)

    def _limit(self, settings: SessionSettings, evict: tuple[tuple[str, ...], ...], strict: bool = True) -> Limit:
        return Limit(self._scope, MESSAGE, settings.max_messages, settings.max_tokens, evict, strict)


class _Adding:
    """One call that adds messages: its write without evictions, and its settings."""

    def __init__(
        self, ops: list[Op], added: list[Record], once: str | None, view: SettingsView, after: list[Record] | None
    ) -> None:
        self._ops = (*ops, *view.ops)
        self._once = once
        # Evictions differ between attempts, so the id of a call covers only `ops`.
        self._digest = None if once is None else Write(tuple(ops), once).digest
        self.added = added
        self.after = after
        self.settings = view.settings
        newest_first = reversed(added if after is None else after)
        self.last_user = (
            next((record.key for record in newest_first if is_from_user(decode(record))), None)
            if view.limited
            else None
        )
        """The key of the user's last message among those that are added."""

    def write(self, *evictions: Op) -> Write:
        return Write((*self._ops, *evictions), self._once, lazy=True, digest=self._digest)


def archive_ops(leaving: list[Record]) -> list[Op]:
    """Return the operations that move messages to the archive."""
    gone = [Delete(record.ref, record.version or None) for record in leaving]
    return [*gone, *(Put(replace(record, kind=ARCHIVED)) for record in leaving)]


def _excess(settings: SessionSettings, count: int, weight: int, share: float = 1.0) -> tuple[int, int]:
    """Return by how many messages and tokens these totals exceed a share of the limits."""
    return (
        count - int((settings.max_messages or count) * share),
        weight - int((settings.max_tokens or weight) * share),
    )


def _needed(turns: list[Turn], count: int, weight: int) -> int | None:
    """Return how many turns to evict to remove so many messages and tokens; None if all are not enough."""
    for n, turn in enumerate(turns):
        if count <= 0 and weight <= 0:
            return n
        count -= len(turn.messages)
        weight -= turn.weight
    return len(turns) if count <= 0 and weight <= 0 else None


def over_limits(settings: SessionSettings, records: list[Record]) -> set[str]:
    """Return the keys of the messages that do not fit into the limits, if a session has all of these."""
    last_user = next((record.key for record in reversed(records) if is_from_user(decode(record))), None)
    turns = evictable([TurnMessage.of(record) for record in records], last_user, complete=True)
    excess = _excess(settings, len(records), sum(record.weight for record in records))
    return {key for turn in turns[: _needed(turns, *excess)] for key in turn.keys}


# ---------------------------------------------------------------- adding again, and replacing


async def missing_records(store: Store, records: list[Record]) -> list[Record]:
    """Return those of these new messages that are not stored yet; raises ConflictError if a stored one differs."""
    missing = []
    for record, stored in zip(records, await store.read([record.ref for record in records]), strict=True):
        if stored is None:
            missing.append(record)
            continue
        given = checked_record(record)
        if (given.text, given.data, given.meta, given.weight) != (stored.text, stored.data, stored.meta, stored.weight):
            raise ConflictError(
                f"session {record.scope.path!r} has another message with the id {record.key!r}",
                key=record.key,
                current=stored.version,
            )
    return missing


def replacement_ops(
    stored: list[Record], messages: list[Message], encode: Callable[[Message, datetime | None], Record]
) -> tuple[list[Op], list[Record]]:
    """Return the operations that turn `stored` into `messages`, and the resulting records.

    A new record goes to the end of its stream, so everything after the first new or moved message is deleted and
    put again. Raises InvalidValueError for duplicate ids.
    """
    if len({message.id for message in messages}) < len(messages):
        raise InvalidValueError("a session cannot hold two messages with the same id")
    known = {record.key: record for record in stored}
    deletes: list[Op] = []
    changed: list[Record] = []
    moved: list[Record] = []
    after: list[Record] = []
    last = 0
    for message in messages:
        old = known.pop(message.id, None)
        if old is None:
            record = encode(message, None)
        else:
            record = old if decode(old) == message else encode(message, old.expires)
        after.append(record)
        if old is None or moved or old.seq < last:
            moved.append(record)
            deletes += [Delete(old.ref)] if old is not None else []
        else:
            last = old.seq
            changed += [record] if record is not old else []
    deletes += [Delete(record.ref) for record in known.values()]
    return [*deletes, *map(Put, changed), *map(Put, moved)], after
