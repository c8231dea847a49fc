"""A store on a Mnemic server: each call is one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import json
from msgspec.structs import replace

from ...errors import UnreadableStoreError
from ...kinds import CLIENT_EMBEDDER, CLIENT_ENCRYPTION, CLIENT_FENCE, CLIENT_ROOT_FENCE
from ...recall.metrics import Metrics
from ...records import EMBEDDER_KIND, ENCRYPTION_KIND, FENCE_KIND, Match, Record, Ref, ScopePath, Stream, now
from ...store.protocol import Capability, Page, Scrubbed
from ...store.query import (
    Delete,
    Derive,
    Expect,
    Op,
    Outcome,
    Purge,
    Put,
    Scan,
    Search,
    StreamScan,
    Touch,
    Write,
    place_of,
)
from ...store.wire import CLOCK_HEADER, PATH, HistoryBegin, Matches, Outcomes, Records, Refs, ServedStore, to_wire
from ...telemetry.calls import UNKNOWN, Origin
from .client import HttpClient

Result = TypeVar("Result")

MARKERS = {EMBEDDER_KIND: CLIENT_EMBEDDER, ENCRYPTION_KIND: CLIENT_ENCRYPTION}
"""Kinds of records, at the root, of the layers of a client, and their names on a server, which has its own layers."""
_HIDDEN = frozenset({*MARKERS.values(), CLIENT_FENCE, CLIENT_ROOT_FENCE})

_records = json.Decoder(Records).decode
_outcomes = json.Decoder(Outcomes).decode
_page = json.Decoder(Page[Record]).decode
_streams = json.Decoder(Page[Stream]).decode
_found = json.Decoder(Matches).decode
_metrics = json.Decoder(Metrics).decode
_begin = json.Decoder(HistoryBegin).decode
_scrubbed = json.Decoder(Scrubbed).decode
_any = json.Decoder().decode


class HttpStore:
    """The records that an API key may use on a server, under the same scopes as there."""

    origin: Origin = UNKNOWN

    def __init__(self, client: HttpClient, served: ServedStore | None) -> None:
        """Take what the server says about itself; None if it does not answer, and need not."""
        self.clock: Callable[[], datetime] = now
        self.served = served
        self._client = client

    @property
    def capabilities(self) -> frozenset[Capability]:
        known = {one.value: one for one in Capability}
        names = ("atomic", "durable", "records") if self.served is None else self.served.capabilities
        has = {known[name] for name in names if name in known} - {Capability.NEAREST}
        return frozenset(has | {Capability.SEARCH, Capability.SHARED})

    async def write(self, write: Write) -> list[Outcome]:
        """Send a write; one whose answer is lost is repeated if the server can tell that it is the same."""
        sent = replace(write, ops=tuple(map(self._sent, write.ops))) if _names_markers(write) else write
        has_id = write.id is not None
        return (await self._client.write("write", sent, _outcomes, self._headers(), has_id=has_id)).outcomes

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        sent = [self._place(ref) for ref in refs]
        found: list[Record | None] = []
        while True:
            answer = await self._read("read", Refs(tuple(sent[len(found) :])), _records)
            found += answer.records  # the server sends a part of what would be a large answer
            if len(found) >= len(sent) or not answer.records:
                break
        if len(found) != len(sent):
            raise UnreadableStoreError(f"{self._client.url}: asked for {len(sent)} records, it sent {len(found)}")
        return [
            record if record is None or ref is place else replace(record, scope=ref.scope, kind=ref.kind)
            for ref, place, record in zip(refs, sent, found, strict=True)
        ]

    async def scan(self, scan: Scan) -> Page[Record]:
        if not scan.scope.path and len(scan.kinds) == 1 and scan.kinds[0] in MARKERS and not scan.below:
            place = self._place(Ref(scan.scope, scan.kinds[0], ""))
            page = await self._read("scan", to_wire(replace(scan, scope=place.scope, kinds=(place.kind,))), _page)
            return Page(tuple(replace(r, scope=scan.scope, kind=scan.kinds[0]) for r in page.items), page.cursor)
        page = await self._read("scan", to_wire(scan), _page)
        return Page(tuple(record for record in page.items if record.kind not in _HIDDEN), page.cursor)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        if scan.kinds == (FENCE_KIND,):
            inner = scan if scan.scope.path else replace(scan, scope=self._root)
            page = await self._read("streams", replace(inner, kinds=(CLIENT_FENCE, CLIENT_ROOT_FENCE)), _streams)
            return Page(tuple(_fences(scan, page.items)), page.cursor)
        page = await self._read("streams", scan, _streams)
        return Page(tuple(stream for stream in page.items if stream.kind not in _HIDDEN), page.cursor)

    async def search(self, search: Search) -> list[Match]:
        return (await self._read("search", to_wire(search), _found)).matches

    async def metrics(self) -> Metrics:
        """Return the recall metrics of the server; raises StorePermissionError without the right to administer it."""
        return await self._client.get("/api/v1/metrics", _metrics)

    async def history_since(self) -> datetime | None:
        """Return from when on the server has all earlier versions; None if it keeps none."""
        return (await self._client.get(f"{PATH}/history", _begin)).since

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Have the server scrub; what takes long is finished on the server itself."""
        return await self._client.write("scrub", {}, _scrubbed, self._headers(), has_id=True)

    async def erase(self, scope: ScopePath, **options: Any) -> Any:
        """Have the server erase a scope; return its certificate as JSON."""
        return await self._client.send("POST", _path("erase", scope), options, _any)

    async def set_hold(self, scope: ScopePath, reason: str, until: datetime | None) -> Any:
        """Set a hold on the server; return it as JSON."""
        asked = {"reason": reason, "until": until}
        return await self._client.send("POST", _path("holds", scope), asked, _any)

    async def holds(self, scope: ScopePath) -> Any:
        """Return the holds of a scope on the server, as JSON."""
        return (await self._client.get(_path("holds", scope), _any))["items"]

    async def release_hold(self, scope: ScopePath, id: str) -> Any:
        """Release a hold on the server; return it as JSON."""
        path = _path(f"holds/{quote(id, safe='')}", scope)
        return await self._client.send("DELETE", path, None, _any)

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, call: str, asked: Any, decode: Callable[[bytes], Result]) -> Result:
        return await self._client.read(call, asked, decode, self._headers())

    def _headers(self) -> dict[str, str]:
        return {} if self.clock is now else {CLOCK_HEADER: self.clock().isoformat()}

    @property
    def _root(self) -> ScopePath:
        """Where on the server the client's records of the root are."""
        return ScopePath("" if self.served is None else self.served.scope)

    def _place(self, ref: Ref) -> Ref:
        """Return the place of a record on the server."""
        if ref.scope.path or ref.kind not in MARKERS:
            return ref
        return Ref(self._root, MARKERS[ref.kind], ref.key)

    def _sent(self, op: Op) -> Op:
        if isinstance(op, Put):
            place = self._place(op.record.ref)
            return replace(op, record=replace(op.record, scope=place.scope, kind=place.kind))
        if isinstance(op, Delete | Derive):
            return replace(op, ref=self._place(op.ref))
        if isinstance(op, Touch | Expect | Purge) and op.kind == FENCE_KIND:
            root = not op.scope.path
            return replace(op, scope=self._root if root else op.scope, kind=CLIENT_ROOT_FENCE if root else CLIENT_FENCE)
        return op


def _fences(scan: StreamScan, found: Sequence[Stream]) -> Iterator[Stream]:
    """Yield the client's fences that a scan asks for, as the client knows them."""
    for stream in found:
        scope = ScopePath() if stream.kind == CLIENT_ROOT_FENCE else stream.scope
        if scope == scan.scope or (scan.below and scan.scope.contains(scope)):
            yield replace(stream, scope=scope, kind=FENCE_KIND)


def _path(name: str, scope: ScopePath) -> str:
    """Return the path of a call of the HTTP API that is about a scope."""
    return f"/api/v1/{name}?scope={quote(scope.path, safe='') or '/'}"


def _names_markers(write: Write) -> bool:
    places = map(place_of, write.ops)
    return any(kind == FENCE_KIND or (kind in MARKERS and not scope.path) for scope, kind, _ in places)
