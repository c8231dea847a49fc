"""A commit to a scope: its next manifest, and the segments to write before it.

Deleted and replaced data is really removed: a segment that contains it is rewritten without it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import pairwise

from msgspec.structs import replace

from ..keyvalue.engine import Change
from .codec import Derived, Item, Manifest, Records, Segment, StreamEntry, pack, split, write_object

MAX_INLINE = 128 * 1024
"""Size of the inline data, before compression, beyond which it moves into segments."""
MAX_COMMITS = 32
"""Number of recent commits named in a manifest."""
_SEGMENT_SIZE = 120
"""Additional size of a manifest allowed for each of its segments."""

Reader = Callable[[Iterable[Segment]], Awaitable[list[Records]]]


class Commit:
    """The next manifest of a scope, and its new segments by id."""

    def __init__(self, scope: str, before: Manifest, read: Reader) -> None:
        self.id: bytes = secrets.token_bytes(8)
        self.before: Manifest = before
        self.segments: dict[str, Records] = {}
        self.manifest: Manifest = Manifest(
            scope,
            # That of a new manifest is larger than that of any deleted predecessor.
            before.number + 1 if before.etag is not None else time.time_ns() // 1000,
            [*before.commits, self.id][-MAX_COMMITS:],
            dict(before.streams),
        )
        self._stored = read

    async def make(self, changes: Iterable[Change]) -> bytes:
        """Apply changes whose expectations hold; return the bytes of the manifest."""
        streams = self.manifest.streams
        for change in changes:
            kind = change.name[1]
            if change.head is None:
                streams.pop(kind, None)
            else:
                streams[kind] = await self._changed(streams.get(kind) or StreamEntry(change.head), change)
        if len(pack(self.manifest)) > MAX_INLINE + _SEGMENT_SIZE * len(self.manifest.segments):
            await self._spill()
        used = {segment.id for segment in self.manifest.segments}
        self.segments = {id: records for id, records in self.segments.items() if id in used}
        former = [segment.id for segment in self.before.segments if segment.id not in used]
        self.manifest.trash = [*self.before.trash, *former]
        return write_object(self.manifest)

    async def _spill(self) -> None:
        """Move inline data into segments, that of the largest streams first, until half of the space is free."""
        streams = self.manifest.streams
        sizes = {kind: entry.inline for kind, entry in streams.items()}
        for kind in sorted(sizes, key=lambda kind: -sizes[kind]):
            if sum(sizes.values()) <= MAX_INLINE // 2:
                return
            streams[kind] = await self._rewritten(streams[kind], spill=True)
            sizes[kind] = 0

    async def _changed(self, entry: StreamEntry, change: Change) -> StreamEntry:
        """Return a stream after its changes."""
        assert change.head is not None
        items, derived = dict(entry.items), dict(entry.derived)
        removed = {seq for seq, _ in change.removed if items.pop(seq, None) is None}
        for seq, _ in change.removed:
            derived.pop(seq, None)
        replaced = {kept.seq for kept in change.put if kept.seq not in change.new and kept.seq not in items}
        stored: dict[int, Item] = {}
        for records in await self._read(segment for segment in entry.segments if segment.covers(replaced)):
            stored |= {item.seq: item for item in records.items if item.seq in replaced}
        for kept in change.put:
            old = items.get(kept.seq) or stored.get(kept.seq)
            values = {**(old.derived if old is not None else {}), **derived.pop(kept.seq, {})}
            items[kept.seq] = Item.of(kept, {name: value for name, value in values.items() if value[0] == 0})
        erased: dict[int, set[str]] = {}
        for seq, name, version, value in change.derived:
            in_segment = seq not in items
            values = dict(derived.get(seq, {}) if in_segment else items[seq].derived)
            if value is not None:
                values[name] = (version, value)
            else:
                values.pop(name, None)
                if in_segment:
                    erased.setdefault(seq, set()).add(name)
            if in_segment:
                derived[seq] = values
            else:
                items[seq] = replace(items[seq], derived=values)
        changed = StreamEntry(change.head, entry.segments, items, {seq: held for seq, held in derived.items() if held})
        if removed or replaced or erased:
            return await self._rewritten(changed, removed | replaced, erased)
        return changed

    async def _rewritten(
        self, entry: StreamEntry, removed: Collection[int] = (), erased: Mapping[int, set[str]] = {}, *,
        spill: bool = False,
    ) -> StreamEntry:  # fmt: skip
        """Return a stream without removed records and derived values in segments; `spill` adds its inline data."""
        derived, added = dict(entry.derived), entry.items if spill else {}
        changed = {*removed, *erased, *added, *(derived if spill else ())}
        # The range of a segment starts after the one before it.
        starts = [0, *(segment.last for segment in entry.segments)]
        tail = [item for seq, item in sorted(added.items()) if seq > starts[-1]]
        dirty = [any(a < seq <= b for seq in changed) for a, b in pairwise(starts)] + [bool(tail)]
        for n, segment in enumerate(entry.segments):
            dirty[n] |= segment.small and (dirty[n + 1] or (n > 0 and dirty[n - 1]))
        contents = iter(await self._read(segment for n, segment in enumerate(entry.segments) if dirty[n]))
        segments: list[Segment] = []
        run: list[Item] = []
        for n, segment in enumerate(entry.segments):
            if not dirty[n]:
                segments += [*self._new(run), segment]
                run = []
                continue
            stored = [
                _with_derived(item, derived.pop(item.seq, {}), erased.get(item.seq, ()))
                for item in next(contents).items
                if item.seq not in removed
            ]
            stored += [item for seq, item in added.items() if starts[n] < seq <= segment.last]
            run += sorted(stored, key=lambda item: item.seq)
        segments += self._new([*run, *tail])
        return StreamEntry(entry.state, segments, {} if spill else entry.items, derived)

    async def _read(self, segments: Iterable[Segment]) -> list[Records]:
        """Return the contents of segments, some of which may be new."""
        wanted = list(segments)
        stored = iter(await self._stored(segment for segment in wanted if segment.id not in self.segments))
        return [self.segments[segment.id] if segment.id in self.segments else next(stored) for segment in wanted]

    def _new(self, items: list[Item]) -> list[Segment]:
        """Return new segments of sorted records."""
        found = []
        for part in split(items):
            id = secrets.token_hex(16)
            self.segments[id] = Records(part)
            found.append(Segment.of(id, part))
        return found


def _with_derived(item: Item, newer: Derived, erased: Iterable[str]) -> Item:
    if not newer and not erased:
        return item
    values = {name: value for name, value in item.derived.items() if name not in erased}
    return replace(item, derived={**values, **newer})
