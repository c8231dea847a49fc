"""A commit to a scope: its next manifest, and the segments to write before it.

Deleted and replaced data is really removed: a segment that contains it is rewritten without it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import pairwise

from msgspec.structs import replace

from ...store.stream_state import StreamChange
from .codec import Manifest, Segment, SegmentRecords, StoredRecord, StreamEntry, pack, split, write_object

MAX_INLINE = 128 * 1024
"""Size of a manifest, before compression, beyond which inline data moves into segments."""
MAX_COMMITS = 32
"""Number of recent commits named in a manifest."""
_SEGMENT_SIZE = 120
"""Additional size of a manifest allowed for each of its segments."""

Reader = Callable[[Iterable[Segment]], Awaitable[list[SegmentRecords]]]


class Commit:
    """The next manifest of a scope, and its new segments by id."""

    def __init__(self, scope: str, before: Manifest, read: Reader) -> None:
        self.id: bytes = secrets.token_bytes(8)
        self.before: Manifest = before
        self.segments: dict[str, SegmentRecords] = {}
        self.manifest: Manifest = Manifest(
            scope,
            # That of a new manifest is larger than that of any deleted predecessor.
            before.number + 1 if before.etag is not None else time.time_ns() // 1000,
            [*before.commits, self.id][-MAX_COMMITS:],
            dict(before.streams),
        )
        self._read_stored = read

    async def make(self, changes: Iterable[StreamChange]) -> bytes:
        """Apply changes whose expectations hold; return the bytes of the manifest."""
        streams = self.manifest.streams
        for change in changes:
            if change.after is None:
                streams.pop(change.name[1], None)
            else:
                streams[change.name[1]] = await self._changed(self.before.stream(change.name[1]), change)
        if len(pack(self.manifest)) > MAX_INLINE + _SEGMENT_SIZE * len(self.manifest.segments):
            await self._spill()
        used = {segment.id for segment in self.manifest.segments}
        self.segments = {id: content for id, content in self.segments.items() if id in used}
        former = [segment.id for segment in self.before.segments if segment.id not in used]
        self.manifest.trash = [*self.before.trash, *former]
        return write_object(self.manifest)

    async def _spill(self) -> None:
        """Move inline data into segments, that of the largest streams first, until half of the space is free."""
        streams = self.manifest.streams
        sizes = {kind: entry.inline_size for kind, entry in streams.items()}
        for kind in sorted(sizes, key=lambda kind: -sizes[kind]):
            if sum(sizes.values()) <= MAX_INLINE // 2:
                return
            streams[kind] = await self._rewritten(streams[kind], spill=True)
            sizes[kind] = 0

    async def _changed(self, entry: StreamEntry, change: StreamChange) -> StreamEntry:
        """Return a stream after its changes."""
        inline, derived = dict(entry.inline), dict(entry.derived)
        removed = {gone.seq for gone in change.removed if inline.pop(gone.seq, None) is None}
        for gone in change.removed:
            derived.pop(gone.seq, None)
        replaced = {record.seq for record in change.replaced if record.seq not in inline}
        stored: dict[int, StoredRecord] = {}
        for content in await self._read(segment for segment in entry.segments if segment.covers(replaced)):
            stored |= {record.seq: record for record in content.records if record.seq in replaced}
        for record in change.replaced:
            values = (inline.get(record.seq) or stored[record.seq]).derived | derived.pop(record.seq, {})
            lasting = {name: value for name, value in values.items() if value[0] == 0}
            inline[record.seq] = StoredRecord.of(record, lasting)
        for record in change.added:
            inline[record.seq] = StoredRecord.of(record, {})
        erased: dict[int, set[str]] = {}
        for _, seq, name, version, value in change.derived:
            at = inline.get(seq)
            values = dict(at.derived if at is not None else derived.get(seq, {}))
            if value is not None:
                values[name] = (version, value)
            else:
                values.pop(name, None)
                erased.setdefault(seq, set()).add(name)
            if at is not None:
                inline[seq] = replace(at, derived=values)
            else:
                derived[seq] = values
        erased = {seq: names for seq, names in erased.items() if seq not in inline}
        derived = {seq: values for seq, values in derived.items() if values}
        changed = StreamEntry(change.after, entry.segments, inline, derived)
        return await self._rewritten(changed, removed | replaced, erased)

    async def _rewritten(
        self, entry: StreamEntry, removed: Collection[int] = (), erased: Mapping[int, set[str]] = {}, *,
        spill: bool = False,
    ) -> StreamEntry:  # fmt: skip
        """Return a stream without removed records and derived values in segments; `spill` adds its inline data."""
        derived, added = dict(entry.derived), entry.inline if spill else {}
        changed = {*removed, *erased, *added, *(derived if spill else ())}
        if not changed:
            return entry
        # The range of a segment starts after the one before it.
        starts = [0, *(segment.last for segment in entry.segments)]
        tail = [record for seq, record in sorted(added.items()) if seq > starts[-1]]
        dirty = [any(a < seq <= b for seq in changed) for a, b in pairwise(starts)] + [bool(tail)]
        for n, segment in enumerate(entry.segments):
            dirty[n] |= segment.small and (dirty[n + 1] or (n > 0 and dirty[n - 1]))
        contents = iter(await self._read(segment for n, segment in enumerate(entry.segments) if dirty[n]))
        segments: list[Segment] = []
        run: list[StoredRecord] = []
        for n, segment in enumerate(entry.segments):
            if not dirty[n]:
                segments += [*self._new(run), segment]
                run = []
                continue
            part = [record for seq, record in added.items() if starts[n] < seq <= segment.last]
            for record in next(contents).records:
                if record.seq in removed:
                    continue
                if record.seq in derived or record.seq in erased:
                    names = erased.get(record.seq, set())
                    values = {name: value for name, value in record.derived.items() if name not in names}
                    record = replace(record, derived=values | derived.pop(record.seq, {}))
                part.append(record)
            run += sorted(part, key=lambda record: record.seq)
        segments += self._new([*run, *tail])
        return StreamEntry(entry.state, segments, {} if spill else entry.inline, derived)

    async def _read(self, segments: Iterable[Segment]) -> list[SegmentRecords]:
        """Return the contents of segments, some of which may be new."""
        wanted = list(segments)
        stored = iter(await self._read_stored(segment for segment in wanted if segment.id not in self.segments))
        return [self.segments.get(segment.id) or next(stored) for segment in wanted]

    def _new(self, records: list[StoredRecord]) -> list[Segment]:
        found = []
        for part in split(records):
            id = secrets.token_hex(16)
            self.segments[id] = SegmentRecords(part)
            found.append(Segment.of(id, part))
        return found
