"""LangGraph's long-term memory in Mnemic: a `BaseStore`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Unpack

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
)
from msgspec.structs import replace

from ..checks import check_count, check_name, check_names, check_number, check_ttl, from_segment, shown, to_segment
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..features.hits import best_passing
from ..features.memory_items import MemoryItem, to_item
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, ClosesMemory, MemoryAccess, sync_and_async
from ..records import MEMORY, Ref, ScopePath
from ..scope import AsyncScope
from ..store.matching import conditions
from ..store.query import Scan
from .foreign import find_part, replace_part

SOURCE = "langgraph"
"""Source of the memories that are written here, and the name of what only LangGraph needs in their `data`."""
CONTENT = ("content", "data", "fact", "memory", "page_content", "text", "value")
"""Names of fields that say nothing about their content: it is indexed without them."""
LONGEST = 10**12
"""More minutes than any time to live has."""
MOST_AT_ONCE = 1000
"""How many items one call of the store reads at most."""
REFRESHED = 0.9
"""A read renews a time to live once less than this part of it is left, so that not every read is a write."""


class MnemicStore(ClosesMemory, BaseStore):
    """LangGraph's long-term memory: each namespace is a scope, and each item a memory of that scope.

    The value of an item is the memory's metadata, and its text is made of the indexed fields; recall finds it like any
    other memory. Memories that were written without LangGraph are items too, with their text as `text`.
    """

    supports_ttl = True

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        fields: Sequence[str] | None = None,
        ttl: TTLConfig | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Keep items below a scope, or in a memory, given as such or as a URL that is opened on first use.

        `fields` are the paths within a value that are indexed, by default all; `options` are those of `mnemic.open`.
        """
        if isinstance(index := options.get("index"), Mapping):
            raise InvalidValueError(f"there are no dims and no embed to configure: give fields=…, not {shown(index)}")
        if ttl is not None and not isinstance(ttl, Mapping):
            raise InvalidValueError(f"ttl is a dict such as {{'default_ttl': 60}}, in minutes: {shown(ttl)}")
        self._memory = MemoryAccess(memory, options=options)
        self._fields = check_names(fields, "fields") if fields else None
        self.ttl_config = ttl

    async def _batch(self, scope: AsyncScope, ops: Iterable[Op]) -> list[Result]:
        """Run operations: reads see what was there before the batch, and the last of several puts of a key wins."""
        results: list[Result] = []
        puts: dict[tuple[str, ...], dict[str, MemoryItem | None]] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts.setdefault(op.namespace, {})[check_name(op.key, "key")] = self._memory_item(op, scope.now)
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(await _get(scope, op))
            elif isinstance(op, SearchOp):
                results.append(await _search(scope, op))
            elif isinstance(op, ListNamespacesOp):
                results.append(await _list_namespaces(scope, op))
            else:
                raise InvalidValueError(f"unknown operation of a LangGraph store: {shown(op)}")
        for namespace, items in puts.items():
            place = _below(scope, namespace)
            if written := [item for item in items.values() if item is not None]:
                await place.memories.add_many(written)
            if deleted := [Ref(place.path, MEMORY, key) for key, item in items.items() if item is None]:
                await place.memories.delete(*deleted)
        return results

    batch, abatch = sync_and_async(_batch)

    def _memory_item(self, op: PutOp, now: datetime) -> MemoryItem | None:
        """Return a value as a memory; a sentence that is all of its text is stored there alone. None deletes."""
        if op.value is None:
            return None
        if not isinstance(op.value, Mapping):
            raise InvalidValueError(f"the value of a LangGraph item is a dict: {shown(op.value)}")
        value, own = dict(op.value), dict[str, Any]()
        text = _text(value, self._fields if op.index is None else op.index)
        if " " in text and (path := find_part(value, text)):
            value, own["text_at"] = replace_part(value, path, None), path
        expires = None
        if op.ttl is not None:
            own["ttl"] = min(check_number(op.ttl, "ttl", least=0), LONGEST)
            expires = now + check_ttl(timedelta(minutes=own["ttl"]))
        return MemoryItem(text, op.key, metadata=value, source=SOURCE, expires=expires, data={SOURCE: own})


async def _get(scope: AsyncScope, op: GetOp) -> Item | None:
    place = _below(scope, op.namespace)
    try:
        found = await place.memories.get(Ref(place.path, MEMORY, check_name(op.key, "key")))
    except NotFoundError:
        return None
    await _refresh(place, [found] if op.refresh_ttl else [])
    return Item(key=found.id, namespace=op.namespace, **_fields(found))


async def _search(scope: AsyncScope, op: SearchOp) -> list[SearchItem]:
    """Return the items that recall finds or, without a query, all: by namespace, oldest first."""
    place = _below(scope, op.namespace_prefix)
    wanted = check_count(op.limit, "limit") + check_count(op.offset, "offset")
    found = (await _recall(place, op, wanted) if op.query else await _list(place, op, wanted))[op.offset : wanted]
    await _refresh(place, [item for item, _ in found] if op.refresh_ttl else [])
    return [SearchItem(_namespace(scope, item.scope), item.id, score=score, **_fields(item)) for item, score in found]


async def _recall(place: AsyncScope, op: SearchOp, wanted: int) -> list[tuple[MemoryItem, float | None]]:
    assert op.query is not None
    exact = _comparable(op.filter or {})
    recall = partial(place.recall, op.query, kinds=MEMORY, metadata=exact, diverse=False, uses=not op.filter)
    hits = await best_passing(recall, wanted, lambda hit: _passes(to_item(hit.record), op.filter))
    return [(to_item(hit.record), hit.score) for hit in hits]


async def _list(place: AsyncScope, op: SearchOp, wanted: int) -> list[tuple[MemoryItem, float | None]]:
    """Return the first items that pass; the store is asked for no more than may be needed."""
    where, most = conditions(_comparable(op.filter or {})), min(wanted, MOST_AT_ONCE)
    scan = Scan(scope=place.path, kinds=(MEMORY,), below=True, where=where, limit=most)
    found: list[tuple[MemoryItem, float | None]] = []
    while len(found) < wanted:
        page = await place._store.scan(scan)
        found += [(item, None) for item in map(to_item, page.items) if _passes(item, op.filter)]
        if page.cursor is None:
            break
        scan = replace(scan, cursor=page.cursor, limit=min(2 * scan.limit, MOST_AT_ONCE))
    return found


async def _list_namespaces(scope: AsyncScope, op: ListNamespacesOp) -> list[tuple[str, ...]]:
    found = {_namespace(scope, stats.scope) for stats in await scope.scopes() if stats.memories}
    matching = {one[: op.max_depth] for one in found if all(_fits(one, test) for test in op.match_conditions or ())}
    return sorted(matching)[op.offset : op.offset + op.limit]


async def _refresh(place: AsyncScope, items: Iterable[MemoryItem]) -> None:
    """Renew the time to live of items that were read."""
    for item in items:
        ttl = timedelta(minutes=_own(item).get("ttl") or 0)
        if item.expires is not None and ttl and item.expires - place.now < REFRESHED * ttl:
            with suppress(ConflictError, NotFoundError):  # written or deleted meanwhile
                await place.memories.update(item, ttl=ttl, if_version=item.version)


# ---------------------------------------------------------------- namespaces


def _below(scope: AsyncScope, namespace: Sequence[str]) -> AsyncScope:
    return scope.scope(*(to_segment(label, "namespace label") for label in namespace))


def _namespace(scope: AsyncScope, path: ScopePath) -> tuple[str, ...]:
    return tuple(map(from_segment, path.segments[len(scope.path.segments) :]))


def _fits(namespace: tuple[str, ...], test: MatchCondition) -> bool:
    if test.match_type not in ("prefix", "suffix"):
        raise InvalidValueError(f"a namespace is matched by its prefix or suffix: {shown(test.match_type)}")
    start = 0 if test.match_type == "prefix" else len(namespace) - len(test.path)
    compared = zip(namespace[max(start, 0) :], test.path, strict=False)
    return len(namespace) >= len(test.path) and all(name in ("*", label) for label, name in compared)


# ---------------------------------------------------------------- values


def _own(item: MemoryItem) -> dict[str, Any]:
    own = item.data.get(SOURCE) if isinstance(item.data, dict) else None
    return own if isinstance(own, dict) else {}


def _value(item: MemoryItem) -> dict[str, Any]:
    if not isinstance(item.data, dict) or SOURCE not in item.data:
        return {**item.metadata, "text": item.text}
    path = _own(item).get("text_at")
    return replace_part(dict(item.metadata), path, item.text) if path else dict(item.metadata)


def _fields(item: MemoryItem) -> dict[str, Any]:
    return {"value": _value(item), "created_at": item.created, "updated_at": item.updated}


def _text(value: Mapping[str, Any], fields: Sequence[str] | Literal[False] | None) -> str:
    """Return the text of the indexed fields of a value; `False` is for none, None for all."""
    found: list[str] = []
    for field in ["$"] if fields is None else check_names(fields, "index") if fields else ():
        found += _lines(value) if field == "$" else get_text_at_path(value, field)
    return "\n".join(found)


def _lines(value: Any, name: str = "content") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _lines(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _lines(inner, name)
    elif value is not None:
        yield str(value) if name in CONTENT else f"{name}: {value}"


_COMPARISONS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def _comparable(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that every item has that passes the filter, as far as the store can compare it, for `conditions`.

    A sentence may be in the text of an item, and numbers equal booleans in Python.
    """
    found: dict[str, Any] = {}
    for name, wanted in filter.items():
        value = wanted["$eq"] if isinstance(wanted, Mapping) and "$eq" in wanted else wanted
        if name != "text" and (value is None or isinstance(value, int | float) or _is_word(value)):
            either = [int(value), bool(value)] if not isinstance(value, str) and value in (0, 1) else value
            with suppress(InvalidValueError):  # such as a number that no item has
                conditions({name: either})
                found[name] = either
    return found


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and " " not in value


def _passes(item: MemoryItem, filter: Mapping[str, Any] | None) -> bool:
    if not filter:
        return True
    value = _value(item)
    return all(_matches(value.get(name), wanted) for name, wanted in filter.items())


def _matches(value: Any, wanted: Any) -> bool:
    """Return whether a value is what a filter wants; only numbers are greater or less than others."""
    if not isinstance(wanted, Mapping):
        if not isinstance(wanted, list | tuple) or not isinstance(value, list):
            return bool(value == wanted)
        return len(value) == len(wanted) and all(map(_matches, value, wanted))
    if any(name.startswith("$") for name in wanted):
        return all(_compare(value, name, other) for name, other in wanted.items())
    return isinstance(value, Mapping) and all(_matches(value.get(name), other) for name, other in wanted.items())


def _compare(value: Any, name: str, other: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == other) is (name == "$eq")
    if name not in _COMPARISONS:
        raise InvalidValueError(f"a filter compares with $eq, $ne, {', '.join(_COMPARISONS)}: {shown(name)}")
    try:
        return bool(_COMPARISONS[name](float(value), float(other)))
    except (TypeError, ValueError):
        return False
