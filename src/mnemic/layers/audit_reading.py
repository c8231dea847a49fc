"""Reads the audit log where some entries are damaged: one that cannot be read does not hide the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import Struct

from ..errors import UnreadableStoreError
from ..records import AUDIT_KIND, Record, ScopePath
from ..store.damage import records_around
from ..store.matching import matches
from ..store.protocol import Page, Store, all_streams
from ..store.query import Scan, StreamScan
from .audit_entry import number_of, to_entry
from .layer import Layer


class Damaged(Struct, frozen=True):
    """An entry that cannot be read: the scope of its log, and its number, as far as the entry before it tells."""

    scope: ScopePath
    number: int


async def entries_around(
    store: Store, scope: ScopePath, kind: str = AUDIT_KIND
) -> AsyncGenerator[Record | Damaged, None]:
    """Yield the records of a log in order, and in place of each that is damaged its number."""
    number = 0
    async for part in records_around(store, scope, kind):
        for record in part if isinstance(part, tuple) else (None,):
            if record is None or not isinstance(record.data, dict):
                number += 1
                yield Damaged(scope, number)
            else:
                number = number_of(record) or number
                yield record


class ReadableEntries(Layer):
    """A view of a store of which scans return the entries of the audit log that can be read, on one page."""

    async def scan(self, scan: Scan) -> Page[Record]:
        found: list[Record] = []
        streams = StreamScan(scope=scan.scope, kinds=(AUDIT_KIND,), below=scan.below)
        async for stream in all_streams(self._below, streams):
            records = entries_around(self._below, stream.scope)
            found += [one async for one in records if isinstance(one, Record) and _is_entry(one)]
        return Page(tuple(one for one in found if matches(one, scan.where)))


def _is_entry(record: Record) -> bool:
    try:
        to_entry(record)
    except UnreadableStoreError:
        return False
    return True
