"""Reads one stream of a tenant from its manifest and segments."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence

from ...store.planning import RecordState, StreamName
from ..keyvalue.engine import Span
from ..keyvalue.kept import Row, decode_kept
from .library import Library
from .manifest import Entry, Part, Segment, Tail, Tenant
from .segment import Index


class Reader:
    """Reads a stream as of its manifest; raises GoneError if a segment was deleted since."""

    def __init__(self, tenant: Tenant, name: StreamName, library: Library) -> None:
        self._tenant = tenant
        self._name = name
        self._library = library
        self.entry: Entry | None = tenant.entry(name)
        self._tail: Tail = tenant.tail(name)
        self._parts: list[Part] = self.entry.parts if self.entry is not None else []

    async def slots(self, keys: Collection[str]) -> dict[str, RecordState | None]:
        """Return the state of the records of some keys; None for one that does not exist."""
        found: dict[str, RecordState | None] = dict.fromkeys(keys)
        sought = set()
        for key in keys:
            if (item := self._tail.by_key.get(key)) is not None:
                found[key] = item.slot()
            else:
                sought.add(key)
        for _, index in await self._indexes(part for part in self._parts if part.may_hold(sought)):
            found |= {key: index.slot(index.by_key[key]) for key in sought if key in index.by_key}
        return found

    async def all_slots(self) -> dict[str, RecordState | None]:
        """Return the state of all records."""
        found: dict[str, RecordState | None] = {key: item.slot() for key, item in self._tail.by_key.items()}
        for _, index in await self._indexes(self._parts):
            found |= {key: index.slot(place) for place, key in enumerate(index.keys)}
        return found

    async def labeled(self, label: str, values: Sequence[str]) -> list[int]:
        """Return the seqs of records with a label of one of these values."""
        wanted = set(values)
        found = [item.seq for item in self._tail.rows.values() if item.labels.get(label) in wanted]
        for _, index in await self._indexes(self._parts):
            found += [seq for seq, labels in zip(index.seqs, index.labels, strict=True) if labels.get(label) in wanted]
        return found

    async def find(self, keys: Sequence[str]) -> list[Row]:
        """Return the records of some keys."""
        slots = await self.slots(keys)
        return await self._rows([slot.seq for slot in slots.values() if slot is not None], ())

    async def rows(self, span: Span) -> list[Row]:
        """Return the requested records."""
        return await self._rows(span.seqs if span.seqs is not None else await self._seqs(span), span.derived)

    async def _rows(self, seqs: Sequence[int], derived: Sequence[str]) -> list[Row]:
        bodies = await self._bodies(seqs)
        values = await self._values(bodies.keys(), derived) if derived else {}
        return [Row(decode_kept(bodies[seq]), values.get(seq, {})) for seq in seqs if seq in bodies]

    async def _seqs(self, span: Span) -> list[int]:
        """Return the next seqs in the requested order."""
        found = _next(self._tail.seqs, span)
        if span.reverse:
            parts = sorted(self._parts, key=lambda part: -part.last)
        else:
            parts = sorted(self._parts, key=lambda part: part.first)
        for part in parts:
            if part.first > part.last:
                continue
            if len(found) == span.limit and (
                not found or (part.last < found[-1] if span.reverse else part.first > found[-1])
            ):
                break  # all that follows is beyond what was found already
            if span.after is not None and (part.first >= span.after if span.reverse else part.last <= span.after):
                continue
            index = await self._index(part)
            found = sorted((*found, *_next(index.seqs, span)), reverse=span.reverse)[: span.limit]
        return found

    async def _bodies(self, seqs: Collection[int]) -> dict[int, bytes]:
        found = {seq: self._tail.rows[seq].body for seq in seqs if seq in self._tail.rows}
        sought = sorted(seq for seq in seqs if seq not in found)
        parts = [part for part in self._parts if _any_within(sought, part.first, part.last)]

        async def read(part: Part, index: Index) -> dict[int, bytes]:
            places = {place: seq for seq in sought if (place := index.place(seq)) is not None}
            bodies = await self._library.bodies(self._tenant.name, self._segment(part), self._name, places)
            return {places[place]: body for place, body in bodies.items()}

        for some in await asyncio.gather(*(read(*held) for held in await self._indexes(parts))):
            found |= some
        return found

    async def _values(self, seqs: Collection[int], names: Sequence[str]) -> dict[int, dict[str, tuple[int, bytes]]]:
        """Return derived values by seq and name."""
        found: dict[int, dict[str, tuple[int, bytes]]] = {}
        for mark in self._tail.marks.values():
            if mark.seq in seqs and mark.name in names:
                found.setdefault(mark.seq, {})[mark.name] = (mark.version, mark.value)
        sought = sorted(seqs)
        parts = [part for part in self._parts if _any_within(sought, part.mark_first, part.mark_last)]

        async def read(part: Part, index: Index) -> None:
            start = bisect_left(index.marks, (sought[0], "", 0))
            end = bisect_left(index.marks, (sought[-1] + 1, "", 0))
            places = {
                place: index.marks[place]
                for place in range(start, end)
                if index.marks[place][0] in seqs
                and index.marks[place][1] in names
                and index.marks[place][:2] not in self._tail.marks
            }
            values = await self._library.bodies(
                self._tenant.name, self._segment(part), self._name, places, of_marks=True
            )
            for place, (seq, name, version) in places.items():
                found.setdefault(seq, {})[name] = (version, values[place])

        await asyncio.gather(*(read(*held) for held in await self._indexes(parts)))
        return found

    async def _indexes(self, parts: Iterable[Part]) -> list[tuple[Part, Index]]:
        some = list(parts)
        return list(zip(some, await asyncio.gather(*map(self._index, some)), strict=True))

    async def _index(self, part: Part) -> Index:
        return await self._library.index(self._tenant.name, self._segment(part), self._name)

    def _segment(self, part: Part) -> Segment:
        return self._tenant.segments[part.slot]


def _next(seqs: list[int], span: Span) -> list[int]:
    """Return the next of some ascending seqs, in the requested order."""
    if span.reverse:
        end = len(seqs) if span.after is None else bisect_left(seqs, span.after)
        return seqs[max(0, end - span.limit) : end][::-1]
    start = 0 if span.after is None else bisect_right(seqs, span.after)
    return seqs[start : start + span.limit]


def _any_within(seqs: list[int], first: int, last: int) -> bool:
    at = bisect_left(seqs, first)
    return at < len(seqs) and seqs[at] <= last
