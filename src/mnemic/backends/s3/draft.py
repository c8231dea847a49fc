"""A commit's draft of a tenant: its new manifest, and the segments to write.

Deleted and replaced data is really removed: a segment that contains it is rewritten without it. What is too large
for the manifest moves into a segment, and small segments are merged (compaction).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from math import log
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ...store.planning import StreamName
from ..keyvalue.engine import Batch, Change
from .library import Library
from .manifest import TURNS, Directory, Entry, Part, Segment, Tail, Tenant, write_directory, write_manifest
from .segment import Index, Item, Mark, Place, Run, copy_run, read_run, read_table, size_of, write_run, write_segment

INLINE = 256 * 1024
"""Maximum size of a manifest, before compression."""
FULL = 4 * 1024 * 1024
"""Size, before compression, from which a segment is not merged any more."""
MOST = 8 * 1024 * 1024
"""Maximum size, before compression, of a new segment; a single record may be larger."""
_PER_SEGMENT = 80
"""Additional manifest bytes allowed for each segment that it names."""
FEW = 4
"""Number of segments of similar size that are merged."""


class Dead(Struct):
    """Data of a stream that must not remain in any segment."""

    everything: bool = False
    rows: set[int] = field(default_factory=set)
    """Seqs of deleted or replaced records."""
    gone: set[int] = field(default_factory=set)
    """Seqs of deleted records, with their derived values."""
    versions: dict[int, int] = field(default_factory=dict)
    """Current versions of records; values derived from others are obsolete."""
    marks: set[tuple[int, str]] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self.everything or self.rows or self.gone or self.versions or self.marks)

    def may_be_in(self, part: Part) -> bool:
        """Return whether a part may contain any of it."""
        if self.everything or any(part.first <= seq <= part.last for seq in self.rows):
            return True
        seqs = (*self.gone, *self.versions, *(seq for seq, _ in self.marks))
        return any(part.mark_first <= seq <= part.mark_last for seq in seqs)

    def is_in(self, index: Index) -> bool:
        """Return whether a run contains any of it."""
        return (
            self.everything
            or any(index.place(seq) is not None for seq in self.rows)
            or not all(self.spares_mark(*mark) for mark in index.marks)
        )

    def spares(self, item: Item) -> bool:
        """Return whether a record remains."""
        return not self.everything and item.seq not in self.rows

    def spares_mark(self, seq: int, name: str, version: int) -> bool:
        """Return whether a derived value remains."""
        return not (
            self.everything
            or seq in self.gone
            or (seq, name) in self.marks
            or version not in (0, self.versions.get(seq, version))
        )


class Content(Struct):
    """Records and derived values of a stream."""

    items: list[Item] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


class Group(Struct, eq=False):
    """Content of one new segment: existing segments, and new data."""

    slots: list[int]
    raw: int
    new: dict[StreamName, Content] = field(default_factory=dict)
    changes: bool = False

    def join(self, other: Group) -> None:
        """Merge another one."""
        self.slots = sorted((*self.slots, *other.slots))
        self.raw += other.raw
        self.changes = True
        for name, content in other.new.items():
            mine = self.new.setdefault(name, Content())
            mine.items += content.items
            mine.marks += content.marks


class Draft:
    """A tenant after a commit, and the objects to write before its manifest."""

    def __init__(self, tenant: Tenant, library: Library) -> None:
        self.tenant: Tenant = tenant.copy()
        self.turn: bytes = secrets.token_bytes(8)
        """Id of this commit."""
        self.objects: dict[str, bytes] = {}
        """Segments and directories to write, by id."""
        self._library = library
        self._dead: dict[StreamName, Dead] = {}
        self._victims: dict[int, dict[StreamName, Dead]] = {}
        """Data to remove, by the number of the segment to rewrite."""
        self._dropped: set[StreamName] = set()

    async def make(self, batch: Batch) -> bytes:
        """Apply a batch whose expectations hold; return the bytes of the manifest."""
        tenant = self.tenant
        # That of a new manifest is larger than that of any deleted predecessor.
        tenant.turn = tenant.turn + 1 if tenant.etag is not None else time.time_ns() // 1000
        tenant.turns = [*tenant.turns, self.turn][-TURNS:]
        for change in batch.changes:
            self._take(change)
        for name, dead in self._dead.items():
            await self._find(name, dead)
        for name in self._dropped:
            tenant.drop(name)
        packed = tenant.packed()
        over = len(packed) > INLINE + _PER_SEGMENT * len(tenant.segments)
        new = await self._spill() if over else {}
        if new or self._victims:
            await self._repack(new)
            packed = tenant.packed()
        if (over and len(packed) > INLINE // 2) or any(name in tenant.base.by_name for name in self._dropped):
            self._seal()
            packed = tenant.packed()
        return write_manifest(packed)

    def _take(self, change: Change) -> None:
        """Apply the changes of one stream; changes in segments are only recorded."""
        tenant, name = self.tenant, change.name
        entry = tenant.entry(name)
        head = change.head
        if head is None:
            self._dead[name] = Dead(everything=True)
            self._dropped.add(name)
            return
        dead = self._dead.setdefault(name, Dead())
        tail = tenant.tail(name).copy()
        for seq, _ in change.removed:
            if tail.rows.pop(seq, None) is None:
                dead.rows.add(seq)
            dead.gone.add(seq)
        if change.removed:
            tail.marks = {at: mark for at, mark in tail.marks.items() if at[0] not in dead.gone}
        for kept in change.put:
            if kept.seq not in change.new:
                if kept.seq not in tail.rows:
                    dead.rows.add(kept.seq)
                dead.versions[kept.seq] = kept.version
            tail.rows[kept.seq] = Item.of(kept)
        if dead.versions:
            tail.marks = {
                at: mark
                for at, mark in tail.marks.items()
                if mark.version in (0, dead.versions.get(mark.seq, mark.version))
            }
        for seq, derived, version, value in change.derived:
            if value is None:
                tail.marks.pop((seq, derived), None)
                dead.marks.add((seq, derived))
            else:
                tail.marks[seq, derived] = Mark(seq, derived, version, value)
        tenant.set(name, head, entry.parts if entry is not None else [], tail)

    async def _find(self, name: StreamName, dead: Dead) -> None:
        """Find the segments that contain data to remove."""
        entry = self.tenant.entry(name)
        if entry is None or not dead:
            return
        for part in entry.parts:
            if dead.may_be_in(part) and (dead.everything or dead.is_in(await self._index(part, name))):
                self._victims.setdefault(part.slot, {})[name] = dead

    async def _spill(self) -> dict[StreamName, Content]:
        """Take everything out of the manifest that can be in a segment, and return it."""
        new: dict[StreamName, Content] = {}
        for name, entry in list(self.tenant.fresh.items()):
            if not entry.rows and not entry.marks:
                continue
            tail = self.tenant.tail(name)
            # A value that moves into a segment now may have replaced one in another segment.
            dead = self._dead.setdefault(name, Dead())
            dead.marks |= tail.marks.keys()
            await self._find(name, dead)
            items = [tail.rows[seq] for seq in sorted(tail.rows)]
            new[name] = Content(items, [tail.marks[at] for at in sorted(tail.marks)])
            self.tenant.set(name, entry.head, entry.parts, Tail({}, {}))
        return new

    async def _repack(self, new: dict[StreamName, Content]) -> None:
        """Write the necessary segments, and merge small ones."""
        groups = [
            Group([slot], segment.raw, changes=slot in self._victims) for slot, segment in self.tenant.segments.items()
        ]
        changed = [group for group in joined([*groups, *split(new)]) if group.changes]
        free = max(self.tenant.segments, default=0) + 1
        slots = [group.slots[0] if group.slots else free + n for n, group in enumerate(changed)]
        await asyncio.gather(*map(self._pack, changed, slots))

    async def _pack(self, group: Group, slot: int) -> None:
        """Write one segment, and update its streams' parts."""
        tenant = self.tenant
        segments = {old: tenant.segments[old] for old in group.slots}
        sources = {old: await self._library.whole(tenant.name, segments[old]) for old in segments}
        tables: dict[int, dict[StreamName, Place]] = {
            old: self._read(segment, read_table, sources[old][segment.size - segment.table :])
            for old, segment in segments.items()
        }
        runs: dict[StreamName, Run] = {}
        for name in sorted({*group.new, *(name for table in tables.values() for name in table)}):
            holders = [old for old in segments if name in tables[old]]
            part: Part | None = None
            if len(holders) == 1 and name not in group.new and name not in self._victims.get(holders[0], {}):
                runs[name] = copy_run(sources[holders[0]], tables[holders[0]][name])
                part = self._part(name, holders[0], slot)
            else:
                content = Content()
                for old in holders:
                    items, marks = self._read(segments[old], read_run, sources[old], tables[old][name])
                    dead = self._victims.get(old, {}).get(name, Dead())
                    content.items += [item for item in items if dead.spares(item)]
                    content.marks += [mark for mark in marks if dead.spares_mark(mark.seq, mark.name, mark.version)]
                if name in group.new:
                    content.items += group.new[name].items
                    content.marks += group.new[name].marks
                content.items.sort(key=lambda item: item.seq)
                content.marks.sort(key=lambda mark: (mark.seq, mark.name))
                if content.items or content.marks:
                    runs[name] = write_run(content.items, content.marks)
                    part = Part.of(slot, content.items, content.marks)
            self._place(name, group.slots, part)
        for old in segments:
            tenant.trash.append(tenant.segments.pop(old).id)
        if runs:
            data, table = write_segment(runs)
            segment = Segment(self._new(data), len(data), table, sum(run.raw for run in runs.values()))
            tenant.segments[slot] = segment

    def _part(self, name: StreamName, old: int, slot: int) -> Part | None:
        """Return the part of a stream that moves unchanged into another segment."""
        entry = self.tenant.entry(name)
        held = next((part for part in entry.parts if part.slot == old), None) if entry else None
        return None if held is None else replace(held, slot=slot)

    def _place(self, name: StreamName, slots: list[int], part: Part | None) -> None:
        """Replace the merged parts of a stream by the new one."""
        entry = self.tenant.entry(name)
        if entry is None or name in self._dropped:
            return
        parts = [other for other in entry.parts if other.slot not in slots]
        parts += [part] if part is not None else []
        if sorted(parts) != sorted(entry.parts):
            self.tenant.set(name, entry.head, parts, self.tenant.tail(name))

    def _seal(self) -> None:
        """List the streams in a new directory, except those with records in the manifest."""
        tenant = self.tenant
        everything = {**tenant.base.by_name, **tenant.fresh}
        fresh: dict[StreamName, Entry] = {}
        settled: list[Entry] = []
        for name, entry in sorted(everything.items()):
            if entry.rows or entry.marks:
                fresh[name] = entry
            elif name not in self._dropped:
                settled.append(entry)
        if tenant.directory is not None:
            tenant.trash.append(tenant.directory)
        tenant.fresh, tenant.base = fresh, Directory(settled)
        tenant.directory = self._new(write_directory(tenant.base)) if settled else None

    def _new(self, data: bytes) -> str:
        id = secrets.token_hex(16)
        self.objects[id] = data
        return id

    def _read(self, segment: Segment, reader: Any, *data: Any) -> Any:
        return self._library.read(self.tenant.name, segment, reader, *data)

    async def _index(self, part: Part, name: StreamName) -> Index:
        return await self._library.index(self.tenant.name, self.tenant.segments[part.slot], name)


def joined(groups: list[Group]) -> list[Group]:
    """Merge groups of similar size, until there are few of each size."""
    while True:
        sizes: dict[int, list[Group]] = {}
        for group in groups:
            if group.raw < FULL:
                sizes.setdefault(max(0, int(log(max(1, group.raw) / INLINE, FEW))), []).append(group)
        many = next((alike for _, alike in sorted(sizes.items()) if len(alike) >= FEW), None)
        if many is None:
            return groups
        for other in many[1:]:
            many[0].join(other)
            groups.remove(other)


def split(new: dict[StreamName, Content]) -> Iterator[Group]:
    """Yield new data in groups of limited size."""
    group = Group([], 0, changes=True)
    for name, content in new.items():
        things: list[Item | Mark] = [*content.items, *content.marks]
        for thing in things:
            size = size_of(thing)
            if group.raw and group.raw + size > MOST:
                yield group
                group = Group([], 0, changes=True)
            held = group.new.setdefault(name, Content())
            if isinstance(thing, Mark):
                held.marks.append(thing)
            else:
                held.items.append(thing)
            group.raw += size
    if group.raw:
        yield group
