"""Objects in a bucket: their keys, the manifest of a scope, and segments of records.

A manifest lists the streams of a scope with their newest records. Older records are in segments, each an immutable
object with the records of one stream in a range of seqs. The ranges of a stream's segments do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeVar

import zstandard
from msgspec import MsgspecError, Struct, field, msgpack
from zstandard import ZstdError

from ...checks import to_microseconds
from ...errors import NewerSchemaError, TooLargeError, UnreadableStoreError
from ...records import Record
from ...store.codec import encode_record
from ...store.stream_state import RecordState, StreamState

FORMAT = 1
MAX_PREFIX = 150
"""Maximum size of a store's prefix in bytes: with 825 for a scope and 32 for an id, S3's 1,024 suffice."""
MAX_SCOPE_KEY = 200
"""Maximum number of characters of an encoded scope in a key; the rest of a longer one is replaced by a hash."""
MAX_UNPACKED = 256 * 1024 * 1024
"""Maximum size of decompressed data, against decompression bombs."""
MAX_SEGMENT = 2 * 1024 * 1024
"""Maximum size, before compression, of a segment with more than one record; smaller than half of it is small."""
_KEY_BOUND = 32
"""How many characters of keys are kept as bounds of a segment; truncation preserves order."""

Derived = dict[str, tuple[int, bytes]]
"""Derived values by name, with their versions."""
Content = TypeVar("Content", "Manifest", "SegmentRecords")

pack: Callable[[Any], bytes] = msgpack.Encoder().encode


class ObjectKeys:
    """Keys of a store's objects; those of manifests sort like their scopes."""

    def __init__(self, prefix: str) -> None:
        start = f"{prefix}/" if prefix else ""
        self.marker: str = f"{start}mnemic"
        self.manifests: str = f"{start}manifests/"
        self.segments: str = f"{start}segments/"

    def manifest(self, scope: str) -> str:
        name = _encoded(scope)
        if len(name) > MAX_SCOPE_KEY:
            name = f"{name[:MAX_SCOPE_KEY]}~{sha256(name.encode()).hexdigest()[:24]}"
        return self.manifests + name

    def segment(self, manifest: str, id: str) -> str:
        """Return the key of a segment of the scope with this manifest."""
        return f"{self.segments}{manifest.removeprefix(self.manifests)}/{id}"

    def manifest_of(self, segment: str) -> str:
        return self.manifests + segment.removeprefix(self.segments).rpartition("/")[0]

    def scope_of(self, manifest: str) -> str:
        """Return the scope of a manifest; of a long one, its start."""
        return manifest.removeprefix(self.manifests)[1:].replace("/_", "/")

    def below(self, scope: str) -> str:
        """Return a common prefix of the manifests of all scopes below one."""
        return self.manifests + (f"{_encoded(scope)}/"[:MAX_SCOPE_KEY] if scope else "")

    def order(self, manifest: str) -> str:
        """Return the part of a manifest's key that sorts like the scope; long scopes may have it in common."""
        return manifest[: len(self.manifests) + MAX_SCOPE_KEY]


def _encoded(scope: str) -> str:
    # UTF-8 sorts like its text. The underscores keep segments such as '..' from being folders.
    return "_" + scope.replace("/", "/_")


class StoredRecord(RecordState, array_like=True, frozen=True):
    """A record as it is stored, with its body as JSON."""

    body: bytes = b""
    derived: Derived = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record, derived: Derived) -> StoredRecord:
        assert record.created is not None
        expires = None if record.expires is None else to_microseconds(record.expires)
        return cls(
            record.key, record.seq, record.version, to_microseconds(record.created), record.weight, record.labels,
            expires, encode_record(record), derived,
        )  # fmt: skip

    @property
    def size(self) -> int:
        return 64 + len(self.body) + (_size_of(self.derived) if self.derived else 0)


class SegmentRecords(Struct, array_like=True, dict=True):
    """Content of a segment: records by seq."""

    records: list[StoredRecord]

    @cached_property
    def by_key(self) -> dict[str, StoredRecord]:
        return {record.key: record for record in self.records}


class Segment(Struct, array_like=True, frozen=True):
    """A reference to a segment, with the bounds of its seqs and keys."""

    id: str
    first: int
    last: int
    low: str
    high: str
    size: int

    @classmethod
    def of(cls, id: str, records: Sequence[StoredRecord]) -> Segment:
        keys = [record.key[:_KEY_BOUND] for record in records]
        return cls(id, records[0].seq, records[-1].seq, min(keys), max(keys), sum(record.size for record in records))

    @property
    def small(self) -> bool:
        """Whether it is merged with a neighbor that is rewritten."""
        return self.size < MAX_SEGMENT // 2

    def may_hold(self, keys: Iterable[str]) -> bool:
        return any(self.low <= key[:_KEY_BOUND] <= self.high for key in keys)

    def covers(self, seqs: Iterable[int]) -> bool:
        return any(self.first <= seq <= self.last for seq in seqs)


class StreamEntry(Struct, array_like=True):
    """A stream: its state, its segments in the order of their seqs, and its inline data."""

    state: StreamState | None = None
    """None only if the stream does not exist."""
    segments: list[Segment] = field(default_factory=list)
    inline: dict[int, StoredRecord] = field(default_factory=dict)
    """Records by seq: new ones, and changed ones that are not in a segment any more."""
    derived: dict[int, Derived] = field(default_factory=dict)
    """Newer derived values of records in segments, by seq."""

    @property
    def inline_size(self) -> int:
        return sum(record.size for record in self.inline.values()) + sum(map(_size_of, self.derived.values()))


class Manifest(Struct, array_like=True):
    """The content of a scope; without streams, the scope counts as absent."""

    scope: str = ""
    number: int = 0
    """Number of this commit; that of a recreated manifest is larger than any before."""
    commits: list[bytes] = field(default_factory=list)
    """Ids of the latest commits, to identify one whose answer was lost."""
    streams: dict[str, StreamEntry] = field(default_factory=dict)
    """Streams by kind."""
    trash: list[str] = field(default_factory=list)
    """Ids of former segments that may not be deleted yet."""
    etag: str | None = None
    """None in the object itself, and if there is no object."""

    @property
    def segments(self) -> list[Segment]:
        return [segment for entry in self.streams.values() for segment in entry.segments]

    def stream(self, kind: str) -> StreamEntry:
        return self.streams.get(kind) or StreamEntry()


def split(records: Iterable[StoredRecord]) -> list[list[StoredRecord]]:
    """Divide sorted records into the contents of segments."""
    parts: list[list[StoredRecord]] = []
    total = 0
    for record in records:
        total += (size := record.size)
        if not parts or total > MAX_SEGMENT:
            parts.append([])
            total = size
        parts[-1].append(record)
    return parts


def _size_of(derived: Derived) -> int:
    return sum(16 + len(value) for _, value in derived.values())


def write_object(content: Manifest | SegmentRecords) -> bytes:
    """Return the bytes of an object; raises TooLargeError for more than `read_object` accepts."""
    data = pack(content)
    if len(data) > MAX_UNPACKED:
        raise TooLargeError(f"{len(data):,} bytes are too many for one object, which holds {MAX_UNPACKED:,}")
    return _header(type(content)) + zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)


def read_object(content: type[Content], data: bytes, where: str) -> Content:
    """Return the content of an object.

    Raises UnreadableStoreError, or NewerSchemaError, which say where it is.
    """
    header = _header(content)
    if not data.startswith(header):
        words = data[:40].partition(b"\n")[0].decode(errors="replace").split()
        if words[:2] == ["mnemic", _NAMES[content]] and words[-1].isdigit() and int(words[-1]) > FORMAT:
            raise NewerSchemaError(f"{where} was written by a newer version of Mnemic; upgrade this one")
        raise UnreadableStoreError(f"{where} is not a Mnemic {_NAMES[content]}")
    try:
        return msgpack.decode(_unpack(data[len(header) :]), type=content)
    except (MsgspecError, ZstdError) as error:
        raise UnreadableStoreError(f"{where} is damaged ({error})") from error


def _unpack(data: bytes) -> bytes:
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= MAX_UNPACKED:
        raise ZstdError(f"unpacked it would have {size:,} bytes" if size > 0 else "its size is not known")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_UNPACKED)


_NAMES: dict[type[Manifest | SegmentRecords], str] = {Manifest: "manifest", SegmentRecords: "segment"}


def _header(content: type[Manifest | SegmentRecords]) -> bytes:
    return f"mnemic {_NAMES[content]} {FORMAT}\n".encode()
