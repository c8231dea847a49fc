"""Reads a store in which some records, or the states of some streams, are damaged."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec.structs import replace

from ..errors import DecryptionError, UnreadableStoreError
from ..records import Record, ScopePath, Stream
from .matching import to_cursor
from .protocol import Store
from .query import Scan, StreamScan

AT_ONCE = 500
"""How many records are read at once."""
MOST_IN_VAIN = 1000
"""How many positions after a damaged record are tried, if it is not known where the stream ends."""

Damage = UnreadableStoreError | DecryptionError


async def records_around(
    store: Store,
    scope: ScopePath,
    kind: str,
    last_seq: int | None = None,
    derived: tuple[str, ...] = (),
    at_once: int = AT_ONCE,
) -> AsyncGenerator[tuple[Record, ...] | Damage, None]:
    """Yield the records of a stream in order, and in place of each damaged one the error.

    `last_seq` is the position of the last record, if it is known.
    """
    scan = Scan(scope=scope, kinds=(kind,), derived=derived)
    cursor: str | None = None
    at = vain = 0
    said = ""
    limit = at_once
    while True:
        try:
            page = await store.scan(replace(scan, cursor=cursor, limit=limit))
        except (UnreadableStoreError, DecryptionError) as error:
            if limit > 1:
                limit = max(1, limit // 8)  # find out which one
                continue
            if str(error) != said:  # not the same one from a position before it
                yield error
            said, vain, at = str(error), vain + 1, at + 1
            if at > last_seq if last_seq is not None else vain > MOST_IN_VAIN:
                return
            cursor = to_cursor((scope.path, kind, at))
            continue
        if page.items:
            yield page.items
            at, vain = page.items[-1].seq, 0
        if page.cursor is None:
            return
        cursor, limit = page.cursor, min(8 * limit, at_once)


async def streams_around(
    store: Store, kinds: tuple[str, ...] = (), scope: ScopePath | None = None
) -> AsyncGenerator[Stream | Damage, None]:
    """Yield all streams, or those of some kinds, or at a scope and below, and in place of each damaged one the error.

    It ends with an error that does not name a stream, since what follows it cannot be listed.
    """
    cursor: str | None = None
    limit = AT_ONCE
    while True:
        try:
            page = await store.streams(
                StreamScan(scope=scope or ScopePath(), kinds=kinds, empty=True, limit=limit, cursor=cursor)
            )
        except (UnreadableStoreError, DecryptionError) as error:
            if limit > 1:
                limit = max(1, limit // 8)
                continue
            yield error
            past, name = cursor, getattr(error, "stream", None)
            if name is not None:
                # Without a kind, all streams of the scope are damaged, and what follows is after its name.
                past = to_cursor((*name, 0) if name[1] else (f"{name[0]}\0", "", 0))
            if past == cursor:
                return
            cursor = past
            continue
        for stream in page.items:
            yield stream
        if page.cursor is None:
            return
        cursor, limit = page.cursor, min(8 * limit, AT_ONCE)
