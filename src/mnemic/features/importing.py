"""Imports records from outside: all of them are checked first, then those that are not stored yet are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

from msgspec import field
from msgspec.structs import replace

from ..checks import shown
from ..errors import ConflictError, MnemicError
from ..event_loop import off_loop
from ..recall.index_entry import USE
from ..records import EMBEDDER_KIND, ENCRYPTION_KIND, FACT, LEASE, Record, Ref, ScopePath, Value, digest
from ..store.protocol import Store, all_streams
from ..store.query import Derive, Op, Put, StreamScan, Touch, Write

INTERNAL = (ENCRYPTION_KIND, EMBEDDER_KIND, LEASE)
"""Kinds of records about a store itself, which are neither exported nor imported."""
WRITTEN_AT_ONCE = 1000
"""Maximum number of records in one write."""
SIZE_AT_ONCE = 4 * 1024 * 1024
"""Approximate number of characters from which a write takes no more records."""

ATTEMPTS = 10
"""Maximum number of attempts to write records that others write at the same time."""

Progress: TypeAlias = Callable[[int, int], object]
"""Called with how much is done, and the total."""


class Skipped(Value, frozen=True):
    """Items that an import left out for one reason: how many, and which was the first."""

    reason: str
    count: int
    first: str


class Imported(Value, frozen=True, kw_only=True):
    """Number of records in an import, how many of them were new or changed, and what was left out."""

    records: int
    written: int
    format: str = "mnemic"
    skipped: list[Skipped] = field(default_factory=list)


class Arrival(NamedTuple):
    """A record to import, the stored uses of a memory, and where it is from: the number of a line, or a name."""

    record: Record
    uses: bytes | None = None
    place: int | Callable[[], str] = 0


Incoming: TypeAlias = Arrival | Touch
Differs: TypeAlias = Callable[[Record, Record], None]
"""Called with a stored record and another one with the same key, which is then left out; or raises."""


class Source(NamedTuple):
    """Where records come from: it can be read again from its beginning."""

    read: Callable[[bool], Iterator[Incoming]]
    """Return the records from the beginning; weights are needed only if the argument is true."""
    position: Callable[[], int]
    """Return how much has been read, of `size`."""
    size: int


def refuse(stored: Record, given: Record) -> None:
    """Raise the ConflictError for a record that is stored with different content."""
    raise ConflictError(
        f"{given.kind} {shown(given.key)} of scope {given.scope.path!r} exists with different content: "
        "import with overwrite to replace it",
        key=given.key,
        current=stored.version,
    )


async def import_records(
    store: Store,
    scope: ScopePath,
    source: Source,
    *,
    overwrite: bool,
    dry_run: bool,
    progress: Progress | None,
    differs: Differs = refuse,
) -> Imported:
    """Check all records, then write those that `scope` does not have; with `dry_run`, only check and count.

    Raises what the source raises, and InvalidValueError or TooLargeError for a record that cannot be stored, before
    anything is written.
    """
    empty = await _is_empty(store, scope)
    found = _Import(store, overwrite, differs)
    for writing in (False,) if dry_run else (False, True):
        found.records = found.written = 0
        batches = _batches(source.read(writing or not empty))
        while batch := await off_loop(lambda batches=batches: next(batches, None)):  # type: ignore[misc]
            if writing or not empty:
                await found.take(batch, write=writing)
            else:
                found.count(batch)
            if progress is not None:
                progress(source.position() + (source.size if writing else 0), source.size * (1 if dry_run else 2))
    return Imported(records=found.records, written=found.written)


async def _is_empty(store: Store, scope: ScopePath) -> bool:
    async with aclosing(all_streams(store, StreamScan(scope=scope, empty=True, limit=10))) as streams:
        async for stream in streams:
            if stream.kind not in INTERNAL:
                return False
    return True


def _batches(incoming: Iterable[Incoming]) -> Iterator[list[Op]]:
    """Yield operations of one scope each, which create records; raises for a record that cannot be stored."""
    batch: list[Op] = []
    scope: ScopePath | None = None
    size = 0
    for one in incoming:
        if isinstance(one, Touch):
            ops: list[Op] = [one]
            where = one.scope
        else:
            record = one.record
            where = record.scope
            try:
                put = Put(record, 0, record.updated)
            except MnemicError as error:
                place = f"line {one.place:,}" if isinstance(one.place, int) else one.place()
                raise type(error)(f"{place}: {error}") from None
            ops = [put] if one.uses is None else [put, Derive(record.ref, USE, one.uses)]
            size += len(record.text or "")
        if batch and (where != scope or len(batch) >= WRITTEN_AT_ONCE or size > SIZE_AT_ONCE):
            yield batch
            batch, size = [], 0
        scope = where
        batch += ops
    if batch:
        yield batch


class _Import:
    def __init__(self, store: Store, overwrite: bool, differs: Differs) -> None:
        self.store = store
        self.overwrite = overwrite
        self.differs = differs
        self.records = self.written = 0

    def count(self, batch: list[Op]) -> None:
        """Count records that are all new."""
        new = sum([op.__class__ is Put for op in batch])
        self.records += new
        self.written += new

    async def take(self, batch: list[Op], *, write: bool) -> None:
        """Compare records with the stored ones, and write what is missing."""
        puts = [op for op in batch if isinstance(op, Put)]
        new = await self._write(batch, puts) if write else await self._missing(puts)
        self.records += len(puts)
        self.written += len(new)

    async def _write(self, batch: list[Op], puts: list[Put]) -> list[Put]:
        """Write the records that are missing, at first taking all for new; return them."""
        ops, new = batch, puts
        for last in [False] * ATTEMPTS + [True]:
            try:
                if ops:
                    await self.store.write(Write(tuple(map(self._complete, ops)), lazy=True))
                break
            except ConflictError:  # some are stored already, or another writer was faster
                if last:
                    raise
            new = await self._missing(puts)
            refs = {put.record.ref for put in new}
            rest = [op for op in batch if isinstance(op, Touch) or (isinstance(op, Derive) and op.ref in refs)]
            ops = [*new, *rest]
        return new

    async def _missing(self, puts: list[Put]) -> list[Put]:
        known = {r.ref: r for r in await self.store.read([put.record.ref for put in puts]) if r is not None}
        missing: dict[Ref, Put] = {}
        for put in puts:
            ref = put.record.ref
            old = missing[ref].record if ref in missing else known.get(ref)
            if old is None:
                missing[ref] = put
            elif digest(old) != digest(_with_times(put.record, old)):
                if not self.overwrite:
                    self.differs(old, put.record)
                else:
                    missing[ref] = Put(put.record, known[ref].version if ref in known else 0, put.updated)
        return list(missing.values())

    def _complete(self, op: Op) -> Op:
        """Return an operation with the time from which a new fact is true, if the source does not tell."""
        if isinstance(op, Put) and op.record.kind == FACT and op.record.valid_from is None:
            return replace(op, record=replace(op.record, valid_from=self.store.clock()))
        return op


def _with_times(given: Record, old: Record) -> Record:
    """Return a record with the times of the stored one where the source does not tell any."""
    if given.created is not None and (given.kind != FACT or given.valid_from is not None):
        return given
    starts = old.valid_from if given.kind == FACT and given.valid_from is None else given.valid_from
    return replace(given, created=given.created or old.created, valid_from=starts)
