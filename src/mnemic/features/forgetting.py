"""Deletes by filter, with an optional archive that is verified before anything is deleted.

With an archive in another store, all matching records are first written there and read back; on a failure nothing
is deleted. Then each record is deleted that is in the archive in its current version. If interrupted, it resumes
when called again: archived records are compared, not written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from ..checks import MAX_KEY, check_name, check_number, check_ttl, new_id, to_microseconds
from ..errors import ConflictError, InvalidValueError, StoreError
from ..kinds import NOT_WRITTEN, WRITTEN
from ..messages import decode
from ..recall.index_entry import USE
from ..records import LEASE, MEMORY, MESSAGE, NOTE, SUMMARY, Record, ScopePath, Stream, Value, digest
from ..store.matching import check_kinds, conditions, matches
from ..store.protocol import Store, all_streams, scan_pages
from ..store.query import Condition, Delete, Op, Put, Scan, StreamScan, Write
from ..store.retry import retry_conflicts, write_each
from .memory_items import fading_memories, to_archive
from .session_log import LEASE_TIME
from .turns import TurnMessage, group_turns

PAGE = 200
"""How many records are read and deleted at once."""
WRITTEN_AT_ONCE = 4 * 1024 * 1024
"""Approximate number of characters archived at once."""
REWRITTEN = (NOTE, SUMMARY)
"""Kinds that are rewritten in place, whose age counts from the last change."""

_encode = json.Encoder().encode


class Forgotten(Value, frozen=True, kw_only=True):
    """Number of records that matched, were archived, and were deleted."""

    matched: int
    archived: int = 0
    deleted: int = 0


class ForgetFilters(Struct, frozen=True, kw_only=True):
    """Filters of `forget`; a record must pass all that are given."""

    older_than: timedelta | None = None
    faded_below: float | None = None
    half_life: timedelta | None = None
    metadata: Mapping[str, Any] | None = None
    source: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    kinds: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a filter of the wrong type."""
        if self.older_than is not None:
            check_ttl(self.older_than, "older_than")
        if self.faded_below is not None:
            check_number(self.faded_below, "faded_below")
        if self.half_life is not None and self.faded_below is None:
            raise InvalidValueError("half_life goes with faded_below")

    @property
    def any(self) -> bool:
        """Whether any filter is given; `kinds` alone does not count."""
        given = (self.older_than, self.faded_below, self.source, self.since, self.until)
        return bool(self.metadata) or any(value is not None for value in given)


class Forgetting:
    """One `forget` by filter, in a scope and below."""

    def __init__(self, store: Store, scope: ScopePath, filters: ForgetFilters) -> None:
        """Raise InvalidValueError if no filter is given."""
        self._kinds = None if filters.kinds is None else check_kinds(filters.kinds, WRITTEN)
        if not filters.any:
            raise InvalidValueError(
                "forget needs hits, ids, or a filter: older_than, faded_below, metadata, source, "
                "since or until; erase deletes everything"
            )
        self._store = store
        self._scope = scope
        self._filters = filters
        self._before = None if filters.older_than is None else store.clock() - filters.older_than
        self._where = conditions(filters.metadata, since=filters.since, until=filters.until)
        if filters.source is not None:
            self._where += (Condition("labels.source", "eq", check_name(filters.source, "source")),)

    async def count(self) -> Forgotten:
        return Forgotten(matched=sum([len(batch) async for batch in self._batches()]))

    async def delete(self) -> Forgotten:
        """Delete matching records by version, so that records that no longer match are kept.

        Raises ConflictError if concurrent writes keep changing them.
        """
        deleted = 0

        async def delete_matching() -> Forgotten:
            nonlocal deleted
            missed = 0
            async for batch in self._batches():
                done = await write_each(self._store, [(Delete(r.ref, r.version),) for r in batch])
                deleted += sum(done)
                missed += len(done) - sum(done)
            if missed and await self._any_left():
                raise ConflictError(f"{missed} records that match were changed meanwhile")
            return Forgotten(matched=deleted, deleted=deleted)

        return await retry_conflicts(delete_matching, f"forgetting in {self._scope.path!r}")

    async def archive_beside(self) -> Forgotten:
        """Move matching memories to the archive of their scope, which recall does not search.

        Raises InvalidValueError, before anything is moved, if other kinds were asked for: only memories have one.
        """
        if self._kinds not in (None, (MEMORY,)):
            raise InvalidValueError(
                f"archive=True is for memories alone, not {', '.join(self._kinds or ())}: give the URL of an archive"
            )
        self._kinds = (MEMORY,)
        matched = archived = 0
        async for batch in self._batches():
            moves = [(Put(to_archive(r)), Delete(r.ref, r.version)) for r in batch]
            done = sum(await write_each(self._store, moves))
            matched, archived = matched + len(batch), archived + done
        return Forgotten(matched=matched, archived=archived, deleted=archived)

    async def archive_to(self, archive: Store) -> Forgotten:
        """Write matching records to another store, then delete them.

        Records that changed meanwhile are kept. Raises StoreError, and deletes nothing, if archiving fails.
        """
        matched = archived = deleted = 0
        await self._check_apart(archive)
        async for batch in self._batches():
            archived += await self._archive(archive, batch)
        async for batch in self._batches():
            matched += len(batch)
            archived_now = await self._archived(archive, batch)
            done = await write_each(self._store, [(Delete(r.ref, r.version),) for r in archived_now])
            deleted += sum(done)
        return Forgotten(matched=matched, archived=archived, deleted=deleted)

    async def _any_left(self) -> bool:
        async with aclosing(self._batches()) as batches:
            async for _ in batches:
                return True
        return False

    async def _check_apart(self, archive: Store) -> None:
        """Raise InvalidValueError if the archive is the same store under another URL."""
        probe = Record(self._scope, LEASE, f"archive {new_id()}", expires=self._store.clock() + LEASE_TIME)
        (did,) = await archive.write(Write((Put(probe, 0),)))
        (found,) = await self._store.read([probe.ref])
        await archive.write(Write((Delete(probe.ref, did.version),)))
        if found is not None:
            raise InvalidValueError("the archive is the same store; nothing was deleted")

    async def _archive(self, archive: Store, records: Sequence[Record]) -> int:
        """Write missing records to the archive, and read them back."""
        stored = await archive.read([record.ref for record in records])
        ops: list[Op] = []
        size = written = 0
        for record, other in zip(records, stored, strict=True):
            if other is not None and digest(other) == digest(record):
                continue
            if other is not None:
                # An archive keeps everything: an earlier record with this key is kept under another.
                ops.append(Put(replace(other, key=_aside(other))))
            ops.append(Put(replace(record, derived={})))
            written += 1
            size += len(record.text or "") + len(_encode(record.data))
            if size > WRITTEN_AT_ONCE:
                await archive.write(Write(tuple(ops), lazy=True))
                ops, size = [], 0
        if ops:
            await archive.write(Write(tuple(ops), lazy=True))
        if written and len(await self._archived(archive, records)) < len(records):
            raise StoreError("the archive does not hold what was written to it; nothing was deleted")
        return written

    async def _archived(self, archive: Store, records: Sequence[Record]) -> list[Record]:
        """Return the records that the archive has in the same version."""
        stored = await archive.read([record.ref for record in records])
        return [
            record
            for record, other in zip(records, stored, strict=True)
            if other is not None and digest(other) == digest(record)
        ]

    async def _batches(self) -> AsyncGenerator[list[Record], None]:
        scan = StreamScan(scope=self._scope)
        streams = [s async for s in all_streams(self._store, scan) if s.kind not in NOT_WRITTEN]
        for stream in streams:
            if self._kinds is None or stream.kind in self._kinds:
                async with aclosing(self._of(stream)) as batches:
                    async for batch in batches:
                        yield batch

    async def _of(self, stream: Stream) -> AsyncGenerator[list[Record], None]:
        if self._filters.faded_below is not None:
            async for batch in self._faded(stream):
                yield batch
            return
        where = (*self._where, Condition("pinned", "eq", False))
        if self._before is not None:
            written = "updated" if stream.kind in REWRITTEN else "created"
            where = (Condition(written, "lt", self._before), *where)
        derived = (USE,) if stream.kind == MEMORY else ()
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), where=where, derived=derived, limit=PAGE)
        pages = scan_pages(self._store, scan)
        waiting: list[Record] = []
        async for page in pages:
            going = [*waiting, *page]
            waiting = _waiting(going) if stream.kind == MESSAGE else []
            stays = {record.key for record in waiting}
            if going := [record for record in going if record.key not in stays]:
                yield going

    async def _faded(self, stream: Stream) -> AsyncGenerator[list[Record], None]:
        """Yield the faded memories of a stream that pass the other filters."""
        least, batch = self._filters.faded_below, list[Record]()
        if stream.kind != MEMORY or least is None:
            return
        async for fade in fading_memories(self._store, stream.scope, self._filters.half_life):
            record = fade.record
            old = self._before is None or (record.created is not None and record.created < self._before)
            if fade.strength < least and old and matches(record, self._where):
                batch.append(record)
            if len(batch) == PAGE:
                yield batch
                batch = []
        if batch:
            yield batch


def _waiting(records: Sequence[Record]) -> list[Record]:
    """Return messages of incomplete groups: tool calls without a result yet."""
    by_key = {record.key: record for record in records}
    groups = group_turns([TurnMessage(record.key, record.seq, decode(record)) for record in records])
    return [by_key[key] for group in groups if group.unanswered and not group.over for key in group.keys]


def _aside(record: Record) -> str:
    assert record.updated is not None
    mark = f"@{to_microseconds(record.updated)}"
    return record.key[: MAX_KEY - len(mark)] + mark
