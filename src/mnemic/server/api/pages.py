"""Pages of records: a scan with a limit and a cursor, whose items are in order of creation."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from ...checks import shown
from ...errors import InvalidValueError
from ...records import Record
from ...store.protocol import Page
from ...store.query import Scan
from ..endpoint import Call, PageQuery

Item = TypeVar("Item")
Order: TypeAlias = Annotated[
    Literal["newest", "oldest"],
    Meta(description="Which page comes first. The items of a page are oldest first in both cases."),
]


async def read_page(
    call: Call, scan: Scan, query: PageQuery, to_item: Callable[[Record], Item], order: Order = "oldest"
) -> Page[Item]:
    """Return one page of a scan; raises InvalidValueError for a cursor that is not of this scan."""
    newest = order == "newest"
    scan = replace(scan, limit=query.limit, cursor=decode_cursor(query.cursor, order), reverse=newest)
    page = await call.store.scan(scan)
    items = reversed(page.items) if newest else page.items
    return Page(tuple(map(to_item, items)), encode_cursor(page.cursor, order))


def encode_cursor(place: str | None, order: str) -> str | None:
    """Return a place in a list as an opaque text; None stays None."""
    return None if place is None else urlsafe_b64encode(f"{order[0]}{place}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, order: str) -> str | None:
    """Return the place that a cursor means; raises InvalidValueError if it is not one of this order."""
    if cursor is None:
        return None
    try:
        place = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
    except ValueError:
        place = ""
    if not place.startswith(order[0]) or encode_cursor(place[1:], order) != cursor:
        raise InvalidValueError(f"cursor must be that of the page before, of the same list: {shown(cursor)}")
    return place[1:]
