"""CrewAI's unified memory: `MnemicMemory` for crews, agents and flows, over the memories of scopes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID, uuid5

from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.memory_events import MemoryQueryCompletedEvent, MemoryQueryFailedEvent, MemoryQueryStartedEvent
from crewai.memory.analyze import analyze_for_save
from crewai.memory.types import MemoryMatch, MemoryRecord, ScopeInfo
from crewai.memory.unified_memory import Memory
from crewai.memory.utils import join_scope_paths

from ..checks import check_several, from_segment, to_segment
from ..errors import InvalidValueError, NotFoundError
from ..features.hits import Hit, best_passing
from ..features.memory_items import MemoryItem, to_item
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, ClosesMemory, MemoryAccess, sync_and_async
from ..records import MEMORY, Ref, ScopePath
from ..scope import AsyncScope
from ..store.protocol import scan_all
from ..store.query import Scan
from ..transfer.json_stream import clean_text
from .foreign import require

require("crewai", "1.15", "1.16", "crewai")

CREWAI = "crewai"
"""In the metadata of a memory: its categories, whether it is private, and what the program has under this name."""
OWN_FIELDS = {"categories", "private", "metadata"}
MOST_SEARCHED = 1000
"""How many hits a recall looks through for those of the categories, and those that are not private."""
DELETED = 500
"""How many memories one write deletes."""
NAMESPACE = UUID("0a5a4d4e-5f0c-5b0e-9d5e-3c1f2f9d7c11")
"""Of ids that are made of a text, its scope and source, so that the same text is found again."""


class MnemicMemory(Memory):
    """A memory for `Crew(memory=…)`, `Agent(memory=…)` or a flow; it needs neither an LLM nor an embedder.

    A scope such as "/company/alice" of CrewAI is the scope `company/alice` below the given one. With an `llm`, scope,
    categories and importance that are not given are inferred, and outputs of tasks are split into memories; without
    one they are stored as they are.
    """

    def __init__(self, memory: AnyMemory = OWN, **given: Any) -> None:
        """Take a scope, a memory or a URL, fields of CrewAI's `Memory`, and options of `mnemic.open` for a URL."""
        options: Any = {name: given.pop(name) for name in OpenOptions.__annotations__ if name in given}
        if unknown := given.keys() - (Memory.model_fields.keys() - {"storage"}):
            raise InvalidValueError(f"MnemicMemory has no parameter {', '.join(sorted(unknown))}")
        super().__init__(storage=MnemicStorage(memory, options), embedder=lambda texts: [], **given)

    @property
    def _memories(self) -> MnemicStorage:
        assert isinstance(self._storage, MnemicStorage)
        return self._storage

    def _encode_batch(
        self,
        contents: list[str],
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        source: str | None = None,
        private: bool = False,
        root_scope: str | None = None,
    ) -> list[MemoryRecord]:
        records = []
        for content in map(clean_text, contents):
            place, labels, weight, meta = scope, categories, importance, dict(metadata or {})
            if "llm" in self.model_fields_set and None in (scope, categories, importance):
                known = self._memories.get_scope_info(root_scope or "/")
                found = analyze_for_save(content, known.child_scopes, known.categories, self._llm)
                place = found.suggested_scope if place is None else place
                labels = found.categories if labels is None else labels
                weight = found.importance if weight is None else weight
                meta = {**found.extracted_metadata.model_dump(exclude_defaults=True), **meta}
            records.append(
                MemoryRecord(
                    content=content,
                    scope=join_scope_paths(root_scope, place),
                    categories=labels or [],
                    metadata=meta,
                    importance=self.default_importance if weight is None else weight,
                    source=source,
                    private=private,
                )
            )
        return self._memories.add(records)

    def extract_memories(self, content: str) -> list[str]:
        """Return the memories that the LLM finds in a text; without an LLM, the text."""
        if "llm" in self.model_fields_set:
            return super().extract_memories(content)
        return [content] if content.strip() else []

    def recall(
        self,
        query: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        limit: int = 10,
        depth: Literal["shallow", "deep"] = "deep",
        source: str | None = None,
        include_private: bool = False,
    ) -> list[MemoryMatch]:
        """Return the memories of a scope and below that answer a question, best first; `depth` does not matter."""
        self.drain_writes()
        place = join_scope_paths(self.root_scope, scope) if self.root_scope else scope
        event: dict[str, Any] = {"query": query, "limit": limit, "source_type": "unified_memory"}
        crewai_event_bus.emit(self, MemoryQueryStartedEvent(**event))
        start = time.perf_counter()
        try:
            reader = None if include_private else source or ""
            found = self._memories.recall(query, place, categories, limit, reader, not self.read_only)
        except Exception as error:
            crewai_event_bus.emit(self, MemoryQueryFailedEvent(**event, error=str(error)))
            raise
        took = (time.perf_counter() - start) * 1000
        crewai_event_bus.emit(self, MemoryQueryCompletedEvent(**event, results=found, query_time_ms=took))
        return found


class MnemicStorage(ClosesMemory):
    """Records of CrewAI as memories: a storage back-end that also searches by text."""

    def __init__(self, memory: AnyMemory = OWN, options: OpenOptions | None = None) -> None:
        self._memory = MemoryAccess(memory, options=options)

    async def _add(self, root: AsyncScope, records: Sequence[MemoryRecord]) -> list[MemoryRecord]:
        """Store records, and return them; a text that a scope has already is not stored again."""
        added = []
        for record in records:
            same = str(uuid5(NAMESPACE, json.dumps([record.scope, record.content, record.source, record.private])))
            place = _place(root, record.scope)
            try:
                known = _record(root, await place.memories.get(Ref(place.path, MEMORY, same)))
            except NotFoundError:
                record.id, known = same, None
            if known is None or known.content != record.content:  # it was changed: this text is not there any more
                await place.memories.add_many([_item(record)])
                known = record
            added.append(known)
        return added

    async def _recall(
        self,
        root: AsyncScope,
        query: str,
        scope: str | None,
        categories: Sequence[str] | None,
        limit: int,
        reader: str | None,
        uses: bool,
    ) -> list[MemoryMatch]:
        """Return the best memories of a scope and below; private ones only of the source `reader`, or with None all."""

        def passes(hit: Hit) -> bool:
            record = _record(root, to_item(hit.record))
            is_shown = not record.private or reader in (None, record.source)
            return is_shown and (not asked or not {*asked}.isdisjoint(record.categories))

        asked = check_several(categories, "categories") if categories else None
        if limit <= 0 or not query.strip():
            return []
        recall = partial(_place(root, scope).recall, query, kinds=MEMORY, uses=uses)
        return [
            MemoryMatch(record=_record(root, to_item(hit.record)), score=hit.score, match_reasons=_reasons(hit))
            for hit in await best_passing(recall, limit, passes, MOST_SEARCHED)
        ]

    async def _save(self, root: AsyncScope, records: list[MemoryRecord]) -> None:
        for path in dict.fromkeys(record.scope for record in records):
            await _place(root, path).memories.add_many([_item(one) for one in records if one.scope == path])

    async def _update(self, root: AsyncScope, record: MemoryRecord) -> None:
        old, new = await root.memories.get(record.id), _item(record)
        if _path(root, old.scope) == join_scope_paths(None, record.scope):
            await root.memories.update(
                old, text=new.text, importance=new.importance, metadata=new.metadata, source=new.source
            )
        else:  # a memory does not change its scope, so it is written in the new one first
            await self._save(root, [record])
            await root.memories.delete(old)

    async def _get_record(self, root: AsyncScope, record_id: str) -> MemoryRecord | None:
        try:
            return _record(root, await root.memories.get(record_id))
        except (NotFoundError, InvalidValueError):
            return None

    async def _list_records(
        self, root: AsyncScope, scope_prefix: str | None = None, limit: int = 200, offset: int = 0
    ) -> list[MemoryRecord]:
        found = await _records(root, scope_prefix) if limit > 0 and offset >= 0 else []
        return found[offset : offset + limit]

    async def _delete(
        self,
        root: AsyncScope,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Delete the memories that match all that is given, none for an empty `record_ids`; return their number."""
        ids = None if record_ids is None else {*check_several(record_ids, "record_ids")}
        names = {*check_several(categories, "categories")} if categories else None

        def matches(record: MemoryRecord) -> bool:
            return (
                (ids is None or record.id in ids)
                and (names is None or not names.isdisjoint(record.categories))
                and (older_than is None or _aware(record.created_at) < _aware(older_than))
                and all(record.metadata.get(name) == value for name, value in (metadata_filter or {}).items())
            )

        found = [record for record in await _records(root, scope_prefix) if matches(record)]
        refs = [Ref(_place(root, record.scope).path, MEMORY, record.id) for record in found]
        steps = range(0, len(refs), DELETED)
        return sum([await root.memories.delete(*refs[start : start + DELETED]) for start in steps])

    async def _reset(self, root: AsyncScope, scope_prefix: str | None = None) -> None:
        await self._delete(root, scope_prefix)

    async def _get_scope_info(self, root: AsyncScope, scope: str) -> ScopeInfo:
        found, path = await _records(root, scope), scope.rstrip("/") or "/"
        below = [record.scope[len(path.rstrip("/")) + 1 :].partition("/")[0] for record in found]
        return ScopeInfo(
            path=path,
            record_count=len(found),
            categories=sorted({name for record in found for name in record.categories}),
            oldest_record=found[-1].created_at if found else None,
            newest_record=found[0].created_at if found else None,
            child_scopes=sorted({f"{path.rstrip('/')}/{name}" for name in below if name}),
        )

    async def _list_categories(self, root: AsyncScope, scope_prefix: str | None = None) -> dict[str, int]:
        return dict(Counter(name for record in await _records(root, scope_prefix) for name in record.categories))

    add = sync_and_async(_add)[0]
    recall = sync_and_async(_recall)[0]
    save, asave = sync_and_async(_save)
    update = sync_and_async(_update)[0]
    get_record = sync_and_async(_get_record)[0]
    list_records = sync_and_async(_list_records)[0]
    delete, adelete = sync_and_async(_delete)
    reset = sync_and_async(_reset)[0]
    get_scope_info = sync_and_async(_get_scope_info)[0]
    list_categories = sync_and_async(_list_categories)[0]

    def list_scopes(self, parent: str = "/") -> list[str]:
        return self.get_scope_info(parent).child_scopes

    def count(self, scope_prefix: str | None = None) -> int:
        return self.get_scope_info(scope_prefix or "/").record_count

    def search(self, query_embedding: list[float], *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError("Mnemic searches by text, not by an embedding: use MnemicMemory.recall")

    asearch = search


def _place(root: AsyncScope, path: str | None) -> AsyncScope:
    return root.scope(*(to_segment(name, "scope") for name in (path or "").split("/") if name))


def _path(root: AsyncScope, scope: ScopePath) -> str:
    return "/" + "/".join(from_segment(segment) for segment in scope.segments[len(root.path.segments) :])


def _aware(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _reasons(hit: Hit) -> list[str]:
    return sorted(hit.why, key=lambda name: -hit.why[name])


def _item(record: MemoryRecord) -> MemoryItem:
    own: dict[str, Any] = {"categories": record.categories} if record.categories else {}
    if record.private:
        own["private"] = True
    if CREWAI in record.metadata:
        own["metadata"] = record.metadata[CREWAI]
    return MemoryItem(
        text=clean_text(record.content),
        id=record.id,
        importance=record.importance,
        metadata={**record.metadata, CREWAI: own} if own else record.metadata,
        source=record.source or None,
        created=_aware(record.created_at),
    )


def _record(root: AsyncScope, item: MemoryItem) -> MemoryRecord:
    """Return a memory, also one that did not come from CrewAI, as CrewAI's record; its times are UTC without a zone."""
    metadata = dict(item.metadata)
    own: dict[str, Any] = {}
    if isinstance(found := metadata.get(CREWAI), dict) and found.keys() <= OWN_FIELDS:
        own = metadata.pop(CREWAI)
    if "metadata" in own:
        metadata[CREWAI] = own["metadata"]
    times = [(time or datetime.now(UTC)).astimezone(UTC).replace(tzinfo=None) for time in (item.created, item.updated)]
    return MemoryRecord.model_construct(  # without validation: it was stored
        id=item.id,
        content=item.text,
        scope=_path(root, item.scope),
        categories=own.get("categories", []),
        metadata=metadata,
        importance=min(item.importance, 1.0),
        created_at=times[0],
        last_accessed=times[1],
        source=item.source,
        private=own.get("private", False),
    )


async def _records(root: AsyncScope, path: str | None) -> list[MemoryRecord]:
    """Return the memories of a scope and below, newest first."""
    scan = Scan(scope=_place(root, path).path, kinds=(MEMORY,), below=True, reverse=True)
    found = [_record(root, to_item(record)) async for record in scan_all(root._store, scan)]
    return sorted(found, key=lambda record: record.created_at, reverse=True)
