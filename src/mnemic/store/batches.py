"""Many small changes that are written together, of which some may be in another's way."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConflictError
from .protocol import Store
from .query import Op, Write


async def write_each(store: Store, batch: Sequence[tuple[Op, ...]]) -> list[bool]:
    """Do all changes of a batch at once; those whose records have changed meanwhile are left out.

    Each change is one or several operations, guarded by versions. Returns which of them were done.
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
