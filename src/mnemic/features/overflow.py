"""Limits on a session, and what happens to the messages that no longer fit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ..checks import check_count, check_number, shown
from ..driving import call
from ..errors import ConflictError, InvalidValueError, LimitError
from ..records import Message, Record, Ref, Scope
from ..store.protocol import Store
from ..store.query import Condition, Delete, Limit, Op, Outcome, Put, Scan, Write
from ..tokens import TokenCounter
from .messages import ARCHIVED, MESSAGE, decode, tokens_of
from .summary import SUMMARY, SUMMARY_KEY, Summarise, summary_record
from .turns import Entry, Group, evictable

Handler: TypeAlias = Callable[[list[Message]], Awaitable[Any] | Any]
Overflow: TypeAlias = Literal["drop", "archive"] | Summarise | Handler

SPARE_MESSAGES = 64
"""How many of the oldest messages are looked at to make room, so that the next adds need not look again."""
AT_ONCE = 10_000
"""The most messages that one add makes room by, when a limit was lowered far below what is there."""
ATTEMPTS = 100
"""How often a write is planned anew because others wrote meanwhile; each time one of them gets through."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much a session may hold, and what happens past that.

    "drop" forgets the oldest messages; "archive" moves them out of the log into the session's
    archive; a function is called with them before they go; `Summarise` archives them and keeps a
    running summary in their place. All but "drop" make room down to `keep` of the limit at once.
    """

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
        if isinstance(self.overflow, str) and self.overflow not in ("drop", "archive"):
            raise InvalidValueError(
                f"overflow is 'drop', 'archive', a function or Summarise(…): {shown(self.overflow)}"
            )

    def __bool__(self) -> bool:
        """Tell whether anything is limited."""
        return self.max_messages is not None or self.max_tokens is not None


class LimitedLog:
    """Adds messages to a session and holds it to its limits, in one atomic write each time."""

    def __init__(self, store: Store, scope: Scope, tokens: TokenCounter, limits: Limits) -> None:
        self._store = store
        self._scope = scope
        self._tokens = tokens
        self._limits = limits
        self._next_to_go: list[tuple[str, ...]] = []
        """Groups that may go, oldest first; others may have removed some, which does no harm."""

    async def write(self, ops: list[Op], added: list[Record]) -> list[Outcome]:
        """Do `ops`, which add the records `added`, and make room for them if there is too little."""
        if not self._limits:
            return await self._store.write(Write(tuple(ops)))
        over: LimitError | None = None
        for _ in range(ATTEMPTS):
            try:
                if over is None:
                    return await self._attempt(ops, self._next_to_go)
                return await self._make_room(ops, added, over)
            except LimitError as error:
                over = error
            except ConflictError as error:
                if over is None or error.key in {record.key for record in added}:
                    raise
        assert over is not None
        raise over

    async def _make_room(self, ops: list[Op], added: list[Record], over: LimitError) -> list[Outcome]:
        groups, strict = await self._plan(added, over)
        if self._limits.overflow == "drop":
            return await self._attempt(ops, [group.keys for group in groups], strict=strict)
        fresh = {record.key for record in added}
        leaving = [group for group in groups if not fresh.intersection(group.keys)]
        refs = [Ref(self._scope, MESSAGE, key) for group in leaving for key in group.keys]
        stored = [record for record in await self._store.read(refs) if record is not None]
        whole = len(leaving) == len(groups)
        outcomes = await self._attempt([*ops, *await self._moves(stored)], [], strict=strict and whole)
        if not whole:
            # What was just added has to leave as well, which it can do now that it is stored.
            await self.write([], [])
        return outcomes

    async def _attempt(
        self, ops: list[Op], evict: list[tuple[str, ...]], strict: bool = True
    ) -> list[Outcome]:
        limits = self._limits
        limit = Limit(
            self._scope, MESSAGE, limits.max_messages, limits.max_tokens, tuple(evict), strict=strict
        )
        outcomes = await self._store.write(Write((*ops, limit)))
        gone = set(outcomes[-1].removed)
        self._next_to_go = [group for group in evict if not gone.intersection(group)] if gone else evict
        return outcomes

    async def _moves(self, leaving: list[Record]) -> list[Op]:
        """Hand the messages that leave to whoever is to have them, and return what moves them out."""
        overflow = self._limits.overflow
        moves: list[Op] = [Delete(record.ref, record.version) for record in leaving]
        if not leaving or overflow == "drop":
            return moves
        messages = [decode(record) for record in leaving]
        if overflow != "archive" and not isinstance(overflow, Summarise):
            await call(overflow, messages)
            return moves
        moves += [Put(replace(record, kind=ARCHIVED, labels={})) for record in leaving]
        if isinstance(overflow, Summarise):
            (old,) = await self._store.read([Ref(self._scope, SUMMARY, SUMMARY_KEY)])
            moves.append(await summary_record(overflow, self._scope, old, leaving, messages))
        return moves

    async def _plan(self, added: list[Record], over: LimitError) -> tuple[list[Group], bool]:
        """Return the groups that are to go, oldest first, and whether that has to be enough."""
        limits = self._limits
        drop = limits.overflow == "drop"
        share = 1.0 if drop else limits.keep
        too_many = over.count - int((limits.max_messages or over.count) * share)
        too_much = over.weight - int((limits.max_tokens or over.weight) * share)
        new = [self._entry(record) for record in added]
        spare = next((entry.key for entry in reversed(new) if entry.message.role == "user"), None)
        if spare is None and (asked := await last_user_record(self._store, self._scope)) is not None:
            spare = asked.key
        entries: list[Entry] = []
        scan = Scan(scope=self._scope, kinds=(MESSAGE,), limit=SPARE_MESSAGES)
        while True:
            page = await self._store.scan(scan)
            entries += [self._entry(record) for record in page.items]
            complete = page.cursor is None
            groups = evictable(entries + new if complete else entries, spare=spare, complete=complete)
            going = _enough(groups, too_many, too_much)
            if complete or going is not None or len(entries) >= AT_ONCE:
                return groups if drop else groups[:going], going is not None
            scan = replace(scan, cursor=page.cursor, limit=2 * scan.limit)

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


async def last_user_record(store: Store, scope: Scope) -> Record | None:
    """Return the newest message of a user in a session; None if there is none."""
    where = (Condition("data.role", "eq", "user"),)
    page = await store.scan(Scan(scope=scope, kinds=(MESSAGE,), where=where, reverse=True, limit=1))
    return page.items[0] if page.items else None
