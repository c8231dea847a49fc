"""Records: the calls of a store, for `mnemic.open("http://…")`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any

from msgspec import json
from msgspec.structs import replace
from starlette.responses import Response

from ...errors import InvalidValueError
from ...layers.history import history_since
from ...layers.redact import refuse_clear
from ...records import Record, Stream
from ...store.protocol import Page, Scrubbed, scrub
from ...store.query import StreamScan, Write
from ...store.wire import (
    CLOCK_HEADER,
    PATH,
    SERVER_HEADER,
    HistoryBegin,
    Matches,
    Outcomes,
    Records,
    Refs,
    ServedStore,
    WireScan,
    WireSearch,
    from_wire,
)
from ..decoding import JSON_TYPE
from ..endpoint import Answer, ApiCall, Example, endpoint
from ..idempotency import done_once, server_id, server_stamp
from .paging import read_in_steps

MOST_ITEMS, MOST_MATCHES = 1000, 10_000
"""Largest number of records or streams, and of matches, in an answer."""
_encode = json.Encoder().encode
WHERE = {"path": "acme/alice"}
WHEN = "2026-01-31T09:30:00Z"
STORE = {
    "version": "0.1.0",
    "server": "5f0c2d77e1b84a903e8",
    "scope": "acme",
    "rights": ["read", "write"],
    "capabilities": ["atomic", "durable", "records", "shared"],
}


@endpoint(
    "GET", PATH, right="read", summary="The store, as the key may use it", tag="store", scoped=False,
    example=Example(answer=STORE),
)  # fmt: skip
async def describe_store(call: ApiCall) -> Answer[ServedStore]:
    """The first request of `mnemic.open("http://…")`."""
    access = call.access
    return _answer(
        ServedStore(
            version=version("mnemic"),
            server=server_id(),
            scope=access.scope.path,
            rights=tuple(sorted(access.rights)),
            capabilities=tuple(sorted(one.value for one in call.store.capabilities)),
        )
    )


@endpoint(
    "POST", f"{PATH}/read", right="read", summary="Read records", tag="store", scoped=False,
    example=Example(body={"refs": [{"scope": WHERE, "kind": "note", "key": "none"}]}, answer={"records": [None]}),
)  # fmt: skip
async def read_records(call: ApiCall, body: Refs) -> Answer[Records]:
    """The record of each ref, null for one that does not exist; only of the first refs if the answer would be large."""
    _check_clock(call)
    refs = body.refs[:MOST_ITEMS]

    async def some(start: int, count: int) -> Sequence[Record | None]:
        return await call.store.read(refs[start : start + count])

    parts = await _sized(some, len(refs))
    return _encoded(b'{"records":[%s]}' % b",".join(parts))


@endpoint(
    "POST", f"{PATH}/scan", right="read", summary="Read records of a stream, or of all below a scope", tag="store",
    scoped=False,
    example=Example(body={"scope": WHERE, "kinds": ["summary"], "limit": 10}, answer={"items": [], "cursor": None}),
)  # fmt: skip
async def scan_records(call: ApiCall, body: WireScan) -> Answer[Page[Record]]:
    """A page of records; one with a `cursor` is not the last, however few it has."""
    _check_clock(call)
    scan = from_wire(body)
    cursor: str | None = None

    async def some(start: int, count: int) -> Sequence[Record]:
        nonlocal cursor
        rest = replace(scan, limit=count) if cursor is None else replace(scan, limit=count, cursor=cursor, skip=0)
        page = await call.store.scan(rest)
        cursor = page.cursor
        return page.items

    parts = await _sized(some, min(scan.limit, MOST_ITEMS), lambda: cursor is None)
    return _encoded(b'{"items":[%s],"cursor":%s}' % (b",".join(parts), _encode(cursor)))


@endpoint(
    "POST", f"{PATH}/streams", right="read", summary="List streams", tag="store", scoped=False,
    example=Example(body={"scope": WHERE, "kinds": ["summary"]}, answer={"items": [], "cursor": None}),
)  # fmt: skip
async def scan_streams(call: ApiCall, body: StreamScan) -> Answer[Page[Stream]]:
    """A page of streams, by scope and kind."""
    _check_clock(call)
    return _answer(await call.store.streams(replace(body, limit=min(body.limit, MOST_ITEMS))))


@endpoint(
    "POST", f"{PATH}/search", right="read", summary="Search records", tag="store", scoped=False,
    example=Example(body={"scope": WHERE, "query": "coffee", "limit": 0}, answer={"matches": []}),
)  # fmt: skip
async def search_records(call: ApiCall, body: WireSearch) -> Answer[Matches]:
    """The records that answer a query, best first."""
    _check_clock(call)
    search = from_wire(body)
    if search.limit > MOST_MATCHES:
        raise InvalidValueError(f"a search on a server finds at most {MOST_MATCHES:,} records, not {search.limit:,}")
    return _answer(Matches(await call.store.search(search)))


@endpoint(
    "POST", f"{PATH}/write", right="write", summary="Change records of a scope", tag="store", scoped=False,
    problems=(408, 409, 412),
    example=Example(
        body={"ops": [{"op": "put", "record": {"scope": WHERE, "kind": "note", "key": "plan", "data": {"value": 1}}}]},
        answer={"outcomes": [{"seq": 1, "version": 1, "created": WHEN, "updated": WHEN, "key": "plan"}]},
    ),
)  # fmt: skip
async def write_records(call: ApiCall, body: Write) -> Answer[Outcomes]:
    """Apply all operations, or none.

    A write with the header `Mnemic-Write`, a random id, can be repeated for a while: it is not done again. The
    repetition names the process that was first asked, by `Mnemic-Server`; another one refuses it with status 412. With
    `Mnemic-Deadline`, a process and a time on its clock as its answers have them in `Mnemic-Server`, the write is not
    begun later. A server that redacts refuses a write in which it finds something: its client redacts, so that it knows
    what is stored.
    """
    _check_clock(call)
    await refuse_clear(call.store, body)
    return _answer(Outcomes(await done_once(call, lambda: call.store.write(body))))


@endpoint(
    "GET", f"{PATH}/history", right="read", summary="When the history begins", tag="store", scoped=False,
    example=Example(answer={"since": WHEN}),
)  # fmt: skip
async def describe_history(call: ApiCall) -> Answer[HistoryBegin]:
    """From when on all earlier versions are there; null if the server keeps none."""
    return _answer(HistoryBegin(await history_since(call.store)))


@endpoint("POST", f"{PATH}/scrub", right="erase", summary="Make deleted data unreadable", tag="store", scoped=False,
          example=Example(answer={"removed": {}, "unreached": []}))  # fmt: skip
async def scrub_store(call: ApiCall) -> Answer[Scrubbed]:
    """Deleted data is overwritten in the files of stores that keep it for a while."""
    return _answer(await scrub(call.store))


async def _sized(
    read: Callable[[int, int], Awaitable[Sequence[Any]]], count: int, ended: Callable[[], bool] = lambda: False
) -> list[bytes]:
    """Return items as JSON, read in steps."""
    parts: list[bytes] = []

    def encode(some: Sequence[Any]) -> int:
        parts.append(_encode(some)[1:-1])
        return len(parts[-1])

    await read_in_steps(read, count, encode, ended)
    return [part for part in parts if part]


def _answer(value: Any) -> Answer[Any]:
    return Answer(value, headers={SERVER_HEADER: server_stamp()})


def _encoded(content: bytes) -> Answer[Any]:
    """Return an answer that is encoded already."""
    response: Any = Response(content, headers={SERVER_HEADER: server_stamp()}, media_type=JSON_TYPE)
    return response  # type: ignore[no-any-return]


def _check_clock(call: ApiCall) -> None:
    if CLOCK_HEADER in call.request.headers:
        raise InvalidValueError("the clock of a memory on a server is the server's: open it without clock")
