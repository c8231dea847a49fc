"""Limits on a session, and what happens to the messages that no longer fit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ..checks import check_count, check_number, shown
from ..driving import call
from ..errors import ConflictError, InvalidValueError, LimitError
from ..recall.entry import RECALL
from ..records import Message, Record, Ref, ScopePath, now
from ..store.protocol import Store, scan_all
from ..store.query import (
    MAX_CHOICES,
    Condition,
    Delete,
    Expect,
    Limit,
    Op,
    Outcome,
    Put,
    Scan,
    StreamScan,
    Write,
)
from ..store.rules import over_limit
from ..tokens import TokenCounter
from .kinds import LEASE as LEASE
from .messages import ARCHIVED, MESSAGE, decode, tokens_of
from .summary import SUMMARY, SUMMARY_KEY, Summarize, summary_record
from .turns import Entry, Group, evictable, spoken

Handler: TypeAlias = Callable[[list[Message]], Awaitable[Any] | Any]
Overflow: TypeAlias = Literal["drop", "archive"] | Summarize | Handler

SPARE_MESSAGES = 64
"""How many of the oldest messages are looked at to make room, so that the next adds need not look again."""
LATELY = 200
"""Among how many of the newest messages a user must have spoken for a turn to be going on."""
AT_ONCE = 10_000
"""The most messages that one add makes room by, when a limit was lowered far below what is there."""
ATTEMPTS = 100
"""How often a write is planned anew because others wrote meanwhile; each time one of them gets through."""
LEASE_TIME = timedelta(minutes=5)
"""How long others wait for one who is making room, and may have died, before one of them takes over."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much a session may hold, and what happens past that."""

    max_messages: int | None = None
    max_tokens: int | None = None
    overflow: Overflow = "drop"
    keep: float = 0.8

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a limit below 1, a share outside 0 to 1, or an unknown overflow."""
        if self.max_messages is not None:
            check_count(self.max_messages, "max_messages", least=1)
        if self.max_tokens is not None:
            check_count(self.max_tokens, "max_tokens", least=1)
        if not 0 < check_number(self.keep, "keep") <= 1:
            raise InvalidValueError(f"keep is a share of the limit, above 0 and up to 1: {self.keep}")
        known = self.overflow in ("drop", "archive") if isinstance(self.overflow, str) else True
        if not known or not isinstance(self.overflow, str | Summarize | Callable):
            raise InvalidValueError(
                f"overflow is 'drop', 'archive', a function or Summarise(…): {shown(self.overflow)}"
            )

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return self.max_messages is not None or self.max_tokens is not None

    @property
    def archives(self) -> bool:
        """Whether what overflows is kept beside the log."""
        return self.overflow == "archive" or isinstance(self.overflow, Summarize)


class LimitedLog:
    """Adds messages to a session and holds it to its limits."""

    def __init__(self, store: Store, scope: ScopePath, tokens: TokenCounter, limits: Limits) -> None:
        self._store = store
        self._scope = scope
        self._tokens = tokens
        self._limits = limits
        self._next_to_go: list[tuple[str, ...]] = []
        """Groups that may go, oldest first, while `_spare` is there; others may have removed some."""
        self._spare: str | None = None
        """The user's last message, when that was last looked up."""

    async def write(self, ops: list[Op], added: list[Record], once: str | None = None) -> list[Outcome]:
        """Do `ops`, which add the records `added`, and make room if there is too little.

        What is to be dropped goes in the same atomic write. What is to be kept elsewhere, or handed
        to someone, goes after it, by one writer at a time, so that an add never fails for want of
        room and a model is not asked twice.
        """
        # Who speaks does not wait for a model: recall does, and then for many messages at once.
        if not self._limits.any:
            return await self._store.write(Write(tuple(ops), once, lazy=True))
        if self._limits.overflow == "drop":
            return await self._write_and_drop(ops, added, once)
        limit = self._limit((), strict=False)
        outcomes = await self._store.write(Write((*ops, limit), once, lazy=True))
        if over_limit(limit, outcomes[-1].count, outcomes[-1].weight):
            await self._make_room()
        return outcomes

    # ------------------------------------------------------------ dropping

    async def _write_and_drop(self, ops: list[Op], added: list[Record], once: str | None) -> list[Outcome]:
        said = next((record.key for record in reversed(added) if spoken(decode(record))), None)
        groups, strict = self._next_to_go, True
        for _ in range(ATTEMPTS):
            guard: list[Op] = []
            if said is None and groups and self._spare is not None:
                # The plan spares the user's last message; if that was taken back, it is another.
                guard.append(Expect(self._scope, MESSAGE, key=self._spare))
            try:
                outcomes = await self._store.write(
                    Write((*ops, *guard, self._limit(tuple(groups), strict)), once, lazy=True)
                )
            except LimitError as error:
                planned, strict = await self._plan(added, said, error.count, error.weight, 1.0)
                groups = [group.keys for group in planned]
            except ConflictError as error:
                if not guard or error.key != self._spare:
                    raise
                groups, strict = [], True
            else:
                gone = set(outcomes[-1].removed)
                self._next_to_go = [group for group in groups if gone.isdisjoint(group)] if gone else groups
                self._spare = said or self._spare
                return outcomes
        raise LimitError(
            f"session {self._scope.path!r} could not be held to its limits: too many others write to it",
            count=0,
            weight=0,
        )

    # ------------------------------------------------------------ keeping elsewhere

    async def _make_room(self) -> None:
        """Move out what no longer fits, unless another writer is about it."""
        lease = Ref(self._scope, LEASE, "room")
        record = Record(scope=lease.scope, kind=lease.kind, key=lease.key, expires=now() + LEASE_TIME)
        try:
            (held,) = await self._store.write(Write((Put(record, if_version=0),)))
        except ConflictError:
            return
        try:
            for _ in range(ATTEMPTS):
                if not await self._move_out():
                    return
        finally:
            await self._let_go(lease, held.version)

    async def _let_go(self, lease: Ref, version: int) -> None:
        try:
            await self._store.write(Write((Delete(lease, version),)))
        except ConflictError:
            return  # it took so long that another has taken over

    async def _move_out(self) -> bool:
        """Move out the oldest messages; tell whether there may be more to move."""
        page = await self._store.streams(StreamScan(scope=self._scope, kinds=(MESSAGE,), below=False))
        if not page.items:
            return False
        stream = page.items[0]
        if not over_limit(self._limit(()), stream.count, stream.weight):
            return False
        groups, _ = await self._plan([], None, stream.count, stream.weight, self._limits.keep)
        leaving = await self._leaving([key for group in groups for key in group.keys])
        if not leaving:
            return False
        try:
            await self._store.write(Write(tuple(await self._moves(leaving)), lazy=True))
        except ConflictError:
            return True  # someone else changed one of them meanwhile
        return True

    async def _leaving(self, keys: list[str]) -> list[Record]:
        """Return the messages that leave, with what was computed from them, which is not computed again."""
        found: list[Record] = []
        for start in range(0, len(keys), MAX_CHOICES):
            where = (Condition("key", "in", tuple(keys[start : start + MAX_CHOICES])),)
            scan = Scan(scope=self._scope, kinds=(MESSAGE,), where=where, derived=(RECALL,))
            found += [record async for record in scan_all(self._store, scan)]
        return found

    async def _moves(self, leaving: list[Record]) -> list[Op]:
        """Hand the messages that leave to whoever is to have them, and return what moves them out."""
        overflow = self._limits.overflow
        moves: list[Op] = [Delete(record.ref, record.version) for record in leaving]
        messages = [decode(record) for record in leaving]
        if not self._limits.archives:
            assert callable(overflow)
            await call(overflow, messages)
            return moves
        moves += [Put(replace(record, kind=ARCHIVED)) for record in leaving]
        if isinstance(overflow, Summarize):
            (old,) = await self._store.read([Ref(self._scope, SUMMARY, SUMMARY_KEY)])
            moves.append(await summary_record(overflow, self._scope, old, leaving, messages))
        return moves

    # ------------------------------------------------------------ planning

    async def _plan(
        self, added: list[Record], said: str | None, count: int, weight: int, share: float
    ) -> tuple[list[Group], bool]:
        """Return the groups that are to go, oldest first, and whether they are enough.

        For a share of 1 these are all that were looked at, so that the next adds need not look again.
        """
        limits = self._limits
        too_many = count - int((limits.max_messages or count) * share)
        too_much = weight - int((limits.max_tokens or weight) * share)
        new = [self._entry(record) for record in added]
        if said is None:
            self._spare = await _last_spoken(self._store, self._scope)
        entries: list[Entry] = []
        scan = Scan(scope=self._scope, kinds=(MESSAGE,), limit=SPARE_MESSAGES)
        while True:
            page = await self._store.scan(scan)
            entries += [self._entry(record) for record in page.items]
            complete = page.cursor is None
            groups = evictable(
                entries + new if complete else entries, spare=said or self._spare, complete=complete
            )
            going = _enough(groups, too_many, too_much)
            if complete or going is not None or len(entries) >= AT_ONCE:
                return groups if share == 1 else groups[:going], going is not None
            scan = replace(scan, cursor=page.cursor, limit=2 * scan.limit)

    def _limit(self, evict: tuple[tuple[str, ...], ...], strict: bool = True) -> Limit:
        limits = self._limits
        return Limit(self._scope, MESSAGE, limits.max_messages, limits.max_tokens, evict, strict)

    def _entry(self, record: Record) -> Entry:
        return Entry(record.key, record.seq, decode(record), tokens_of(record, self._tokens))


def _enough(groups: list[Group], too_many: int, too_much: int) -> int | None:
    """Return how many groups must go, or None if all of them are not enough."""
    for n, group in enumerate(groups):
        if too_many <= 0 and too_much <= 0:
            return n
        too_many -= len(group.entries)
        too_much -= sum(entry.tokens for entry in group.entries)
    return len(groups) if too_many <= 0 and too_much <= 0 else None


async def _last_spoken(store: Store, scope: ScopePath) -> str | None:
    """Return the key of the newest message in which a user speaks; None if there is none of late."""
    page = await store.scan(Scan(scope=scope, kinds=(MESSAGE,), reverse=True, limit=LATELY))
    return next((record.key for record in page.items if spoken(decode(record))), None)
