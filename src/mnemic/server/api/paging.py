"""Pages of records: a scan with a limit and a cursor, whose items are in order of creation."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, json
from msgspec.structs import replace

from ...checks import shown
from ...errors import InvalidValueError
from ...records import Record, digest_of
from ...store.protocol import Page
from ...store.query import Scan
from ..endpoint import ApiCall, PageQuery

Item = TypeVar("Item")
Placed = TypeVar("Placed", bound=Struct)
FEW = 32
"""How many records are read first, to learn how large they are."""
MOST_BYTES = 8 * 1024 * 1024
"""Size at which an answer ends, with a cursor for the rest."""
Order: TypeAlias = Annotated[
    Literal["newest", "oldest"],
    Meta(description="Which page comes first. The items of a page are oldest first in both cases."),
]

_encode = json.Encoder().encode


async def read_page(
    call: ApiCall, scan: Scan, query: PageQuery, to_item: Callable[[Record], Item], order: Order = "oldest"
) -> Page[Item]:
    """Return one page of a scan, with fewer items than the limit if they are large.

    Raises InvalidValueError for a cursor that is not of this scan.
    """
    newest = order == "newest"
    cursor = decode_cursor(call, query.cursor, order)

    async def some(start: int, count: int) -> tuple[Record, ...]:
        nonlocal cursor
        page = await call.store.scan(replace(scan, limit=count, cursor=cursor, reverse=newest))
        cursor = page.cursor
        return page.items

    found = await read_in_steps(some, query.limit, _size, lambda: cursor is None)
    items = reversed(found) if newest else found
    return Page(tuple(map(to_item, items)), encode_cursor(call, cursor, order))


async def read_in_steps(
    read: Callable[[int, int], Awaitable[Sequence[Item]]],
    count: int,
    size_of: Callable[[Sequence[Item]], int],
    ended: Callable[[], bool],
) -> list[Item]:
    """Return items, read in steps until there are `count`, there are no more, or they have `MOST_BYTES`."""
    items: list[Item] = []
    size, step = 0, FEW
    while True:
        some = await read(len(items), min(step, count - len(items)))
        items += some
        size += size_of(some)
        if ended() or len(items) >= count or size >= MOST_BYTES:
            return items
        if items:
            step = max(1, int((MOST_BYTES - size) / max(size / len(items), 1)))


def _size(records: Sequence[Record]) -> int:
    return sum(len(one.text or "") + len(_encode(one.data)) + len(_encode(one.meta)) for one in records)


def encode_cursor(call: ApiCall, place: str | None, order: str) -> str | None:
    """Return a place in a list of this call's scope as an opaque text; None stays None."""
    if place is None:
        return None
    return urlsafe_b64encode(_list_of(call, order) + place.encode()).decode().rstrip("=")


def decode_cursor(call: ApiCall, cursor: str | None, order: str) -> str | None:
    """Return the place that a cursor means; raises InvalidValueError if it is not one of this list and order."""
    if cursor is None:
        return None
    try:
        given = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        place = given.removeprefix(_list_of(call, order)).decode()
    except ValueError:
        place = ""
    if encode_cursor(call, place, order) != cursor:
        raise InvalidValueError(f"cursor must be that of the page before, of the same list: {shown(cursor)}")
    return place


def _list_of(call: ApiCall, order: str) -> bytes:
    """Return a few bytes that differ between lists, scopes and orders."""
    return digest_of((call.request.url.path, call.path.path, order))[:6]


def encode_place(call: ApiCall, place: Struct | None, order: str) -> str | None:
    """Return a place in a list as a cursor; None stays None."""
    return encode_cursor(call, None if place is None else _encode(place).decode(), order)


def decode_place(call: ApiCall, cursor: str | None, order: str, kind: type[Placed]) -> Placed | None:
    """Return the place that a cursor means; raises InvalidValueError if it is not one of this list and order."""
    place = decode_cursor(call, cursor, order)
    try:
        return None if place is None else json.decode(place, type=kind)
    except (DecodeError, ValidationError):
        raise InvalidValueError(f"cursor must be that of the page before, of the same list: {shown(cursor)}") from None
