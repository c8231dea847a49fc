"""Counts and purges the streams of a scope and everything below it."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from ..errors import DecryptionError, UnreadableStoreError
from ..layers.layer import layers_of
from ..records import (
    ARCHIVED,
    EMBEDDER_KIND,
    ENCRYPTION_KIND,
    ERASURE_KIND,
    FACT,
    GUARD,
    HISTORY,
    JOURNAL,
    KEPT,
    LEASE,
    MEMORY,
    MESSAGE,
    NOTE,
    PROGRESS,
    PRUNED,
    SUMMARY,
    TITLE,
    UNLISTED,
    VAULT,
    ScopePath,
)
from ..store.protocol import Store, all_streams
from ..store.query import Purge, StreamScan, Write

INTERNAL = (*KEPT, EMBEDDER_KIND, ERASURE_KIND, VAULT, *UNLISTED)
"""Kinds of internal records, which are not counted as records of the scope."""
ERASED = (
    MESSAGE, ARCHIVED, SUMMARY, TITLE, MEMORY, PRUNED, NOTE, FACT, GUARD, HISTORY, JOURNAL, PROGRESS, LEASE,
    VAULT, *UNLISTED,
)  # fmt: skip
"""Kinds that are purged in each scope together, whether or not they were listed."""

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
            if stream.kind not in (*KEPT, ENCRYPTION_KIND, ERASURE_KIND):
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
    return sum(n for kinds in streams.values() for kind, n in kinds.items() if kind not in INTERNAL)


def backend_of(store: Store) -> Store:
    """Return the back-end below all layers of a store."""
    *_, backend = layers_of(store)
    return backend
