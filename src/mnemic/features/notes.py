"""The catalogue: named notes that an agent keeps for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from ..checks import JSON, MAX_TTL, check_count, check_json, check_name, check_text, shown
from ..errors import ConflictError, InvalidValueError, LimitError, NotFoundError
from ..records import Record, Ref, ScopePath, now, texts_in
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Delete, Limit, Op, Purge, Put, Scan, StreamScan, Write
from ..store.retry import retried
from .filters import conditions, names
from .kinds import NOTE as NOTE


class NoteInfo(Struct, frozen=True, kw_only=True):
    """What the list of a catalogue shows of a note: all but its value."""

    key: str
    description: str | None
    size: int
    metadata: dict[str, Any]
    version: int
    created: datetime
    updated: datetime

    @classmethod
    def of(cls, record: Record) -> NoteInfo:
        """Return what there is to show of a record."""
        assert record.created is not None
        assert record.updated is not None
        return cls(
            key=record.key,
            description=record.title,
            size=record.weight,
            metadata=record.meta,
            version=record.version,
            created=record.created,
            updated=record.updated,
        )


class Note(Struct, frozen=True):
    """A note of the catalogue with its value."""

    info: NoteInfo
    value: JSON


class AsyncNotes:
    """The notes of one scope: any JSON value under a key, with a description.

    With limits, a write that would go past them raises LimitError and changes nothing.
    """

    home: ScopePath
    max_entries: int | None
    max_bytes: int | None

    def __init__(
        self, store: Store, home: ScopePath, max_entries: int | None = None, max_bytes: int | None = None
    ) -> None:
        """Raise InvalidValueError for a limit below 1."""
        self.home = home
        self.max_entries = None if max_entries is None else check_count(max_entries, "max_entries", least=1)
        self.max_bytes = None if max_bytes is None else check_count(max_bytes, "max_bytes", least=1)
        self._store = store

    async def write(
        self,
        key: str,
        value: JSON,
        *,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_version: int | None = None,
    ) -> NoteInfo:
        """Write a value under a key, in place of the one before.

        A description or metadata that is not given stays as it was. With `if_version` the note must
        be at that version, 0 for new: raises ConflictError, whose `current` is its version, if
        another has written it; without, only if others wrote first at every attempt. Raises LimitError
        if the catalogue would be too large, and InvalidValueError for what JSON cannot hold.
        """

        async def replace_entry() -> NoteInfo:
            old = await self._find(key)
            kept = old or Record(scope=self.home, kind=NOTE, key=key)
            entry = replace(
                kept,
                data=value,
                title=kept.title if description is None else description,
                meta=kept.meta if metadata is None else metadata,
            )
            return await self._put(entry, kept.version if if_version is None else if_version, old)

        return await retried(
            replace_entry,
            f"writing the entry {shown(key)} in {self.home.path!r}",
            retry_on=lambda _: if_version is None,
        )

    async def read(self, key: str) -> JSON:
        """Return the value under a key; raises NotFoundError."""
        return (await self.get(key)).value

    async def read_many(self, keys: Sequence[str]) -> dict[str, JSON]:
        """Return the values of those keys that are there; of no keys, none."""
        refs = [self._ref(key) for key in names(keys, "keys")]
        return {record.key: record.data for record in await self._store.read(refs) if record is not None}

    async def read_all(self) -> dict[str, JSON]:
        """Return every key with its value, in the order in which they were first written."""
        return {record.key: record.data async for record in self._scan(bodies=True)}

    async def get(self, key: str) -> Note:
        """Return a note with its value, its description and its version; raises NotFoundError."""
        record = await self._find(key)
        if record is None:
            raise NotFoundError(f"the catalogue of {self.home.path!r} has no entry {shown(key)}")
        return Note(NoteInfo.of(record), record.data)

    async def delete(self, key: str) -> bool:
        """Remove a note; tell whether it was there."""
        outcomes = await self._store.write(Write((Delete(self._ref(key)),)))
        return bool(outcomes[0].removed)

    async def rename(self, key: str, to: str) -> NoteInfo:
        """Give a note another key, and keep all else.

        Raises NotFoundError if it is not there, ConflictError if the new key is taken.
        """

        async def move() -> NoteInfo:
            old = await self._find(key)
            if old is None:
                raise NotFoundError(f"the catalogue of {self.home.path!r} has no entry {shown(key)}")
            if to == key:
                return NoteInfo.of(old)
            return await self._put(replace(old, key=to), 0, old, Delete(old.ref, old.version))

        return await retried(
            move,
            f"renaming the entry {shown(key)} in {self.home.path!r}",
            retry_on=lambda error: error.key != to,
        )

    async def stale(self, older_than: timedelta) -> list[NoteInfo]:
        """Return the notes that were last written longer ago than that."""
        return [NoteInfo.of(record) async for record in self._scan(_older(older_than))]

    async def prune(self, older_than: timedelta) -> list[str]:
        """Remove the notes that were last written longer ago than that; return their keys."""
        removed = []
        for entry in await self.stale(older_than):
            try:
                await self._store.write(Write((Delete(self._ref(entry.key), entry.version),)))
            except ConflictError:
                continue  # it was written meanwhile, so it is not stale
            removed.append(entry.key)
        return removed

    async def usage(self) -> tuple[int, int]:
        """Return how many notes there are, and how many bytes their values take as JSON."""
        page = await self._store.streams(StreamScan(scope=self.home, kinds=(NOTE,), below=False))
        return (page.items[0].count, page.items[0].weight) if page.items else (0, 0)

    async def clear(self) -> None:
        """Remove all notes."""
        await self._store.write(Write((Purge(self.home, NOTE),)))

    # Last among the public methods, since its name hides the type of that name from the annotations.
    async def list(self, metadata: Mapping[str, Any] | None = None) -> list[NoteInfo]:
        """Return what there is, without the values, in the order in which it was first written."""
        return [NoteInfo.of(record) async for record in self._scan(conditions(metadata))]

    async def _put(self, entry: Record, if_version: int, old: Record | None, *before: Op) -> NoteInfo:
        """Write an entry in place of the old one; one that is no larger is never refused."""
        value, _ = check_json(entry.data, "value")
        title = None if entry.title is None else check_text(entry.title, "description")
        seen = [check_name(entry.key, "key"), title or "", *texts_in(value)]
        put = Put(
            replace(entry, data=value, text="\n".join(filter(None, seen)), weight=len(json.encode(value))),
            if_version,
        )
        ops: list[Op] = [*before, put]
        limited = self.max_entries is not None or self.max_bytes is not None
        if limited and (old is None or put.record.weight > old.weight):
            ops.append(Limit(self.home, NOTE, self.max_entries, self.max_bytes))
        try:
            did = (await self._store.write(Write(tuple(ops))))[len(before)]
        except LimitError as error:
            raise LimitError(
                f"the catalogue of {self.home.path!r} would hold {error.count:,} entries of {error.weight:,} "
                f"bytes; allowed are {_shown(self.max_entries)} entries of {_shown(self.max_bytes)} bytes",
                count=error.count,
                weight=error.weight,
            ) from None
        return NoteInfo.of(replace(put.record, version=did.version, created=did.created, updated=did.updated))

    async def _find(self, key: str) -> Record | None:
        (record,) = await self._store.read([self._ref(key)])
        return record

    def _ref(self, key: str) -> Ref:
        return Ref(self.home, NOTE, check_name(key, "key"))

    def _scan(self, where: tuple[Condition, ...] = (), *, bodies: bool = False) -> AsyncIterator[Record]:
        return scan_all(self._store, Scan(scope=self.home, kinds=(NOTE,), where=where, bodies=bodies))


def _shown(limit: int | None) -> str:
    return "any number of" if limit is None else f"{limit:,}"


def _older(than: timedelta) -> tuple[Condition, ...]:
    if not isinstance(than, timedelta) or not timedelta(0) <= than <= MAX_TTL:
        raise InvalidValueError(f"older_than must be a timedelta from 0 to a thousand years: {shown(than)}")
    return (Condition("updated", "lt", now() - than),)
