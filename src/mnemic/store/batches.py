"""Batches of independent conditional changes in one write."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConflictError
from .protocol import Store
from .query import Op, Write


async def write_each(store: Store, batch: Sequence[tuple[Op, ...]]) -> list[bool]:
    """Apply all changes of a batch in one write; skip those whose records have changed in the meantime.

    A change is one or more operations with version checks. Returns, for each, whether it was applied.
    """
    if not batch:
        return []
    try:
        await store.write(Write(tuple(op for ops in batch for op in ops)))
    except ConflictError:
        if len(batch) == 1:
            return [False]
        middle = len(batch) // 2
        return await write_each(store, batch[:middle]) + await write_each(store, batch[middle:])
    return [True] * len(batch)
