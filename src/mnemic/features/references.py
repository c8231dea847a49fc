"""From what recall returned, or a key alone, to the one record that a caller means."""

from __future__ import annotations

from typing import TypeAlias

from ..checks import check_choice, check_name, shown
from ..errors import InvalidValueError
from ..records import Hit, Record, Ref, ScopePath
from ..store.protocol import Store, all_streams
from ..store.query import StreamScan
from .kinds import RECALLED

Reference: TypeAlias = str | Hit | Record | Ref
"""A record: a hit, the record itself, its ref (scope, kind and key), or a key alone."""

READ_AT_ONCE = 500
"""How many places are looked at together for a key."""


def ref_of(given: Hit | Record | Ref, home: ScopePath) -> Ref:
    """Return where a record lies.

    Raises InvalidValueError unless it is one that recall finds in the scope `home` or below it.
    """
    # A hit, whichever layer made it, has its record; so has a `Faded`.
    found = getattr(given, "record", given)
    if not isinstance(found, Record | Ref):
        raise InvalidValueError(f"a record is named by a hit, a record, a ref or a key: {shown(given)}")
    ref = found if isinstance(found, Ref) else found.ref
    check_name(ref.key, "key")
    check_choice(ref.kind, "kind", RECALLED)
    if not home.holds(ref.scope):
        raise InvalidValueError(f"{shown(ref.key)} lies in {ref.scope.path!r}, which is not in {home.path!r}")
    return ref


async def find_key(store: Store, home: ScopePath, key: str) -> Ref | None:
    """Return the one record with this key that recall could find in a scope or below it, if there is one.

    Raises InvalidValueError if there are several.
    """
    check_name(key, "key")
    scan = StreamScan(scope=home, kinds=RECALLED)
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
