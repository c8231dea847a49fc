"""Resolves hits, items and ids to records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..checks import check_choice, check_name, shown
from ..errors import InvalidValueError
from ..records import Record, Ref, ScopePath
from ..store.protocol import Store, all_streams
from ..store.query import Delete, StreamScan, Write
from .fading import Faded
from .hits import Hit
from .kinds import MEMORY, RECALLED
from .memory_items import MemoryItem

Reference: TypeAlias = str | Hit | Faded | MemoryItem | Record | Ref
"""References to a record: a hit, a memory, the record, its ref (scope, kind and key), or an id."""

READ_AT_ONCE = 500
"""How many scopes are searched at once for an id."""


async def find_ref(store: Store, scope: ScopePath, given: Reference, kind: str) -> Ref:
    """Return the ref of the referenced record.

    An id means the record of this kind in the scope or, if there is none, the only record with that id that
    recall finds in the scope or below. Raises InvalidValueError if it is ambiguous, or in another scope.
    """
    if not isinstance(given, str):
        return ref_of(given, scope)
    ref = Ref(scope, kind, check_name(given, "id"))
    there = (await store.read([ref]))[0] is not None
    return ref if there else await find_key(store, scope, given) or ref


def ref_of(given: Hit | Faded | MemoryItem | Record | Ref, scope: ScopePath) -> Ref:
    """Return the ref of a record.

    Raises InvalidValueError unless recall finds its kind, in the scope or below.
    """
    if isinstance(given, MemoryItem):
        given = Ref(given.scope, MEMORY, given.id)
    elif isinstance(given, Hit | Faded):
        given = given.record
    if not isinstance(given, Record | Ref):
        raise InvalidValueError(f"a record is named by a hit, an item, a record, a ref or an id: {shown(given)}")
    ref = given if isinstance(given, Ref) else given.ref
    check_name(ref.key, "id")
    check_choice(ref.kind, "kind", RECALLED)
    if not scope.holds(ref.scope):
        raise InvalidValueError(f"{shown(ref.key)} is in {ref.scope.path!r}, which is not in {scope.path!r}")
    return ref


async def delete_refs(store: Store, refs: Sequence[Ref]) -> int:
    """Delete records, those of one scope in one write; return how many existed."""
    deleted = 0
    for scope in dict.fromkeys(ref.scope for ref in refs):
        here = dict.fromkeys(ref for ref in refs if ref.scope == scope)
        outcomes = await store.write(Write(tuple(Delete(ref) for ref in here)))
        deleted += sum(len(outcome.removed) for outcome in outcomes)
    return deleted


async def find_key(store: Store, scope: ScopePath, key: str) -> Ref | None:
    """Return the only record with this key that recall finds in a scope or below, or None.

    Raises InvalidValueError if there are several.
    """
    check_name(key, "key")
    scan = StreamScan(scope=scope, kinds=RECALLED)
    places = [Ref(s.scope, s.kind, key) async for s in all_streams(store, scan)]
    found: list[Ref] = []
    for start in range(0, len(places), READ_AT_ONCE):
        records = await store.read(places[start : start + READ_AT_ONCE])
        found += [record.ref for record in records if record is not None]
    if len(found) > 1:
        where = ", ".join(f"{ref.kind} in {ref.scope.path!r}" for ref in found[:3])
        raise InvalidValueError(
            f"{len(found)} records have the key {shown(key)} ({where}{' …' if len(found) > 3 else ''}): "
            "name one by its hit, its record or its ref"
        )
    return found[0] if found else None
