"""The newest records of a scan by the time of their creation, page by page, without loading all of them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import timedelta
from heapq import nlargest
from typing import TypeAlias

from msgspec import DecodeError, ValidationError, json
from msgspec.structs import replace

from ..checks import from_microseconds, shown, to_microseconds
from ..errors import InvalidValueError
from ..records import Record
from .protocol import Page, Store, all_streams, scan_pages
from .query import Condition, Scan, StreamScan

Place: TypeAlias = tuple[int, str, int]
"""Where a record stands in this order: microseconds of its creation, scope, seq."""

GROWTH = 8
"""How much further back each attempt looks, if the one before found too few."""


async def newest(store: Store, scan: Scan, keep: Callable[[Record], bool] = lambda record: True) -> Page[Record]:
    """Return the newest records of a scan that pass `keep`, newest first, at most `scan.limit`, 1 or more.

    Order and cursor go by creation time over all streams of the scan, in whatever order they were written. The
    store is asked for a period that should hold a page, judging by the totals of the streams, and for a longer one
    if it does not. Raises InvalidValueError for an invalid cursor.
    """
    streams = [
        one async for one in all_streams(store, StreamScan(scope=scan.scope, kinds=scan.kinds, below=scan.below))
    ]
    if not streams:
        return Page(())
    before = None if scan.cursor is None else _place(scan.cursor)
    end = max(one.updated for one in streams)
    if before is not None:
        end = min(end, from_microseconds(before[0]))
        scan = replace(scan, where=(*scan.where, Condition("created", "le", end)))
    begin = min(one.created for one in streams)
    share = 2 * (scan.limit + 1) / sum(one.count for one in streams)
    period = (max(one.updated for one in streams) - begin) * min(share, 1) + timedelta(seconds=1)
    while True:
        whole = end - period <= begin
        where = scan.where if whole else (*scan.where, Condition("created", "gt", end - period))
        best: list[Record] = []
        async for page in scan_pages(store, replace(scan, where=where, cursor=None, limit=1000)):
            found = [one for one in page if (before is None or place_of(one) < before) and keep(one)]
            best = nlargest(scan.limit + 1, [*best, *found], key=place_of)
        if whole or len(best) > scan.limit:
            break
        period *= GROWTH
    items = tuple(best[: scan.limit])
    return Page(items, _cursor(place_of(items[-1])) if len(best) > scan.limit else None)


def place_of(record: Record) -> Place:
    """Return where a stored record stands in this order."""
    assert record.created is not None
    return (to_microseconds(record.created), record.scope.path, record.seq)


def _cursor(place: Place) -> str:
    return urlsafe_b64encode(json.encode(place)).decode()


def _place(cursor: str) -> Place:
    try:
        place: Place = json.decode(urlsafe_b64decode(cursor), type=Place)
        from_microseconds(place[0])
    except (DecodeError, ValidationError, ValueError, TypeError, OverflowError):
        raise InvalidValueError(f"invalid cursor: {shown(cursor)}") from None
    return place
