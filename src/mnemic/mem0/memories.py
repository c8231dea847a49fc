"""The operations of mem0's API on memories: add, find, change, delete, and the history of each.

The user of a memory is a scope below that of all memories; agents, apps and runs are in the metadata. So a memory that
the library has written in the scope `alice` is one of the user `alice`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial
from hashlib import md5
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import force_setattr, replace

from ..checks import MICROSECOND, check_name, check_text, new_id, shown
from ..errors import InvalidValueError, NotFoundError
from ..features.hits import Hit, best_passing, delete_refs
from ..features.memory_history import delete_histories, delete_memory, memory_history, update_memory
from ..features.memory_items import MemoryItem, to_record
from ..layers.redact import redact_record
from ..records import HISTORY, MEMORY, PRUNED, Record, Ref, ScopePath, digest_of
from ..scope import AsyncScope
from ..store.protocol import all_streams, scan_all, scrub
from ..store.query import Condition, Purge, Put, Scan, StreamScan, Write
from ..store.retry import retry_conflicts
from ..transfer.items import time_of
from ..transfer.mem0 import OWNERS, expiry_of, user_of, user_scope
from .filters import ENTITIES, Filters

Result = TypeVar("Result")

MOST_SEARCHED = 10_000
"""How many hits a search looks through for those that pass its filters."""
AT_ONCE = 500
"""How many records one write deletes."""
PLACES = 100_000
"""How many memories' scopes are remembered."""


class Mem0Memory(Struct, kw_only=True):
    """A memory with mem0's names; without those that were not asked for."""

    id: str | UnsetType = UNSET
    memory: str | UnsetType = UNSET
    hash: str | UnsetType = UNSET
    user_id: str | None | UnsetType = UNSET
    agent_id: str | None | UnsetType = UNSET
    app_id: str | None | UnsetType = UNSET
    run_id: str | None | UnsetType = UNSET
    session_id: str | None | UnsetType = UNSET
    actor_id: str | None | UnsetType = UNSET
    role: str | None | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    categories: list[Any] | UnsetType = UNSET
    created_at: datetime | UnsetType = UNSET
    updated_at: datetime | UnsetType = UNSET
    expiration_date: str | None | UnsetType = UNSET
    score: float | UnsetType = UNSET
    score_breakdown: dict[str, float] | UnsetType = UNSET


class AddOutcome(Struct, kw_only=True):
    """Outcome of adding one text: "ADD", or "NONE" if it was there already."""

    id: str
    memory: str
    event: str
    role: str | None = None
    actor_id: str | None = None
    data: dict[str, str] = field(default_factory=dict)


class Entity(Struct, kw_only=True):
    """A user, agent, app or run that has memories."""

    id: str
    name: str
    type: str
    total_memories: int
    created_at: datetime
    updated_at: datetime
    owner: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class HistoryItem(Struct, kw_only=True):
    """One event in the life of a memory."""

    id: str
    memory_id: str
    event: str
    old_memory: str | None
    new_memory: str | None
    created_at: datetime
    updated_at: datetime
    is_deleted: bool
    user_id: str | None
    agent_id: str | None
    app_id: str | None
    run_id: str | None
    actor_id: str | None
    role: str | None
    metadata: dict[str, Any]
    input: list[Any] = field(default_factory=list)


class Text(Struct, frozen=True):
    """A text to add, and who said it."""

    text: str
    role: str | None = None
    actor: str | None = None


class Memories:
    """The memories in and below a scope."""

    def __init__(self, scope: AsyncScope, places: dict[str, ScopePath]) -> None:
        """Take the scopes in which memories were seen, which it adds to."""
        self.base: ScopePath = scope.path
        self._scope = scope
        self._store = scope._store
        self._places = places

    def filters(self, *given: Any) -> Filters:
        """Return conditions that are joined by AND; raises InvalidValueError."""
        return Filters(self.base, *given)

    async def add(
        self,
        texts: Sequence[Text],
        ids: dict[str, str],
        *,
        metadata: dict[str, Any] | None = None,
        created: datetime | None = None,
        expires: datetime | None = None,
        distinct: bool = True,
    ) -> list[AddOutcome]:
        """Add texts, all or none; with `distinct`, not those that the same ids and metadata have already."""
        if not texts:
            return []
        scope = self.base / user_scope(ids["user_id"]) if "user_id" in ids else self.base
        owned = {**(metadata or {}), **{name: ids[name] for name in ENTITIES[1:] if name in ids}}
        records: dict[str, Record] = {}
        for given in texts:
            meta = {**owned, **({"role": given.role} if given.role else {})}
            meta |= {"actor_id": given.actor} if given.actor else {}
            item = MemoryItem(text=given.text, metadata=meta, source="mem0", created=created, expires=expires)
            record = await redact_record(self._store, to_record(item, scope, "new"))
            key = digest_of((scope.path, record.text, record.meta)).hex() if distinct else new_id()
            records.setdefault(key, replace(record, key=key))

        async def add() -> list[AddOutcome]:
            events = {}
            puts = []
            found = await self._store.read([record.ref for record in records.values()]) if distinct else []
            known = {record.key: record for record in found if record is not None}
            for key, record in records.items():
                old = known.get(key)
                if old is None or old.text != record.text:  # it was changed: this text is not there any more
                    put = Put(record if old is None else replace(record, key=new_id()), 0)
                    puts.append(put)
                    events[key] = _event(put.record, "ADD")
                else:
                    events[key] = _event(old, "NONE")
            if puts:
                await self._store.write(Write(tuple(puts)))
            for event in events.values():
                self._saw(event.id, scope)
            return list(events.values())

        return await retry_conflicts(add, f"adding memories to {scope.path!r}")

    async def search(
        self, query: str, filters: Filters, k: int, *, min_score: float | None = None, explain: bool = False
    ) -> list[Mem0Memory]:
        """Return the best memories that pass the filters, best first."""
        hits = [hit for scope in filters.scopes for hit in await self._search_in(scope, query, filters, k, min_score)]
        hits.sort(key=lambda hit: -hit.score)
        found = []
        for hit in hits[:k]:
            one = self._memory(hit.record)
            force_setattr(one, "score", hit.score)
            if explain:
                force_setattr(one, "score_breakdown", dict(hit.why))
            found.append(one)
        return found

    async def _search_in(
        self, scope: ScopePath, query: str, filters: Filters, k: int, min_score: float | None
    ) -> list[Hit]:
        recall = partial(
            self._scope.scope(*scope.segments[len(self.base.segments) :]).recall,
            query,
            kinds=MEMORY,
            metadata=filters.hints.metadata,
            since=filters.hints.since,
            until=filters.hints.until,
            min_score=min_score,
            diverse=False,
        )
        return await best_passing(recall, k, lambda hit: filters.passes(hit.record), MOST_SEARCHED)

    async def find(self, filters: Filters, skip: int = 0, limit: int | None = None) -> tuple[int, list[Mem0Memory]]:
        """Return how many memories pass, and some of them: of each user, the newest first."""
        count = 0
        refs: list[Ref] = []
        for scope in filters.scopes:
            scan = Scan(
                scope=scope, kinds=(MEMORY,), below=True, where=filters.conditions, reverse=True,
                bodies=filters.reads_text,
            )  # fmt: skip
            async for record in scan_all(self._store, scan):
                if filters.passes(record):
                    if count >= skip and (limit is None or len(refs) < limit):
                        refs.append(record.ref)
                    count += 1
        found = await self._store.read(refs)
        return count, [self._memory(record) for record in found if record is not None]

    async def first(self, filters: Filters, limit: int) -> list[Mem0Memory]:
        """Return some memories that pass, as `find` does, without looking at the others."""
        found: list[Mem0Memory] = []
        for scope in filters.scopes if limit else ():
            page = min(limit, AT_ONCE)
            scan = Scan(scope=scope, kinds=(MEMORY,), below=True, where=filters.conditions, reverse=True, limit=page)
            async with aclosing(scan_all(self._store, scan)) as records:
                async for record in records:
                    if filters.passes(record):
                        found.append(self._memory(record))
                        if len(found) == limit:
                            return found
        return found

    async def get(self, id: str) -> Mem0Memory:
        """Return a memory; raises NotFoundError."""

        async def read(ref: Ref) -> Record:
            (record,) = await self._store.read([ref])
            if record is None:
                raise _missing(id)
            return record

        return self._memory(await self._at(id, read))

    async def update(self, id: str, changes: dict[str, Any], *, merge: bool = False) -> Mem0Memory:
        """Change the text, metadata, timestamp or expiration_date of a memory; raises NotFoundError.

        With `merge`, metadata that is not given stays.
        """
        given: dict[str, Any] = {}
        if changes.get("text") is not None:
            given |= {"text": check_text(changes["text"], "text"), "derived": {}}
        if changes.get("timestamp") is not None:
            given["created"] = time_of(changes["timestamp"], "timestamp")
        if "expiration_date" in changes:
            given["expires"] = expiry_of(changes["expiration_date"])
        metadata = changes.get("metadata")
        if not given and metadata is None:
            raise InvalidValueError("an update needs text, metadata, timestamp or expiration_date")

        def changed(old: Record) -> Record:
            owned = old.meta if merge else {name: value for name, value in old.meta.items() if name in OWNERS}
            return replace(old, **given, meta=old.meta if metadata is None else {**owned, **metadata})

        return self._memory(await self._at(id, lambda ref: update_memory(self._store, ref, changed)))

    async def delete(self, id: str) -> None:
        """Delete a memory, of whose history the events stay; raises NotFoundError."""
        await self._at(id, lambda ref: delete_memory(self._store, ref))

    async def history(self, id: str) -> list[HistoryItem]:
        """Return the events of a memory, of a deleted one without texts, oldest first; raises NotFoundError."""
        ref = await self._find(check_name(id, "id"))
        current = None if ref is None else (await self._store.read([ref]))[0]
        entries = await memory_history(self._store, self.base, id, current)
        if not entries:
            raise NotFoundError(f"there is no memory with the id {shown(id)}")
        return [
            HistoryItem(
                id=entry.id,
                memory_id=entry.memory_id,
                event=entry.event,
                old_memory=entry.old,
                new_memory=entry.new,
                created_at=entry.created,
                updated_at=entry.time,
                is_deleted=entry.event == "DELETE",
                user_id=user_of(entry.scope, self.base),
                agent_id=_name(entry.metadata.get("agent_id")),
                app_id=_name(entry.metadata.get("app_id")),
                run_id=_name(entry.metadata.get("run_id")),
                actor_id=_name(entry.metadata.get("actor_id")),
                role=_name(entry.metadata.get("role")),
                metadata=_own(entry.metadata),
            )
            for entry in entries
        ]

    async def delete_all(self, filters: Filters) -> int:
        """Delete the memories that pass, with their history, without a trace; return how many."""
        deleted = 0
        for scope in filters.scopes:
            # The history of a deleted memory has its metadata.
            scan = Scan(
                scope=scope, kinds=(MEMORY, HISTORY), below=True, where=filters.conditions, bodies=filters.reads_text
            )
            found: dict[ScopePath, list[Ref]] = {}
            async for record in scan_all(self._store, scan):
                if filters.passes(record):
                    found.setdefault(record.scope, []).append(record.ref)
            for place, refs in found.items():
                memories = [ref.key for ref in refs if ref.kind == MEMORY]
                for start in range(0, len(refs), AT_ONCE):
                    await delete_refs(self._store, refs[start : start + AT_ONCE])
                await delete_histories(self._store, place, memories)
                deleted += len(memories)
        await scrub(self._store)
        return deleted

    async def reset(self, user: str | None = None) -> int:
        """Delete all memories, or those of a user, with history and archive, without a trace; return how many."""
        scope = self.base if user is None else self.base / user_scope(user)
        deleted = 0
        streams = all_streams(self._store, StreamScan(scope=scope, kinds=(MEMORY, HISTORY, PRUNED), empty=True))
        for stream in [stream async for stream in streams]:
            (did,) = await self._store.write(Write((Purge(stream.scope, stream.kind, drop=True),)))
            deleted += did.count if stream.kind == MEMORY else 0
        await scrub(self._store)
        return deleted

    async def used(self, id: str) -> None:
        """Count a use of a memory; raises NotFoundError."""
        await self._scope.memories.used(await self._ref(id))

    async def entities(self) -> list[Entity]:
        """Return the users, agents, apps and runs that have memories, in order of type and name."""
        found: dict[tuple[str, str], Entity] = {}
        scan = Scan(scope=self.base, kinds=(MEMORY,), below=True, bodies=False)
        async for record in scan_all(self._store, scan):
            assert record.created is not None
            assert record.updated is not None
            names = {"user": user_of(record.scope, self.base)}
            names |= {name.removesuffix("_id"): _name(record.meta.get(name)) for name in ENTITIES[1:]}
            for type, name in names.items():
                if name is None:
                    continue
                if (known := found.get((type, name))) is None:
                    times = (record.created, record.updated)
                    found[type, name] = Entity(
                        id=name, name=name, type=type, total_memories=1, created_at=times[0], updated_at=times[1]
                    )
                else:
                    known.total_memories += 1
                    known.created_at = min(known.created_at, record.created)
                    known.updated_at = max(known.updated_at, record.updated)
        return [found[place] for place in sorted(found)]

    async def _at(self, id: str, work: Callable[[Ref], Awaitable[Result]]) -> Result:
        """Do something to a memory where it was last seen, or else where it is; raises NotFoundError."""
        place = self._places.get(check_name(id, "id"))
        if place is not None and self.base.contains(place):
            with suppress(NotFoundError):
                return await work(Ref(place, MEMORY, id))
        return await work(await self._ref(id))

    async def _ref(self, id: str) -> Ref:
        ref = await self._find(check_name(id, "id"))
        if ref is None:
            raise _missing(id)
        return ref

    async def _find(self, id: str) -> Ref | None:
        """Return where a memory is; raises InvalidValueError if several have the id."""
        likely = [Ref(self.base, MEMORY, id)]
        if (place := self._places.get(id)) is not None and self.base.contains(place):
            likely.append(Ref(place, MEMORY, id))
        for record in await self._store.read(likely):
            if record is not None:
                return record.ref
        where = (Condition("key", "eq", id),)
        scan = Scan(scope=self.base, kinds=(MEMORY,), below=True, where=where, bodies=False)
        found = [record.ref async for record in scan_all(self._store, scan)]
        if len(found) > 1:
            places = ", ".join(repr(ref.scope.path) for ref in found[:5])
            raise InvalidValueError(f"memories of several scopes have the id {shown(id)}: {places}")
        for ref in found:
            self._saw(id, ref.scope)
        return found[0] if found else None

    def _saw(self, id: str, scope: ScopePath) -> None:
        if len(self._places) >= PLACES:
            del self._places[next(iter(self._places))]
        self._places[id] = scope

    def _memory(self, record: Record) -> Mem0Memory:
        assert record.created is not None
        assert record.updated is not None
        self._saw(record.key, record.scope)
        text = record.text or ""
        run_id = _name(record.meta.get("run_id"))
        categories = record.meta.get("categories")
        return Mem0Memory(
            id=record.key,
            memory=text,
            hash=md5(text.encode(), usedforsecurity=False).hexdigest(),
            user_id=user_of(record.scope, self.base),
            agent_id=_name(record.meta.get("agent_id")),
            app_id=_name(record.meta.get("app_id")),
            run_id=run_id,
            session_id=run_id,
            actor_id=_name(record.meta.get("actor_id")),
            role=_name(record.meta.get("role")),
            metadata=_own(record.meta),
            categories=categories if isinstance(categories, list) else [],
            created_at=record.created,
            updated_at=record.updated,
            expiration_date=None if record.expires is None else f"{record.expires - MICROSECOND:%Y-%m-%d}",
        )


def _missing(id: str) -> NotFoundError:
    return NotFoundError(f"there is no memory with the id {shown(id)}")


def _event(record: Record, event: str) -> AddOutcome:
    text = record.text or ""
    role, actor = _name(record.meta.get("role")), _name(record.meta.get("actor_id"))
    return AddOutcome(id=record.key, memory=text, event=event, role=role, actor_id=actor, data={"memory": text})


def _own(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata that the user gave."""
    return {name: value for name, value in meta.items() if name not in OWNERS}


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None
