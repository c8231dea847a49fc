"""Finds personal data and secrets in what is stored already, and redacts it in place."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from msgspec import field
from msgspec.structs import force_setattr, replace

from ..errors import InvalidValueError
from ..event_loop import off_loop
from ..layers.hold import HoldLayer
from ..layers.index import IndexLayer
from ..layers.layer import backend_of, find_layer
from ..layers.redact import RedactLayer
from ..layers.restricted import RestrictedLayer, confined, require, unrestricted
from ..records import FACT, GUARD, VERSION, Record, Ref, ScopePath, Value
from ..redaction.config import Redacting, Redaction, redaction_of
from ..redaction.redactor import Redacted
from ..store.protocol import Capability, Store, all_streams, scan_pages, scrub
from ..store.query import Delete, Op, Put, Scan, StreamScan
from ..store.retry import write_each

READ_AT_ONCE = 200
"""How many records are read at once."""
ATTEMPTS = 10
"""How often a record that others change meanwhile is redacted again."""


class FoundCount(Value, frozen=True, kw_only=True):
    """How many findings of a recognizer there are in records of a kind, and in how many records."""

    kind: str
    recognizer: str
    findings: int
    records: int


class Scanned(Value, frozen=True, kw_only=True):
    """Result of a scan: how many records were read, how many have findings, what was found, and what was redacted.

    `kind` is "version" for earlier versions that the history keeps. `left` are records that others kept changing, and
    those under a legal hold.
    """

    records: int
    matched: int
    mended: int = 0
    left: int = 0
    found: list[FoundCount] = field(default_factory=list)


class RedactionScan:
    """Scans a scope and those below it.

    Redacted records pass all layers, so that they are audited. If a history keeps what they replace, the versions are
    redacted afterwards, below the history. What is under a legal hold stays as it is.
    """

    def __init__(self, store: Store, redact: Redacting, *, mend: bool) -> None:
        """Raise InvalidValueError for a redaction in place of the one that the memory has."""
        layer = find_layer(store, RedactLayer)
        redaction = None if redact is True else redaction_of(redact)
        if redaction is not None and layer is not None:
            raise InvalidValueError(
                "this memory redacts with its own configuration: open it without redact to scan with another one"
            )
        if redaction is not None and redaction.vault is not None:
            raise InvalidValueError("to scan with a vault, open the memory with it: mnemic.open(url, redact=…)")
        self._layer = layer or RedactLayer(store, redaction or Redaction())
        self._store = store
        self._index = _index_of(store)
        self._hold = find_layer(store, HoldLayer)
        self._mend = mend
        self._read = self._matched = self._mended = self._left = 0
        self._found: dict[tuple[str, str], list[int]] = {}
        self._began = store.clock()

    async def run(self, scope: ScopePath, progress: Callable[[int, int], object] | None) -> Scanned:
        """Read everything that is visible, and redact it if asked to; raises AccessDeniedError without the rights."""
        require(self._store, "read")
        if self._mend:
            require(self._store, "write")
        reached = self._store.reach(scope) if isinstance(self._store, RestrictedLayer) else scope
        if reached is not None:
            with confined(self._store):  # versions are read and written below the layer that confines
                await self._run(reached, progress)
        found = [
            FoundCount(kind=kind, recognizer=name, findings=findings, records=records)
            for (kind, name), (findings, records) in sorted(self._found.items())
        ]
        return Scanned(records=self._read, matched=self._matched, mended=self._mended, left=self._left, found=found)

    async def _run(self, scope: ScopePath, progress: Callable[[int, int], object] | None) -> None:
        total = 0
        for store, kinds in ((self._store, ()), (self._index, (VERSION,))):
            if store is None:
                continue
            every = all_streams(store, StreamScan(scope=scope, kinds=kinds))
            streams = [stream async for stream in every if kinds or self._layer.covers(stream.scope, stream.kind)]
            total += sum(stream.count for stream in streams)
            for stream in streams:
                scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=READ_AT_ONCE)
                async for page in scan_pages(store, scan):
                    await self._page(page)
                    if progress is not None:
                        progress(self._read, max(total, self._read))
        if self._mended:
            await scrub(self._index or unrestricted(self._store))

    async def _page(self, records: tuple[Record, ...]) -> None:
        matched = await self._findings(records)
        self._read += sum(map(self._counts, records))
        for record, _, found in matched:
            if not self._counts(record):
                continue
            self._matched += 1
            for name, count in found.counts.items():
                both = self._found.setdefault((record.kind, name), [0, 0])
                both[0] += count
                both[1] += 1
        if self._mend and matched:
            await self._redact(matched)

    def _counts(self, record: Record) -> bool:
        """Return whether a record was there before, and is not a version that was kept of what was just redacted."""
        return record.kind != VERSION or record.created is None or record.created < self._began

    async def _findings(self, records: tuple[Record, ...]) -> list[tuple[Record, Record, Redacted]]:
        """Return the records that have findings, as they are redacted, with their findings."""

        def look() -> list[tuple[Record, Record, Redacted]]:
            found = []
            for record in records:
                into = Redacted()
                changed = self._layer.redacted(record, into)
                if into:
                    found.append((record, changed, into))
            return found

        return await off_loop(look)

    async def _redact(self, batch: list[tuple[Record, Record, Redacted]]) -> None:
        """Write redacted records; those that others have changed meanwhile are read and redacted again."""
        for _ in range(ATTEMPTS):
            holds = [] if self._hold is None else await self._hold.active()
            free = [one for one in batch if not any(hold.covers(one[0].scope) for hold in holds)]
            self._left += len(batch) - len(free)
            if not free:
                return
            for record, _, found in free:
                await self._layer.keep(record.scope, found)
            store = self._index if free[0][0].kind == VERSION and self._index is not None else self._store
            done = await write_each(store, [_changes(record, changed) for record, changed, _ in free])
            self._mended += sum(did and self._counts(one) for (one, *_), did in zip(free, done, strict=True))
            refs = [record.ref for (record, *_), written in zip(free, done, strict=True) if not written]
            current = tuple(record for record in await store.read(refs) if record is not None) if refs else ()
            batch = await self._findings(current)
        self._left += len(batch)


def _changes(record: Record, changed: Record) -> tuple[Op, ...]:
    """Return the operations that replace a record; a fact gets another key, and its guard goes."""
    put = _put(changed, record)
    if changed.key == record.key:
        return (put,)
    ops: tuple[Op, ...] = (Delete(record.ref, record.version), put)
    if record.kind == FACT and (pair := record.labels.get("pair")) is not None:
        ops += (Delete(Ref(record.scope, GUARD, pair)),)
    return ops


def _put(changed: Record, record: Record) -> Put:
    same = changed.key == record.key
    put = Put(replace(changed, data=None, derived={}), record.version if same else None, record.updated)
    # It was checked when it was stored; a version may be longer than other records.
    whole = copy(put.record)
    force_setattr(whole, "data", changed.data)
    force_setattr(put, "record", whole)
    return put


def _index_of(store: Store) -> Store | None:
    """Return the index layer of a store, which is below the history; None if a server has the history."""
    return None if Capability.SEARCH in backend_of(store).capabilities else find_layer(store, IndexLayer)
