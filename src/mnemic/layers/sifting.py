"""Filtered scans in layers: pages stay full and complete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from ..records import Record
from ..store.matching import to_cursor
from ..store.protocol import Page, Store
from ..store.query import Scan

LEAST, MOST = 64, 1000
"""How many records are read from below at once."""

Sieve: TypeAlias = Callable[[Sequence[Record]], Awaitable[list[Record | None]]]
"""Returns each record as the caller sees it, None for a hidden one."""


async def sifted(below: Store, scan: Scan, sieve: Sieve) -> Page[Record]:
    """Return the page of a scan over the records that pass the filter."""
    if not scan.limit:
        await below.scan(scan)  # raises for a closed store, and for an invalid cursor
        return Page(())
    found: list[Record] = []
    skip, size = scan.skip, min(max(scan.skip + scan.limit, LEAST), MOST)
    asked = replace(scan, skip=0, limit=size)
    while True:
        page = await below.scan(asked)
        for n, record in enumerate(await sieve(page.items)):
            if record is None:
                continue
            if skip:
                skip -= 1
                continue
            found.append(record)
            if len(found) == scan.limit:
                last = n == len(page.items) - 1 and page.cursor is None
                here = to_cursor((record.scope.path, record.kind, record.seq))
                return Page(tuple(found), None if last else here)
        if page.cursor is None:
            return Page(tuple(found))
        asked = replace(asked, cursor=page.cursor, limit=min(2 * asked.limit, MOST))
