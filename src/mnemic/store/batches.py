"""Batches of independent conditional changes, in one write for each scope."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConflictError
from ..records import ScopePath
from .protocol import Store
from .query import Op, Write, place_of


async def write_each(store: Store, batch: Sequence[tuple[Op, ...]]) -> list[bool]:
    """Apply all changes of a batch; skip those whose records have changed in the meantime.

    A change is one or more operations with version checks in one scope; those of a scope share a write. Returns, for
    each, whether it was applied.
    """
    by_scope: dict[ScopePath, list[int]] = {}
    for n, ops in enumerate(batch):
        by_scope.setdefault(place_of(ops[0])[0], []).append(n)
    applied = [False] * len(batch)
    for numbers in by_scope.values():
        for n, done in zip(numbers, await _write_some(store, [batch[n] for n in numbers]), strict=True):
            applied[n] = done
    return applied


async def _write_some(store: Store, batch: Sequence[tuple[Op, ...]]) -> list[bool]:
    try:
        await store.write(Write(tuple(op for ops in batch for op in ops)))
    except ConflictError:
        if len(batch) == 1:
            return [False]
        middle = len(batch) // 2
        return await _write_some(store, batch[:middle]) + await _write_some(store, batch[middle:])
    return [True] * len(batch)
