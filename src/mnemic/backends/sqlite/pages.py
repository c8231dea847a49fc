"""Reads the rows of an SQLite file page by page, without SQLite, so that damage in one page hides no other.

Only what a page lists as its cells is read: never free space, free pages or uncommitted pages of the log, so that
nothing that was deleted comes back. Every number in the file may be wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
LEAF_TABLE, LEAF_INDEX, INNER_TABLE, INNER_INDEX = 0x0D, 0x0A, 0x05, 0x02
WAL_MAGIC = 0x377F0682
WAL_HEADER_BYTES, FRAME_BYTES = 32, 24
GUESSES = ((4096, 0), (4096, 12))
"""Page size and reserved bytes that SQLite gives to new files, the second on macOS."""
MOST_COLUMNS = 100
LOOKS = 3
"""How often a damaged log is looked at: a frame that is being written looks like a damaged one."""

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from


class DamagedPageError(ValueError):
    """Bytes that are not what their place requires."""


class TableRow(Struct, frozen=True):
    """A row of a table, or an entry of an index, which has no rowid of its own."""

    rowid: int | None
    values: list[Any]


class PageFile:
    """The pages of a database as they were committed last, in the file or in the log beside it."""

    def __init__(self, path: Path, layout: tuple[int, int] | None = None) -> None:
        """Open a file for reading; `layout` is its page size and reserved bytes, if not those of its header."""
        self._file: BinaryIO = path.open("rb")
        header = self._file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
        self.header_is_damaged: bool = not header.startswith(MAGIC)
        self.layout: tuple[int, int] = layout or declared_layout(header)
        self.size: int = self.layout[0]
        self.usable: int = self.size - self.layout[1]
        self.bytes: int = self._file.seek(0, 2)
        self._log: BinaryIO | None = None
        self._in_log: dict[int, int] = {}
        self.count: int = -(-self.bytes // self.size)
        self.log_damage: str | None = None
        declared = _u32(header, 28)[0] if not self.header_is_damaged and header[24:28] == header[92:96] else 0
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size > WAL_HEADER_BYTES:
            self._log = log.open("rb")
            self._read_log(self._log)
        here = -(-self.bytes // self.size)
        self.missing: int = (
            sum(number not in self._in_log for number in range(here + 1, self.count + 1))
            if self._in_log
            else max(0, declared - here)
        )
        """How many pages the database has that are neither in the file nor in its log."""

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._log is not None:
            self._log.close()

    def page(self, number: int) -> bytes:
        """Return a page, filled with zeros if the file ends before it does; raises Damaged if there is none."""
        if not 1 <= number <= self.count:
            raise DamagedPageError(f"there is no page {number}")
        if self._log is not None and (place := self._in_log.get(number)) is not None:
            self._log.seek(place)
            return self._log.read(self.size).ljust(self.size, b"\0")
        self._file.seek((number - 1) * self.size)
        return self._file.read(self.size).ljust(self.size, b"\0")

    def rows(self, number: int) -> Iterator[TableRow | DamagedPageError]:
        """Yield the rows of a page in order, or what is wrong with one; none of a page that has no rows."""
        page = self.page(number)
        start = HEADER_BYTES if number == 1 else 0
        kind = page[start]
        if kind not in (LEAF_TABLE, LEAF_INDEX, INNER_INDEX):
            return
        first = start + (12 if kind == INNER_INDEX else 8)
        cells = _u16(page, start + 3)[0]
        end = first + 2 * cells
        if end > self.usable:
            yield DamagedPageError(f"page {number} lists {cells:,} rows, which do not fit")
            return
        for place in range(first, end, 2):
            at = _u16(page, place)[0]
            try:
                if not end <= at < self.usable:
                    raise DamagedPageError(f"a row of page {number} is outside of it")
                yield self._cell(page, at, kind)
            except (DamagedPageError, IndexError, struct.error, UnicodeDecodeError) as error:
                yield DamagedPageError(f"page {number}: {error}")

    def kind(self, number: int) -> int:
        """Return the first byte of a page, which tells what it holds."""
        return self.page(number)[HEADER_BYTES if number == 1 else 0]

    def free_pages(self) -> set[int]:
        """Return the pages that the file lists as free, as far as that list can be read."""
        found: set[int] = set()
        trunk = _u32(self.page(1), 32)[0]
        while trunk and trunk <= self.count and trunk not in found:
            page = self.page(trunk)
            following, leaves = _u32(page, 0)[0], _u32(page, 4)[0]
            listed = [_u32(page, 8 + 4 * n)[0] for n in range(min(leaves, self.usable // 4 - 2))]
            if following > self.count or leaves > self.usable // 4 - 2 or not all(0 < n <= self.count for n in listed):
                break
            found.update([trunk, *listed])
            trunk = following
        return found

    def _cell(self, page: bytes, at: int, kind: int) -> TableRow:
        if kind == INNER_INDEX:
            at += 4
        size, at = varint(page, at)
        rowid: int | None = None
        if kind == LEAF_TABLE:
            rowid, at = varint(page, at)
            rowid -= (rowid >> 63) << 64
        return TableRow(rowid, values_of(self._payload(page, at, size, table=kind == LEAF_TABLE)))

    def _payload(self, page: bytes, at: int, size: int, *, table: bool) -> bytes:
        """Return the bytes of a row, of which all but the first may be in a chain of overflow pages."""
        most = self.usable - 35 if table else (self.usable - 12) * 64 // 255 - 23
        if size <= most:
            return _slice(page, at, size, self.usable)
        if size > self.bytes + len(self._in_log) * self.size:
            raise DamagedPageError("a row is longer than the file")
        least = (self.usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (self.usable - 4)
        local = local if local <= most else least
        parts = [_slice(page, at, local, self.usable)]
        following, left = _u32(page, at + local)[0], size - local
        while left:
            overflow = self.page(following)
            parts.append(overflow[4 : 4 + min(left, self.usable - 4)])
            left -= len(parts[-1])
            following = _u32(overflow, 0)[0]
        return b"".join(parts)

    def _read_log(self, log: BinaryIO) -> None:
        """Note where the log has newer pages: up to its last commit before anything is wrong with it."""
        header = log.read(WAL_HEADER_BYTES)
        magic, _, size, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", header)
        order = ">" if magic & 1 else "<"
        sums = _checksum(header[:24], order, 0, 0)
        if magic & ~1 != WAL_MAGIC or size != self.size or sums != (sum1, sum2):
            if header.strip(b"\0"):
                self.log_damage = "the header of the write-ahead log is damaged, so that nothing in it can be used"
            else:
                self.log_damage = "the write-ahead log is filled with zeros"
            return
        pending: dict[int, int] = {}
        place = WAL_HEADER_BYTES
        while len(frame := log.read(FRAME_BYTES + size)) == FRAME_BYTES + size:
            number, pages, *salts, sum1, sum2 = struct.unpack(">6I", frame[:FRAME_BYTES])
            sums = _checksum(frame[:8] + frame[FRAME_BYTES:], order, *sums)
            if salts != [salt1, salt2] or sums != (sum1, sum2):
                # What follows may be left over, from an earlier log or an unfinished write: then it has no commit.
                ours = salts[0] == salt1 or salts[1] == salt2
                if (pages and ours) or _has_commit(log, size, (salt1, salt2)):
                    self.log_damage = f"the write-ahead log is damaged at byte {place:,}; what follows cannot be used"
                return
            pending[number] = place + FRAME_BYTES
            if pages:
                self._in_log |= pending
                pending, self.count = {}, pages
            place += FRAME_BYTES + size


def log_damage(path: Path) -> str | None:
    """Return the damage of the write-ahead log of a file, None if it has none; it may be in use."""
    found: str | None = None
    for _ in range(LOOKS):
        with closing(PageFile(path)) as pages:
            if pages.log_damage is None or found not in (None, pages.log_damage):
                return None  # a writer was at work there
            found = pages.log_damage
    return found


def _has_commit(log: BinaryIO, size: int, salts: tuple[int, int]) -> bool:
    """Return whether a frame that follows ends a commit since the log was last started again."""
    while len(frame := log.read(FRAME_BYTES + size)) == FRAME_BYTES + size:
        _, pages, *found = struct.unpack_from(">4I", frame)
        if pages and tuple(found) == salts:
            return True
    return False


def declared_layout(header: bytes) -> tuple[int, int]:
    """Return the page size and the reserved bytes of a header, or the usual ones if it cannot be right."""
    size, reserved = _u16(header, 16)[0], header[20]
    size = 65536 if size == 1 else size
    possible = size >= 512 and not size & (size - 1) and size - reserved >= 480
    return (size, reserved) if possible else GUESSES[0]


def varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends; raises IndexError at the end of the page."""
    value = 0
    for n in range(8):
        byte = page[at + n]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + n + 1
    return value << 8 | page[at + 8], at + 9


def values_of(payload: bytes) -> list[Any]:
    """Return the columns of a row; raises Damaged, IndexError or UnicodeDecodeError."""
    end, at = varint(payload, 0)
    if not 0 < end <= len(payload):
        raise DamagedPageError("a row is shorter than its header")
    values: list[Any] = []
    place = end
    while at < end:
        kind, at = varint(payload, at)
        if len(values) == MOST_COLUMNS:
            raise DamagedPageError("a row has too many columns")
        value, place = _value(payload, place, kind)
        values.append(value)
    if at != end or place != len(payload):
        raise DamagedPageError("a row is not as long as its header says")
    return values


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind >= 12:
        end = at + (kind - 12) // 2
        raw = _slice(payload, at, end - at, len(payload))
        return (raw.decode() if kind & 1 else raw), end
    if kind in (0, 8, 9):
        return (None if kind == 0 else kind - 8), at
    if kind > 9:
        raise DamagedPageError("a column has a type that is not used")
    size = (0, 1, 2, 3, 4, 6, 8, 8)[kind]
    raw = _slice(payload, at, size, len(payload))
    return (struct.unpack(">d", raw)[0] if kind == 7 else int.from_bytes(raw, "big", signed=True)), at + size


def _slice(data: bytes, at: int, size: int, end: int) -> bytes:
    if at + size > end:
        raise DamagedPageError("a row ends outside of its place")
    return data[at : at + size]


def _checksum(data: bytes, order: str, first: int, second: int) -> tuple[int, int]:
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for n in range(0, len(words), 2):
        first = (first + words[n] + second) & 0xFFFFFFFF
        second = (second + words[n + 1] + first) & 0xFFFFFFFF
    return first, second
