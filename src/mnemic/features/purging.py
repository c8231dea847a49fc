"""Counts and purges the streams of a scope and everything below it."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from ..errors import DecryptionError, UnreadableStoreError
from ..kinds import KINDS
from ..layers.layer import backend_of
from ..records import UNLISTED, ScopePath
from ..store.protocol import Store, all_streams
from ..store.query import Purge, StreamScan, Write

COUNTED = frozenset(name for name, kind in KINDS.items() if kind.erasing == "counted")
"""Kinds that are counted as records of the scope, as are kinds that are not known."""
ERASED = tuple(name for name, kind in KINDS.items() if kind.erasing in ("counted", "uncounted"))
"""Kinds that are purged in each scope together, whether or not they were listed."""
NOT_PURGED = frozenset(name for name, kind in KINDS.items() if kind.erasing in ("apart", "kept"))
"""Kinds that an erasure keeps, or deletes in a step of its own."""

Streams: TypeAlias = dict[ScopePath, Counter[str]]
"""How many records of each kind a scope has."""


async def streams_of(store: Store, scope: ScopePath, *, empty: bool = False) -> Streams:
    """Return how many records of each kind there are, by scope, without those that are kept."""
    try:
        return await _streams_of(store, scope, empty)
    except (DecryptionError, UnreadableStoreError):  # the settings of a session, which are not needed
        return await _streams_of(backend_of(store), scope, empty)


async def _streams_of(store: Store, scope: ScopePath, empty: bool) -> Streams:
    found: Streams = {}
    for kinds in ((), UNLISTED):
        async for stream in all_streams(store, StreamScan(scope=scope, kinds=kinds, empty=empty)):
            if stream.kind not in NOT_PURGED:
                found.setdefault(stream.scope, Counter())[stream.kind] = stream.count
    return found


async def purge(store: Store, scope: ScopePath, kinds: set[str], *, expired_only: bool = False) -> Counter[str]:
    """Delete streams of a scope, or what has expired in them, all or none; return how many records of each.

    With VERSION among them, no earlier versions of the records are kept.
    """
    ops = tuple(Purge(scope, kind, (), expired_only, drop=not expired_only) for kind in sorted(kinds))
    outcomes = await store.write(Write(ops))
    return Counter({op.kind: outcome.count for op, outcome in zip(ops, outcomes, strict=True)})


async def compact(store: Store, scope: ScopePath) -> int:
    """Delete what has expired in a scope and below; return how many records."""
    found = await streams_of(store, scope, empty=True)
    return total({at: await purge(store, at, set(kinds), expired_only=True) for at, kinds in found.items()})


def total(streams: Streams) -> int:
    """Return how many records there are, without internal ones."""
    return sum(n for kinds in streams.values() for kind, n in kinds.items() if kind in COUNTED or kind not in KINDS)
