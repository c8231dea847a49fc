"""Imports records from outside: all of them are checked first, then those that are not stored yet are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import NamedTuple, TypeAlias

from msgspec import field
from msgspec.structs import replace

from ..checks import check_text, shown
from ..errors import ConflictError, InvalidValueError, MnemicError, SettingsChangedError, UnreadableStoreError
from ..event_loop import off_loop
from ..kinds import KINDS
from ..layers.redact import MERGED_FACTS, redact_ops
from ..layers.restricted import RestrictedLayer
from ..recall.index_entry import USE
from ..records import (
    ARCHIVED,
    FACT,
    HISTORY,
    JOURNAL,
    MEMORY,
    MESSAGE,
    NOTE,
    PROGRESS,
    PRUNED,
    SUMMARY,
    TITLE,
    Record,
    Ref,
    ScopePath,
    Value,
    digest,
    now,
)
from ..redaction.redactor import TOKEN
from ..store.protocol import Store, all_streams
from ..store.query import Derive, Op, Put, StreamScan, Touch, Write
from .hits import to_item_of
from .memory_history import to_history_entry
from .memory_items import check_importance, from_archive
from .notes import note_settings
from .session_log import LimitedLog
from .session_settings import GivenSettings, SettingsCache, session_settings

INTERNAL = frozenset(name for name, kind in KINDS.items() if not kind.exported)
"""Kinds of records about a store itself, which are neither exported nor imported."""
WRITTEN_AT_ONCE = 1000
"""Maximum number of records in one write."""
SIZE_AT_ONCE = 4 * 1024 * 1024
"""Approximate number of characters from which a write takes no more records."""

ATTEMPTS = 10
"""Maximum number of attempts to write records that others write at the same time."""

OTHER_KIND = {MESSAGE: ARCHIVED, ARCHIVED: MESSAGE}
"""Where else a message of a session may be."""
REMOVED = "a message that was removed here: newer ones are still stored (overwrite appends it)"

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


class SkipReport:
    """Counts what an import leaves out, by reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, Skipped] = {}

    def clear(self) -> None:
        self._reasons.clear()

    def add(self, reason: str, which: str) -> None:
        known = self._reasons.get(reason)
        self._reasons[reason] = Skipped(reason, known.count + 1, known.first) if known else Skipped(reason, 1, which)

    def skipped(self) -> list[Skipped]:
        return sorted(self._reasons.values(), key=lambda one: -one.count)


class IncomingRecord(NamedTuple):
    """A record to import, the stored uses of a memory, and where it is from: the number of a line, or a name."""

    record: Record
    uses: bytes | None = None
    place: int | Callable[[], str] = 0


Incoming: TypeAlias = IncomingRecord | Touch
Merge: TypeAlias = Callable[[Record, Record], Record | None]
"""Returns the record that a stored one and a given one with the same key become; None if they cannot be merged."""


class ImportSource(NamedTuple):
    """Where records come from: it can be read again from its beginning."""

    read: Callable[[bool], Iterator[Incoming]]
    """Return the records from the beginning; weights are needed only if the argument is true."""
    position: Callable[[], int]
    """Return how much has been read, of `size`."""
    size: int


def check_contents(record: Record) -> None:
    """Raise InvalidValueError unless a record to import holds what its kind says."""
    if record.importance is not None:
        check_importance(record.importance)
    moment = record.created or now()
    record = replace(record, created=moment, valid_from=record.valid_from or moment)
    try:
        to_item_of(record)
        if record.kind in (MEMORY, SUMMARY):
            check_text(record.text, "text")
        elif record.kind == TITLE:
            check_text(record.title, "title")
        elif record.kind == PRUNED:
            from_archive(record)
        elif record.kind == HISTORY:
            to_history_entry(record)
        elif record.kind in (JOURNAL, PROGRESS) and not isinstance(record.data, dict):
            raise InvalidValueError(f"{record.kind} must have data")
    except UnreadableStoreError as error:
        raise InvalidValueError(str(error)) from None


def check_settings(touch: Touch) -> None:
    """Raise InvalidValueError unless the settings of a stream to import are those of its kind."""
    read = {MESSAGE: session_settings, NOTE: note_settings}.get(touch.kind)
    try:
        if read is not None:
            read(touch.settings)
    except UnreadableStoreError as error:
        raise InvalidValueError(str(error)) from None


def refuse(stored: Record, given: Record) -> None:
    """Raise the ConflictError for a record that is stored with different content."""
    masks = (match[2] is None for name in given.labels.values() for match in TOKEN.finditer(name))
    masked = given.kind == FACT and any(masks)
    raise ConflictError(
        f"{given.kind} {shown(given.key)} of scope {given.scope.path!r} exists with different content: "
        + (MERGED_FACTS if masked else "import with overwrite to replace it"),
        key=given.key,
        current=stored.version,
    )


async def import_records(
    store: Store,
    scope: ScopePath,
    source: ImportSource,
    report: SkipReport,
    *,
    foreign: bool,
    overwrite: bool,
    dry_run: bool,
    progress: Progress | None,
    merge: Merge | None = None,
) -> Imported:
    """Check all records, then write those that `scope` does not have; with `dry_run`, only check and count.

    A record that is stored with other content is merged with it if `merge` can do that. Else, it is reported and left
    out if the source is foreign, and raises ConflictError if not. Raises what the source raises, and InvalidValueError
    or TooLargeError for a record that cannot be stored, before anything is written.
    """
    empty = await _is_empty(store, scope)
    found = _Import(store, report, merge, foreign=foreign, overwrite=overwrite, empty=empty)
    passes = 1 if dry_run and empty else 2
    for last in [False, True][:passes]:
        found.records = found.written = 0
        report.clear()
        batches = _batches(source.read(last or not empty))
        while batch := await off_loop(lambda batches=batches: next(batches, None)):  # type: ignore[misc]
            batch = await redact_ops(store, batch, keep=last and not dry_run)
            if isinstance(store, RestrictedLayer):
                store.check(batch)  # in the first pass, before anything is written
            if last:
                await found.take(batch, write=not dry_run)
            elif empty:
                found.count(batch)
            else:
                await found.look(batch)
            if progress is not None:
                progress(source.position() + (source.size if last else 0), source.size * passes)
    return Imported(records=found.records, written=found.written, skipped=report.skipped())


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
    def __init__(
        self, store: Store, report: SkipReport, merge: Merge | None, *, foreign: bool, overwrite: bool, empty: bool
    ) -> None:
        self.store = store
        self.report = report
        self.foreign = foreign
        self.overwrite = overwrite
        self.empty = empty
        self.merge = merge
        self.records = self.written = 0
        self._newest: dict[ScopePath, int] = {}
        """The number, in the source, of the last message of a session that was stored before the import."""
        self._session: tuple[ScopePath, SettingsCache, LimitedLog] | None = None
        """The session of the last batch."""

    def count(self, batch: list[Op]) -> None:
        """Count records that are all new."""
        new = sum([op.__class__ is Put for op in batch])
        self.records += new
        self.written += new

    async def look(self, batch: list[Op]) -> None:
        """Find out which messages are stored; raises ConflictError for a record that may not be overwritten."""
        puts = [op for op in batch if isinstance(op, Put)]
        known = await self._known(puts)
        for n, put in enumerate(puts, self.records):
            if put.record.kind == MESSAGE and put.record.ref in known:
                self._newest[put.record.scope] = n
        self._missing(puts, known, [])
        self.records += len(puts)

    async def take(self, batch: list[Op], *, write: bool) -> None:
        """Compare records with the stored ones, and write what is missing."""
        puts = [op for op in batch if isinstance(op, Put)]
        left: list[tuple[str, str]] = []
        if not self.empty:
            await self._open(puts)
        if write:
            new = await self._write(batch, puts, left)
        else:
            new = self._missing(puts, await self._known(puts), left)
        for reason, which in left:
            self.report.add(reason, which)
        self.records += len(puts)
        self.written += len(new)

    async def _open(self, puts: list[Put]) -> None:
        """Learn the limits of the session of these messages."""
        scope = next((put.record.scope for put in puts if put.record.kind == MESSAGE), None)
        if scope is None or (self._session is not None and self._session[0] == scope):
            return
        page = await self.store.streams(StreamScan(scope=scope, kinds=(MESSAGE,), below=False, empty=True))
        settings = SettingsCache(scope, GivenSettings())
        with suppress(UnreadableStoreError):  # then the import adds to it as to one without limits
            settings.learn(page.items[0].settings if page.items else None)
        self._session = (scope, settings, LimitedLog(self.store, scope, settings))

    def _limited(self, scope: ScopePath) -> bool:
        return self._session is not None and self._session[0] == scope and self._session[1].view.limited

    async def _write(self, batch: list[Op], puts: list[Put], left: list[tuple[str, str]]) -> list[Put]:
        """Write the records that are missing and return them; in an empty scope, all are taken for new at first."""
        ops, new = batch, puts
        for attempt in range(ATTEMPTS + 1):
            if attempt or not self.empty:
                left.clear()
                new = self._missing(puts, await self._known(puts), left)
                refs = {put.record.ref for put in new}
                rest = [op for op in batch if isinstance(op, Touch) or (isinstance(op, Derive) and op.ref in refs)]
                ops = [*new, *rest]
            try:
                if ops:
                    await self._run(list(map(self._complete, ops)))
                break
            except ConflictError as error:  # some are stored already, or another writer was faster
                if attempt == ATTEMPTS:
                    raise
                if isinstance(error, SettingsChangedError) and self._session is not None:
                    self._session[1].learn(error.settings)
        return new

    async def _run(self, ops: list[Op]) -> None:
        """Write; a session that has limits stays within them."""
        added = [op.record for op in ops if isinstance(op, Put) and op.record.kind == MESSAGE and op.if_version == 0]
        if added and self._session is not None and self._limited(added[0].scope):
            _, settings, log = self._session
            await log.write(ops, added, None, settings.view, None)
        else:
            await self.store.write(Write(tuple(ops), lazy=True))

    async def _known(self, puts: list[Put]) -> dict[Ref, Record]:
        """Return the stored records by their keys; a message may also be in the archive."""
        refs = [put.record.ref for put in puts]
        elsewhere = [replace(ref, kind=OTHER_KIND[ref.kind]) for ref in refs if ref.kind in OTHER_KIND]
        stored = {record.ref: record for record in await self.store.read([*refs, *elsewhere]) if record is not None}
        known: dict[Ref, Record] = {}
        for put in puts:
            ref = put.record.ref
            old = stored.get(ref)
            if old is None and ref.kind in OTHER_KIND:
                old = stored.get(replace(ref, kind=OTHER_KIND[ref.kind]))
                # One id may have been used twice, also in our own file.
                if old is not None and not self.foreign and _differ(old, put.record):
                    old = None
            if old is not None:
                known[ref] = old
        return known

    def _missing(self, puts: list[Put], known: dict[Ref, Record], left: list[tuple[str, str]]) -> list[Put]:
        """Return the records to write; those that are left out go to `left`, with the reason."""
        missing: dict[Ref, Put] = {}
        for n, put in enumerate(puts, self.records):
            given, ref = put.record, put.record.ref
            old = missing[ref].record if ref in missing else known.get(ref)
            if old is None:
                older = given.kind == MESSAGE and n < self._newest.get(given.scope, 0)
                if older and not self.overwrite and (self.foreign or self._limited(given.scope)):
                    left.append((REMOVED, given.key))
                else:
                    missing[ref] = put
            elif _differ(old, given):
                merged = self.merge(old, given) if self.merge is not None and not self.overwrite else None
                if merged is not None:
                    if _differ(old, merged):
                        missing[ref] = Put(merged, known[ref].version if ref in known else 0)
                elif self.overwrite:
                    version = known[ref].version if ref in known else 0
                    missing[ref] = Put(replace(given, kind=old.kind), version, put.updated)
                elif not self.foreign:
                    refuse(old, given)
                elif ref in missing:
                    left.append((f"a {given.kind} with an id that another one in the file has", given.key))
                else:
                    left.append(
                        (f"a {given.kind} that is stored with other content (overwrite replaces it)", given.key)
                    )
        return list(missing.values())

    def _complete(self, op: Op) -> Op:
        """Return an operation with the time of a new message, or of the begin of a new fact, if the source has none."""
        if isinstance(op, Put) and op.record.kind == FACT and op.record.valid_from is None:
            return replace(op, record=replace(op.record, valid_from=self.store.clock()))
        if isinstance(op, Put) and op.record.kind == MESSAGE and op.record.created is None:
            return replace(op, record=replace(op.record, created=self.store.clock()))
        return op


def _differ(old: Record, given: Record) -> bool:
    return digest(old) != digest(_with_times(given, old))


def _with_times(given: Record, old: Record) -> Record:
    """Return a record with the times of the stored one where the source does not tell any."""
    if given.created is not None and (given.kind != FACT or given.valid_from is not None):
        return given
    starts = old.valid_from if given.kind == FACT and given.valid_from is None else given.valid_from
    return replace(given, created=given.created or old.created, valid_from=starts)
