"""Segments: immutable objects with records of many streams of a tenant.

A segment is a sequence of runs, one for each stream, and ends with a table of their positions. A run starts with
an index of its records without their bodies; then come blocks of bodies and of derived values, each compressed
separately. A reader fetches the table, an index, and the blocks that it needs; an unchanged run is copied into
another segment as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import zstandard
from msgspec import Raw, Struct, json, msgpack
from zstandard import ZstdError

from ...errors import TooLargeError
from ...store.planning import RecordState, StreamName
from ..keyvalue.kept import Kept, encode

MAGIC = b"mnemic segment 1\n"
"""First bytes of every segment."""
MAX_UNPACKED = 256 * 1024 * 1024
"""Maximum size of decompressed data, against decompression bombs."""
BLOCK = 64 * 1024
"""Minimum number of bytes compressed together."""
LEVEL = 3

_pack = msgpack.Encoder().encode


class Item(Struct):
    """A record with its body as JSON, which need not be parsed for the index."""

    seq: int
    key: str
    version: int
    created: int
    weight: int
    labels: dict[str, str]
    expires: int | None
    body: bytes

    @classmethod
    def of(cls, kept: Kept) -> Item:
        """Return a record to be stored."""
        return cls(kept.seq, kept.key, kept.version, kept.created, kept.weight, kept.labels, kept.expires, encode(kept))

    @classmethod
    def read(cls, body: bytes) -> Item:
        """Parse the record of a body."""
        known = _sketch(body)
        return cls(known.seq, known.key, known.version, known.created, known.weight, known.labels, known.expires, body)

    def slot(self) -> RecordState:
        """Return the state that the write path needs."""
        return RecordState(self.key, self.seq, self.version, self.created, self.weight, self.labels, self.expires)


class Mark(Struct, array_like=True, frozen=True):
    """A derived value: its record, name and version."""

    seq: int
    name: str
    version: int
    value: bytes = b""


class _Sketch(Struct, array_like=True):
    """The fields of a `Kept` that an index has."""

    key: str
    seq: int
    version: int
    text: Raw
    title: Raw
    data: Raw
    meta: Raw
    labels: dict[str, str]
    importance: Raw
    weight: int
    pinned: Raw
    created: int
    updated: Raw
    expires: int | None


class Index(Struct, array_like=True, dict=True):
    """Content of a run: records by seq, derived values by seq and name, and their blocks."""

    seqs: list[int]
    keys: list[str]
    versions: list[int]
    created: list[int]
    weights: list[int]
    labels: list[dict[str, str]]
    expires: list[int | None]
    marks: list[tuple[int, str, int]]
    """Seq, name and version of each derived value."""
    blocks: list[tuple[int, int]]
    """Size in bytes and number of bodies of each block."""
    mark_blocks: list[tuple[int, int]]

    @cached_property
    def by_key(self) -> dict[str, int]:
        """Position of each key."""
        return {key: place for place, key in enumerate(self.keys)}

    def place(self, seq: int) -> int | None:
        """Return the position of a record; None if it is not here."""
        at = bisect_left(self.seqs, seq)
        return at if at < len(self.seqs) and self.seqs[at] == seq else None

    def slot(self, place: int) -> RecordState:
        """Return the state of a record that the write path needs."""
        return RecordState(
            self.keys[place], self.seqs[place], self.versions[place], self.created[place],
            self.weights[place], self.labels[place], self.expires[place],
        )  # fmt: skip

    def item(self, place: int, body: bytes) -> Item:
        """Return a record, with its body."""
        return Item(
            self.seqs[place], self.keys[place], self.versions[place], self.created[place],
            self.weights[place], self.labels[place], self.expires[place], body,
        )  # fmt: skip

    def spots(self, places: Iterable[int], *, of_marks: bool) -> dict[int, Spot]:
        """Return the blocks with these positions, by number."""
        blocks = self.mark_blocks if of_marks else self.blocks
        offset = sum(size for size, _ in self.blocks) if of_marks else 0
        wanted = sorted(set(places))
        found: dict[int, Spot] = {}
        first = at = 0
        for number, (size, count) in enumerate(blocks):
            if at < len(wanted) and wanted[at] < first + count:
                found[number] = Spot(offset, size, first)
                while at < len(wanted) and wanted[at] < first + count:
                    at += 1
            first += count
            offset += size
        return found


class Spot(Struct, frozen=True):
    """Offset of a block after its index, and the position of its first item."""

    offset: int
    size: int
    first: int


class Place(Struct, array_like=True, frozen=True):
    """Position of a stream's run in a segment."""

    scope: str
    kind: str
    offset: int
    index: int
    """Size of its index in bytes; the blocks follow."""
    size: int
    raw: int
    """Approximate size before compression."""


class Run(Struct):
    """A serialized run: its bytes, the size of its index, and its size before compression."""

    data: bytes
    index: int
    raw: int


def write_run(items: Sequence[Item], marks: Sequence[Mark]) -> Run:
    """Serialize the sorted records and derived values of one stream."""
    blocks, sizes = _blocks([item.body for item in items])
    mark_blocks, mark_sizes = _blocks([mark.value for mark in marks])
    index = compress(
        _pack(
            Index(
                [item.seq for item in items],
                [item.key for item in items],
                [item.version for item in items],
                [item.created for item in items],
                [item.weight for item in items],
                [item.labels for item in items],
                [item.expires for item in items],
                [(mark.seq, mark.name, mark.version) for mark in marks],
                sizes,
                mark_sizes,
            )
        )
    )
    raw = sum(map(size_of, items)) + sum(map(size_of, marks))
    return Run(b"".join((index, *blocks, *mark_blocks)), len(index), raw)


def copy_run(data: bytes, place: Place) -> Run:
    """Return a run from the bytes of a segment, unchanged."""
    return Run(data[place.offset : place.offset + place.size], place.index, place.raw)


def write_segment(runs: Mapping[StreamName, Run]) -> tuple[bytes, int]:
    """Return the bytes of a segment, and the size of the table at its end."""
    places = []
    offset = len(MAGIC)
    for name, run in runs.items():
        places.append(Place(*name, offset, run.index, len(run.data), run.raw))
        offset += len(run.data)
    table = compress(_pack(places))
    return b"".join((MAGIC, *(run.data for run in runs.values()), table)), len(table)


def read_table(data: bytes) -> dict[StreamName, Place]:
    """Return the position of each stream's run."""
    return {(place.scope, place.kind): place for place in _places(decompress(data))}


def read_index(data: bytes) -> Index:
    """Return the index of a run."""
    return _index(decompress(data))


def read_block(data: bytes) -> list[bytes]:
    """Return the bodies, or the values, of a block."""
    return _bodies(decompress(data))


def read_run(data: bytes, place: Place) -> tuple[list[Item], list[Mark]]:
    """Return all records and derived values of a run."""
    start = place.offset + place.index
    index = read_index(data[place.offset : start])
    parts: list[list[bytes]] = []
    for blocks in (index.blocks, index.mark_blocks):
        bodies: list[bytes] = []
        for size, _ in blocks:
            bodies += read_block(data[start : start + size])
            start += size
        parts.append(bodies)
    items = [index.item(at, body) for at, body in enumerate(parts[0])]
    return items, [Mark(*mark, value) for mark, value in zip(index.marks, parts[1], strict=True)]


def size_of(thing: Item | Mark) -> int:
    """Return the approximate size of a record or a derived value, before compression."""
    return len(thing.value) + 16 if isinstance(thing, Mark) else len(thing.body) + 64


def compress(data: bytes) -> bytes:
    """Compress bytes, with a checksum; raises TooLargeError for more than `decompress` accepts."""
    if len(data) > MAX_UNPACKED:
        raise TooLargeError(f"{len(data):,} bytes are too many for one object, which holds {MAX_UNPACKED:,}")
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data)


def decompress(data: bytes) -> bytes:
    """Decompress bytes; raises ZstdError if they are damaged, or larger than MAX_UNPACKED."""
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= MAX_UNPACKED:
        raise ZstdError(f"unpacked it would have {size:,} bytes" if size > 0 else "its size is not known")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_UNPACKED)


def _blocks(bodies: Sequence[bytes]) -> tuple[list[bytes], list[tuple[int, int]]]:
    blocks = [(compress(_pack(some)), len(some)) for some in _grouped(bodies)]
    return [data for data, _ in blocks], [(len(data), count) for data, count in blocks]


def _grouped(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for body in bodies:
        some.append(body)
        size += len(body)
        if size >= BLOCK:
            yield some
            some, size = [], 0
    if some:
        yield some


_sketch = json.Decoder(_Sketch).decode
_places = msgpack.Decoder(list[Place]).decode
_index = msgpack.Decoder(Index).decode
_bodies = msgpack.Decoder(list[bytes]).decode
