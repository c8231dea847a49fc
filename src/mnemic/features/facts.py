"""The facts of a scope: adding, ending, asking, and walking along them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..checks import check_count, check_name, check_time, shown
from ..errors import InvalidValueError, LimitError
from ..event_loop import off_loop
from ..layers.redact import redact_names, stored_name
from ..records import FACT, GUARD, Record, Ref, ScopePath, Value, fact_key
from ..store.matching import is_valid_at
from ..store.protocol import Store, scan_all, scan_pages
from ..store.query import Condition, Delete, Op, Put, Scan, StreamScan, Write
from ..store.retry import retry_conflicts
from ..telemetry.calls import observed
from .fact_graph import GraphSearch, build_graph, write_graphml
from .fact_items import (
    Fact,
    check_confidence,
    end_fact,
    fact_conditions,
    fact_names,
    fit_among_others,
    replace_single,
    to_fact,
    to_record,
    with_key,
)

if TYPE_CHECKING:
    import networkx

MAX_FACTS = 1000
"""Default limit of facts that a graph search reads."""


class Neighborhood(Value, frozen=True, kw_only=True):
    """Result of a graph search: distances, facts, and whether it is complete."""

    distances: dict[str, int]
    facts: list[Fact]
    complete: bool


class FactGraph(Value, frozen=True, kw_only=True):
    """Facts of a scope, of all times; if `total` is more, only those that were added last."""

    facts: list[Fact]
    total: int


@observed
class AsyncFacts:
    """The facts of one scope. Queries use indexes, and graph searches are bounded."""

    scope: ScopePath

    def __init__(self, store: Store, scope: ScopePath) -> None:
        self.scope = scope
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def add(
        self,
        subject: str,
        predicate: str,
        object: str,
        *,
        single: bool = False,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        source: str | None = None,
        confidence: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
    ) -> Fact:
        """Add a fact to this scope, valid from now unless given; return it as stored.

        Adding it again updates it. With `single`, the predicate has one object at a time: the currently valid
        fact ends when this one begins and stays as history. Raises InvalidValueError for invalid names or
        numbers, ConflictError if concurrent writes win every attempt.
        """
        subject, predicate, object, source = await self._redacted(
            check_name(subject, "subject"),
            check_name(predicate, "predicate"),
            check_name(object, "object"),
            None if source is None else check_name(source, "source"),
        )
        given = Fact(
            subject=subject,
            predicate=predicate,
            object=object,
            valid_from=self._store.clock() if valid_from is None else check_time(valid_from, "valid_from"),
            valid_to=None if valid_to is None else check_time(valid_to, "valid_to"),
            source=source,
            confidence=check_confidence(confidence),
            metadata={} if metadata is None else metadata,  # type: ignore[arg-type]
        )
        if given.valid_to is not None and given.valid_to <= given.valid_from:
            raise InvalidValueError(f"valid_to {given.valid_to} is not after valid_from {given.valid_from}")

        async def state() -> Fact:
            if single:
                guard = await self._guard(given)
                known = await self._known("pair", guard.record.key)
                fact, ops = replace_single(given, known, starts_now=valid_from is None)
                ops.append(guard)
            else:
                known = await self._known("fact", fact_key(*fact_names(given)))
                fact, ops = fit_among_others(given, known), []
            record = to_record(fact, self.scope)
            if (old := with_key(record.key, known)) is not None:
                record = replace(record, importance=old.importance, pinned=old.pinned)
            put = Put(record, 0 if old is None else old.version)
            await self._store.write(Write((*ops, put)))
            return to_fact(put.record)

        return await retry_conflicts(state, f"stating a fact of {shown(subject)} in {self.scope.path!r}")

    async def update(
        self, subject: str, predicate: str, object: str | None = None, *, valid_to: datetime | None = None
    ) -> int:
        """End the facts of this scope that are valid at `valid_to`, by default now; return how many.

        With `object`, only facts with that object. Ended facts stay as history. Raises ConflictError if
        concurrent writes win every attempt.
        """
        moment = self._moment(valid_to)
        subject, predicate, object = await self._redacted(
            check_name(subject, "subject"), check_name(predicate, "predicate"), object
        )
        pair = fact_key(subject, predicate)

        async def close() -> int:
            ending = [
                record
                for record in await self._known("pair", pair)
                if is_valid_at(record, moment) and object in (None, record.labels["object"])
            ]
            ops = [op for record in ending for op in end_fact(record, moment)]
            await self._store.write(Write(tuple(ops)))
            return len(ending)

        return await retry_conflicts(close, f"ending facts of {shown(subject)} in {self.scope.path!r}")

    async def delete(self, subject: str, predicate: str, object: str | None = None) -> int:
        """Delete facts of this scope with their history; return how many."""
        names = [check_name(subject, "subject"), check_name(predicate, "predicate")]
        names += [] if object is None else [check_name(object, "object")]
        found = await self._known("pair" if object is None else "fact", fact_key(*await self._redacted(*names)))
        outcomes = await self._store.write(Write(tuple(Delete(record.ref) for record in found)))
        return sum(len(outcome.removed) for outcome in outcomes)

    async def ask(
        self,
        subject: str | None = None,
        predicate: str | None = None,
        object: str | None = None,
        *,
        as_of: datetime | None = None,
        history: bool = False,
        limit: int | None = None,
    ) -> list[Fact]:
        """Return facts of this scope by subject, predicate and object, each optional.

        By default those valid now; with `as_of`, those valid then; with `history`, all. Sorted by start of
        validity; `limit` keeps the first that were added.
        """
        if history and as_of is not None:
            raise InvalidValueError("ask for a moment with as_of, or for all times with history, not both")
        moment = None if history else self._moment(as_of)
        where = fact_conditions(subject, predicate, object)
        if limit is not None:
            found = await self._first(replace(self._question(where, moment), limit=check_count(limit, "limit")))
        else:
            found = [record async for record in self._scan(where, moment)]
        return sorted(map(to_fact, found), key=lambda fact: fact.valid_from)

    async def neighbors(
        self,
        name: str,
        depth: int = 1,
        *,
        predicates: Sequence[str] | str | None = None,
        as_of: datetime | None = None,
        max_facts: int = MAX_FACTS,
    ) -> Neighborhood:
        """Return everything in this scope that is connected with a name, in either direction, within `depth` steps."""
        check_count(depth, "depth", least=1)
        walk = self._search(name, self._moment(as_of), predicates, max_facts)
        for _ in range(depth):
            if not await walk.step():
                break
        facts = list(map(to_fact, walk.found.values()))
        return Neighborhood(distances=walk.distances, facts=facts, complete=walk.complete)

    async def path(
        self,
        start: str,
        end: str,
        *,
        max_depth: int = 6,
        predicates: Sequence[str] | str | None = None,
        as_of: datetime | None = None,
        max_facts: int = 10 * MAX_FACTS,
    ) -> list[Fact] | None:
        """Return a shortest path between two names in this scope, in either direction; None if there is none.

        Raises LimitError if it would have to read more than `max_facts` facts.
        """
        moment = self._moment(as_of)
        here, there = (self._search(name, moment, predicates, max_facts) for name in (start, end))
        for step in range(check_count(max_depth, "max_depth", least=1) + 1):
            if met := here.distances.keys() & there.distances.keys():
                middle = min(met)
                return list(map(to_fact, [*reversed(here.path_from(middle)), *there.path_from(middle)]))
            walk = here if len(here.frontier) <= len(there.frontier) else there
            if not walk.complete:
                raise LimitError(
                    f"no path from {start!r} to {end!r} among the first {max_facts:,} links looked at",
                    count=len(walk.found),
                    weight=0,
                )
            if (step == max_depth or not await walk.step()) and walk.complete:
                return None
        return None

    async def graph(self, *, max_facts: int = MAX_FACTS) -> FactGraph:
        """Return the facts of this scope with their history, sorted by start of validity, and how many there are.

        If there are more than `max_facts`, those that were added last.
        """
        scan = replace(self._question((), None), reverse=True, limit=check_count(max_facts, "max_facts", least=1))
        facts = sorted(map(to_fact, await self._first(scan)), key=lambda fact: fact.valid_from)
        streams = await self._store.streams(StreamScan(scope=self.scope, kinds=(FACT,), below=False))
        return FactGraph(facts=facts, total=max(len(facts), sum(stream.count for stream in streams.items)))

    async def to_networkx(self, *, as_of: datetime | None = None, history: bool = False) -> networkx.MultiDiGraph[str]:
        """Return the facts of this scope as a networkx graph; raises MissingExtraError if networkx is not installed."""
        return build_graph(await self.ask(as_of=as_of, history=history))

    async def save_graphml(
        self, path: str | PathLike[str], *, as_of: datetime | None = None, history: bool = False
    ) -> int:
        """Write the facts of this scope to a GraphML file; return how many. Raises as `to_networkx` does."""
        graph = await self.to_networkx(as_of=as_of, history=history)
        await off_loop(lambda: write_graphml(graph, path))
        return int(graph.number_of_edges())

    async def _redacted(self, *names: str | None) -> list[Any]:
        """Return names as they are stored: keys are made of them."""
        return await redact_names(self._store, self.scope, FACT, *names)

    async def _restore(self, record: Record) -> Fact:
        """Put a fact again as it was; if its predicate is single-valued, it takes its place among the others."""
        fact = to_fact(record)
        guard = await self._guard(fact)
        known = await self._known("pair", guard.record.key)
        ops: list[Op] = []
        if guard.if_version:
            fact, ops = replace_single(fact, [one for one in known if one.key != record.key], starts_now=False)
            ops.append(guard)
        record = replace(record, key=fact.id, valid_from=fact.valid_from, valid_to=fact.valid_to)
        old = with_key(record.key, known)
        await self._store.write(Write((*ops, Put(record, 0 if old is None else old.version))))
        return to_fact(record)

    async def _guard(self, fact: Fact) -> Put:
        """Return a change of what guards a single-valued predicate: two writers must not both find nothing to end."""
        ref = Ref(self.scope, GUARD, fact_key(fact.subject, fact.predicate))
        (stored,) = await self._store.read([ref])
        return Put(Record(ref.scope, ref.kind, ref.key), 0 if stored is None else stored.version)

    async def _known(self, label: str, key: str) -> list[Record]:
        """Return all facts ever added under a combined label."""
        return [record async for record in self._scan((Condition(f"labels.{label}", "eq", key),), None)]

    def _moment(self, as_of: datetime | None) -> datetime:
        return self._store.clock() if as_of is None else check_time(as_of, "as_of")

    def _search(
        self, start: str, moment: datetime, predicates: Sequence[str] | str | None, max_facts: int
    ) -> GraphSearch:
        start = stored_name(self._store, self.scope, FACT, check_name(start, "name"))
        return GraphSearch(lambda where: self._scan(where, moment), start, predicates, max_facts)

    def _question(self, where: tuple[Condition, ...], moment: datetime | None) -> Scan:
        return Scan(scope=self.scope, kinds=(FACT,), where=where, as_of=moment)

    async def _first(self, scan: Scan) -> list[Record]:
        """Return the first `scan.limit` records of a scan; a page of it can be shorter."""
        found: list[Record] = []
        async for page in scan_pages(self._store, scan):
            found += page
            if len(found) >= scan.limit:
                break
        return found[: scan.limit]

    def _scan(self, where: tuple[Condition, ...], moment: datetime | None) -> AsyncIterator[Record]:
        return scan_all(self._store, self._question(where, moment))
