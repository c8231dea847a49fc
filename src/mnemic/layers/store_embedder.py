"""The embedder of a store's vectors, recorded in the store itself, and switching to another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ..checks import check_callable
from ..errors import ConflictError, EmbedderError
from ..event_loop import off_loop
from ..models.embedder import AUTO, Embedder, embedder_by_id, find_embedder
from ..recall.index_entry import TEXTS_AT_ONCE, EntryBuilder, entry_name
from ..records import EMBEDDER_KIND, Record, Ref, ScopePath
from ..store.protocol import Store, all_streams, scan_all, scan_pages
from ..store.query import Derive, Put, Scan, StreamScan, Write
from .layer import whole_store

log: logging.Logger = logging.getLogger("mnemic.recall")

EMBEDDER_REF = Ref(ScopePath(), EMBEDDER_KIND, "current")
"""Ref of the record that names the embedder."""
CHECK_SECONDS = 1.0
"""How many seconds until the record is checked again for changes by other processes."""


class StoreEmbedder:
    """Tracks the embedder of a store."""

    def __init__(self, store: Store, embedder: Embedder | str | None) -> None:
        self._store = whole_store(store)
        self._requested = embedder
        self._builder: EntryBuilder | None = None
        self._recorded: str | None = None
        self._checked_at = 0.0

    async def builder(self, *, writing: bool = False) -> EntryBuilder:
        """Return the entry builder for this store; with `writing`, record its embedder in the store.

        Raises EmbedderError if the stored vectors have another embedder than requested.
        """
        if self._builder is None or time.monotonic() - self._checked_at > CHECK_SECONDS:
            self._recorded = await self._read()
            self._checked_at = time.monotonic()
            if self._builder is None:
                self._builder = EntryBuilder(self._find())
        builder = self._builder
        id = builder.embedder.id if builder.embedder is not None else None
        if id is not None and self._recorded is None and writing:
            # Set before the write, so that concurrent writers do not all record it.
            self._recorded = id
            self._recorded = await self._record(id)
        if id is not None and self._recorded is not None and id != self._recorded:
            raise EmbedderError(
                f"the vectors in this store were made by {self._recorded!r}, and those of {id!r} cannot be "
                f"compared with them: open it with that embedder, or move it over with reembed()"
            )
        return builder

    def _find(self) -> Embedder | None:
        if self._requested != AUTO:
            return find_embedder(self._requested)
        embedder = embedder_by_id(self._recorded)
        if embedder is None:
            why = "no embedder is installed"
            if self._recorded is not None:
                why = f"the stored vectors are of {self._recorded!r}, which was not given and is not installed"
            log.warning("recall compares words alone: %s", why)
        return embedder

    async def reembed(self, embedder: Embedder | str | None, progress: Callable[[int, int], object] | None) -> int:
        """Compute all entries with another embedder, beside the old ones, then switch to it."""
        check_callable(progress, "progress")
        target = EntryBuilder(find_embedder(embedder))
        if target.embedder is None:
            raise EmbedderError("reembed needs an embedder: without one there are no vectors")
        (record,) = await self._store.read([EMBEDDER_REF])
        name = target.embedder.id
        data = embedder_data(record)
        streams = [s async for s in all_streams(self._store, StreamScan(scope=ScopePath()))]
        total = sum(stream.count for stream in streams)
        done = built = 0
        if data.get("next") == name:
            lacking = Scan(scope=ScopePath(), below=True, lacking=target.name, bodies=False)
            done = total - sum([1 async for _ in scan_all(self._store, lacking)])
        version = await self._put({**data, "next": name}, 0 if record is None else record.version)
        for stream in streams:
            scan = Scan(scope=stream.scope, kinds=(stream.kind,), lacking=target.name, limit=TEXTS_AT_ONCE)
            async for records in scan_pages(self._store, scan):
                built += await self._build(target, [record for record in records if record.text or record.title])
                done += len(records)
                if progress is not None:
                    progress(min(done, total), total)
        old = [id for id in (data.get("id"), *data.get("old", ())) if id and id != name]
        version = await self._put({"id": name, "old": old}, version)
        self._requested, self._builder, self._recorded = target.embedder, target, name
        for id in old:
            await self._delete_entries(entry_name(id))
        await self._put({"id": name}, version)
        if progress is not None:
            progress(total, total)
        return built

    async def _build(self, target: EntryBuilder, records: list[Record]) -> int:
        entries = await off_loop(lambda: target.build(records))
        if records and all(entry is None for entry in entries):
            raise EmbedderError(
                f"{target.embedder.id if target.embedder else ''!r} failed, so nothing has moved over; "
                "what it has made so far is kept, and reembed() goes on from there"
            )
        ops = tuple(
            Derive(record.ref, target.name, entry, record.version)
            for record, entry in zip(records, entries, strict=True)
            if entry is not None
        )
        if ops:
            await self._store.write(Write(ops))
        return len(ops)

    async def _delete_entries(self, name: str) -> None:
        """Delete the entries of the former embedder."""
        async for stream in all_streams(self._store, StreamScan(scope=ScopePath())):
            scan = Scan(scope=stream.scope, kinds=(stream.kind,), derived=(name,), bodies=False, limit=1000)
            async for records in scan_pages(self._store, scan):
                if ops := tuple(Derive(record.ref, name, None) for record in records if record.derived):
                    await self._store.write(Write(ops))

    async def _read(self) -> str | None:
        (record,) = await self._store.read([EMBEDDER_REF])
        return recorded_id(record)

    async def _record(self, id: str) -> str:
        """Record the embedder if none is recorded; return the recorded one."""
        try:
            await self._put({"id": id}, 0)
        except ConflictError:
            return await self._read() or id
        return id

    async def _put(self, data: dict[str, Any], version: int) -> int:
        record = Record(EMBEDDER_REF.scope, EMBEDDER_REF.kind, EMBEDDER_REF.key, data=data)
        (did,) = await self._store.write(Write((Put(record, version),)))
        return did.version


def recorded_id(record: Record | None) -> str | None:
    """Return the embedder named in the record."""
    return embedder_data(record).get("id")


def embedder_data(record: Record | None) -> dict[str, Any]:
    """Return the content of the record that names the embedder, also of one that is being moved to."""
    data: Any = None if record is None else record.data
    return data if isinstance(data, dict) else {}
