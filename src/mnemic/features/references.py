"""From what recall returned, or a key alone, to the one record that a caller means."""

from __future__ import annotations

from typing import TypeAlias

from ..checks import check_choice, check_name, shown
from ..errors import InvalidValueError
from ..records import Record, Ref, ScopePath
from ..store.protocol import Store, all_streams
from ..store.query import StreamScan
from .fading import Faded
from .hits import Hit
from .kinds import MEMORY, RECALLED
from .memory_items import MemoryItem

Reference: TypeAlias = str | Hit | Faded | MemoryItem | Record | Ref
"""What names a record: a hit, a memory, the record itself, its ref (scope, kind and key), or a key alone."""

READ_AT_ONCE = 500
"""How many places are looked at together for a key."""


async def find_ref(store: Store, scope: ScopePath, given: Reference, kind: str) -> Ref:
    """Return where the record lies that a caller means.

    A key alone is that of a record of this kind in the scope, or else of the only record, of any kind that recall
    finds, in the scope or below it. Raises InvalidValueError if there are several, or it lies in another scope.
    """
    if not isinstance(given, str):
        return ref_of(given, scope)
    ref = Ref(scope, kind, check_name(given, "id"))
    there = (await store.read([ref]))[0] is not None
    return ref if there else await find_key(store, scope, given) or ref


def ref_of(given: Hit | Faded | MemoryItem | Record | Ref, scope: ScopePath) -> Ref:
    """Return where a record lies.

    Raises InvalidValueError unless it is one that recall finds in the scope or below it.
    """
    if isinstance(given, MemoryItem):
        given = Ref(given.scope, MEMORY, given.id)
    elif isinstance(given, Hit | Faded):
        given = given.record
    if not isinstance(given, Record | Ref):
        raise InvalidValueError(
            f"a record is named by a hit, an item, a record, a ref or an id: {shown(given)}"
        )
    ref = given if isinstance(given, Ref) else given.ref
    check_name(ref.key, "id")
    check_choice(ref.kind, "kind", RECALLED)
    if not scope.holds(ref.scope):
        raise InvalidValueError(
            f"{shown(ref.key)} lies in {ref.scope.path!r}, which is not in {scope.path!r}"
        )
    return ref


async def find_key(store: Store, scope: ScopePath, key: str) -> Ref | None:
    """Return the one record with this key that recall could find in a scope or below it, if there is one.

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
