"""Cleaning up: what is old, or matches a filter, is archived, verified, and only then removed.

First everything that matches is written to the archive and read back; if any of it fails, nothing is removed.
Then it is gone through again, and each record goes that lies in the archive as it is now. Broken off at any
point, it goes on when it is called again: what the archive holds already is compared, not written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from ..checks import MAX_KEY, check_ttl, to_microseconds
from ..errors import InvalidValueError, StoreError
from ..records import AUDIT_KIND, EMBEDDER_KIND, LOCK_KIND, Record, ScopePath, Stream, new_id, now
from ..store.batches import write_each
from ..store.digest import digest
from ..store.protocol import Store, all_streams
from ..store.query import Condition, Delete, Op, Put, Scan, StreamScan, Write
from .filters import conditions
from .kinds import GUARD, JOURNAL, LEASE, MESSAGE, NOTE, PROGRESS, PRUNED, RECALLED, SUMMARY, check_kinds
from .messages import decode
from .overflow import LEASE_TIME
from .turns import Entry, grouped

PAGE = 200
"""How many records are read, and removed, at a time."""
WRITTEN_AT_ONCE = 4 * 1024 * 1024
"""How many characters of them are archived at a time, about."""
CLEANED = (*RECALLED, PRUNED, JOURNAL, PROGRESS)
"""The kinds of what may be cleaned up."""
SPARED = (AUDIT_KIND, LOCK_KIND, EMBEDDER_KIND, GUARD, LEASE)
"""The kinds of what nobody has stored, or nobody may remove."""
REWRITTEN = (NOTE, SUMMARY)
"""The kinds of what is written anew in its place, and so is as old as its last change."""

_encode = json.Encoder().encode


class Cleaned(Struct, frozen=True, kw_only=True):
    """What a cleanup did: how many records matched, were written to the archive, and were removed."""

    matched: int
    archived: int = 0
    removed: int = 0


class Cleanup:
    """What is to go from one scope and from those below it."""

    def __init__(
        self,
        store: Store,
        home: ScopePath,
        *,
        older_than: timedelta | None,
        metadata: Mapping[str, Any] | None,
        kinds: Sequence[str] | str | None,
    ) -> None:
        """Raise InvalidValueError if nothing says what is to go, or a filter is none."""
        if older_than is None and not metadata:
            raise InvalidValueError(
                "cleanup needs to know what is to go: older_than, metadata, or both; erase removes everything"
            )
        self._kinds = None if kinds is None else check_kinds(kinds, CLEANED)
        self._store = store
        self._home = home
        self._before = None if older_than is None else now() - check_ttl(older_than, "older_than")
        self._where = conditions(metadata)

    async def count(self) -> Cleaned:
        """Return how many records match."""
        return Cleaned(matched=sum([len(batch) async for batch in self._batches()]))

    async def run(self, archive: Store | None) -> Cleaned:
        """Archive what matches, then remove it; raises StoreError, and nothing is removed, if it cannot be.

        What was changed meanwhile stays.
        """
        matched = archived = removed = 0
        if archive is not None:
            await self._check_apart(archive)
            async for batch in self._batches():
                archived += await self._archive(archive, batch)
        async for batch in self._batches():
            matched += len(batch)
            kept = batch if archive is None else await self._kept(archive, batch)
            done = await write_each(self._store, [(Delete(r.ref, r.version),) for r in kept])
            removed += sum(done)
        return Cleaned(matched=matched, archived=archived, removed=removed)

    async def _check_apart(self, archive: Store) -> None:
        """Raise InvalidValueError if the archive is the store itself, by whatever URL, and no archive."""
        probe = Record(self._home, LEASE, f"archive {new_id()}", expires=now() + LEASE_TIME)
        (did,) = await archive.write(Write((Put(probe, 0),)))
        (found,) = await self._store.read([probe.ref])
        await archive.write(Write((Delete(probe.ref, did.version),)))
        if found is not None:
            raise InvalidValueError("the archive is the store that is to be cleaned up; nothing was removed")

    async def _archive(self, archive: Store, records: Sequence[Record]) -> int:
        """Write records to the archive, those that it does not hold yet, and read them back."""
        held = await archive.read([record.ref for record in records])
        ops: list[Op] = []
        size = written = 0
        for record, other in zip(records, held, strict=True):
            if other is not None and digest(other) == digest(record):
                continue
            if other is not None:
                # An archive loses nothing: what had this key before is kept under another.
                ops.append(Put(replace(other, key=_aside(other))))
            ops.append(Put(replace(record, derived={})))
            written += 1
            size += len(record.text or "") + len(_encode(record.data))
            if size > WRITTEN_AT_ONCE:
                await archive.write(Write(tuple(ops), lazy=True))
                ops, size = [], 0
        if ops:
            await archive.write(Write(tuple(ops), lazy=True))
        if written and len(await self._kept(archive, records)) < len(records):
            raise StoreError("the archive does not hold what was written to it; nothing was removed")
        return written

    async def _kept(self, archive: Store, records: Sequence[Record]) -> list[Record]:
        """Return those of the records that lie in the archive just as they are."""
        held = await archive.read([record.ref for record in records])
        return [
            record
            for record, other in zip(records, held, strict=True)
            if other is not None and digest(other) == digest(record)
        ]

    async def _batches(self) -> AsyncGenerator[list[Record], None]:
        """Yield what is to go, some at a time."""
        scan = StreamScan(scope=self._home)
        streams = [s async for s in all_streams(self._store, scan) if s.kind not in SPARED]
        for stream in streams:
            if self._kinds is None or stream.kind in self._kinds:
                async with aclosing(self._of(stream)) as batches:
                    async for batch in batches:
                        yield batch

    async def _of(self, stream: Stream) -> AsyncGenerator[list[Record], None]:
        where = (*self._where, Condition("pinned", "eq", False))
        if self._before is not None:
            written = "updated" if stream.kind in REWRITTEN else "created"
            where = (Condition(written, "lt", self._before), *where)
        pages = _pages(self._store, Scan(scope=stream.scope, kinds=(stream.kind,), where=where, limit=PAGE))
        waiting: list[Record] = []
        async for page in pages:
            going = [*waiting, *page]
            waiting = _waiting(going) if stream.kind == MESSAGE else []
            stays = {record.key for record in waiting}
            if going := [record for record in going if record.key not in stays]:
                yield going


async def _pages(store: Store, scan: Scan) -> AsyncIterator[tuple[Record, ...]]:
    while True:
        page = await store.scan(scan)
        yield page.items
        if page.cursor is None:
            return
        scan = replace(scan, cursor=page.cursor)


def _waiting(records: Sequence[Record]) -> list[Record]:
    """Return the messages of which more may belong together: a tool's call that is not answered yet."""
    by_key = {record.key: record for record in records}
    groups = grouped([Entry(record.key, record.seq, decode(record)) for record in records])
    return [by_key[key] for group in groups if group.unanswered and not group.over for key in group.keys]


def _aside(record: Record) -> str:
    assert record.updated is not None
    mark = f"@{to_microseconds(record.updated)}"
    return record.key[: MAX_KEY - len(mark)] + mark
