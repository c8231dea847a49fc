"""The manifest of a tenant: its streams, and the locations of their records.

The newest records are in the manifest itself, the others in segments. If there are many streams, those that have
not changed recently are listed in a directory, a separate immutable object.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import MsgspecError, Struct, field, msgpack
from zstandard import ZstdError

from ...errors import NewerSchemaError, StoreError, UnreadableStoreError
from ...store.planning import StreamName
from ..keyvalue.kept import KeptHead
from .segment import Item, Mark, compress, decompress

FORMAT = 1
TURNS = 64
"""Number of recent commits named in a manifest."""
_PREFIX = 32
"""How many characters of keys are kept as bounds; truncation preserves order."""


class Part(Struct, array_like=True, frozen=True, order=True):
    """Seq and key bounds of a stream's data in a segment; empty if `first` is larger."""

    slot: int
    """Segment number, which stays when it is rewritten."""
    first: int
    last: int
    mark_first: int
    mark_last: int
    low: str
    high: str

    @classmethod
    def of(cls, slot: int, items: list[Item], marks: list[Mark]) -> Part:
        """Return the bounds of sorted records and derived values."""
        keys = [item.key[:_PREFIX] for item in items]
        return cls(
            slot,
            items[0].seq if items else 1,
            items[-1].seq if items else 0,
            marks[0].seq if marks else 1,
            marks[-1].seq if marks else 0,
            min(keys, default=""),
            max(keys, default=""),
        )

    def may_hold(self, keys: Iterable[str]) -> bool:
        """Return whether one of these keys may be in it."""
        return self.first <= self.last and any(self.low <= key[:_PREFIX] <= self.high for key in keys)


class Entry(Struct, array_like=True):
    """A stream."""

    head: KeptHead
    parts: list[Part] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


class Segment(Struct, array_like=True, frozen=True):
    """A segment in use."""

    id: str
    size: int
    table: int
    """Size of its table, in bytes, at its end."""
    raw: int
    """Approximate size before compression."""


class Directory(Struct, array_like=True, dict=True):
    """Streams without inline records, as of when it was written."""

    streams: list[Entry]

    @cached_property
    def by_name(self) -> dict[StreamName, Entry]:
        """The streams by name."""
        return {entry.head.name: entry for entry in self.streams}


class _Manifest(Struct, array_like=True):
    tenant: str
    turn: int
    turns: list[bytes]
    segments: dict[int, Segment]
    streams: list[Entry]
    directory: str | None
    trash: list[str]


class Tail:
    """Inline data of a stream in the manifest."""

    def __init__(self, rows: dict[int, Item], marks: dict[tuple[int, str], Mark]) -> None:
        self.rows = rows
        self.marks = marks
        """By seq and name; each takes precedence over one in a segment."""

    @classmethod
    def of(cls, entry: Entry) -> Tail:
        """Return the inline data of an entry."""
        items = map(Item.read, entry.rows)
        return cls({item.seq: item for item in items}, {(mark.seq, mark.name): mark for mark in entry.marks})

    @cached_property
    def by_key(self) -> dict[str, Item]:
        """The records by key."""
        return {item.key: item for item in self.rows.values()}

    @cached_property
    def seqs(self) -> list[int]:
        """The seqs of the records, in order."""
        return sorted(self.rows)

    def copy(self) -> Tail:
        """Return an independent copy."""
        return Tail(dict(self.rows), dict(self.marks))


class Tenant:
    """A manifest, read or to be written; one that was read is never modified."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.etag: str | None = None
        """None if there is no manifest yet."""
        self.turn = 0
        self.turns: list[bytes] = []
        """Ids of recent commits, to identify one whose answer was lost."""
        self.segments: dict[int, Segment] = {}
        self.fresh: dict[StreamName, Entry] = {}
        """Streams listed in the manifest itself."""
        self.directory: str | None = None
        self.base: Directory = Directory([])
        """The other streams, from the directory."""
        self.trash: list[str] = []
        """Unused objects that may not be deleted yet."""
        self.complete = True
        """Whether the directory is loaded."""
        self.size = 0
        """Approximate memory use in bytes."""
        self._tails: dict[StreamName, Tail] = {}

    def entry(self, name: StreamName) -> Entry | None:
        """Return a stream."""
        return self.fresh.get(name) or self.base.by_name.get(name)

    def head(self, name: StreamName) -> KeptHead | None:
        """Return the head of a stream."""
        entry = self.entry(name)
        return None if entry is None else entry.head

    def tail(self, name: StreamName) -> Tail:
        """Return the inline data of a stream."""
        if name not in self._tails:
            entry = self.fresh.get(name)
            self._tails[name] = Tail.of(entry) if entry is not None else Tail({}, {})
        return self._tails[name]

    @cached_property
    def names(self) -> list[StreamName]:
        """The names of all streams, in order."""
        return sorted({*self.base.by_name, *self.fresh})

    def copy(self) -> Tenant:
        """Return a copy-on-write copy."""
        twin = Tenant(self.name)
        twin.etag, twin.turn, twin.directory, twin.base = self.etag, self.turn, self.directory, self.base
        twin.turns, twin.trash = list(self.turns), list(self.trash)
        twin.segments, twin.fresh = dict(self.segments), dict(self.fresh)
        twin._tails = dict(self._tails)
        return twin

    def set(self, name: StreamName, head: KeptHead, parts: list[Part], tail: Tail) -> None:
        """Set a stream."""
        rows = [item.body for item in tail.rows.values()]
        self.fresh[name] = Entry(head, parts, rows, list(tail.marks.values()))
        self._tails[name] = tail

    def drop(self, name: StreamName) -> None:
        """Remove a stream; if the directory lists it, a new directory is needed."""
        self.fresh.pop(name, None)
        self._tails.pop(name, None)

    def packed(self) -> bytes:
        """Return the manifest before compression."""
        return _pack(
            _Manifest(
                self.name, self.turn, self.turns, self.segments, list(self.fresh.values()), self.directory,
                self.trash,
            )
        )  # fmt: skip


def write_manifest(packed: bytes) -> bytes:
    """Return the bytes of a manifest."""
    return _header("manifest", FORMAT) + compress(packed)


def read_manifest(data: bytes, etag: str, where: str) -> Tenant:
    """Parse a manifest, without its directory.

    Raises UnreadableStoreError or NewerSchemaError, naming its location.
    """
    try:
        found = _manifest(_content(data, "manifest", where))
    except (MsgspecError, ZstdError) as error:
        raise damaged(where, error) from error
    tenant = Tenant(found.tenant)
    tenant.etag, tenant.turn, tenant.turns, tenant.segments = etag, found.turn, found.turns, found.segments
    tenant.fresh = {entry.head.name: entry for entry in found.streams}
    tenant.directory, tenant.trash = found.directory, found.trash
    tenant.complete, tenant.size = False, 10 * len(data)
    return tenant


def write_directory(directory: Directory) -> bytes:
    """Return the bytes of a directory."""
    return _header("directory", FORMAT) + compress(_pack(directory))


def read_directory(data: bytes, where: str) -> Directory:
    """Parse a directory; raises as `read_manifest` does."""
    try:
        return _directory(_content(data, "directory", where))
    except (MsgspecError, ZstdError) as error:
        raise damaged(where, error) from error


def damaged(where: str, error: Exception) -> StoreError:
    """Return the error for damaged bytes."""
    return UnreadableStoreError(f"{where} is damaged ({error})")


def _header(what: str, format: int) -> bytes:
    return f"mnemic {what} {format}\n".encode()


def _content(data: bytes, what: str, where: str) -> bytes:
    header, line, _ = data[:40].partition(b"\n")
    if header + line != _header(what, FORMAT):
        words = header.decode(errors="replace").split()
        if line and words[:2] == ["mnemic", what] and words[-1].isdigit() and int(words[-1]) > FORMAT:
            raise NewerSchemaError(f"{where} was written by a newer version of Mnemic; upgrade this one")
        raise UnreadableStoreError(f"{where} is not a Mnemic {what}")
    return decompress(data[len(header) + 1 :])


_pack = msgpack.Encoder().encode
_manifest = msgpack.Decoder(_Manifest).decode
_directory = msgpack.Decoder(Directory).decode
