"""Index entries: the terms, speaker, flags and vectors stored beside a record for search.

An entry is computed once and loaded when a process first searches its scope.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from enum import IntFlag
from sys import byteorder
from typing import TYPE_CHECKING, Any
from zlib import crc32

from msgspec import Struct

from ..records import ROLES, Record, Role, texts_in
from ..store.analysis import DAYS, MONTHS, terms, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = "2"
"""Entry format; raise it to recompute the entries of older versions."""
RECALL = "recall"
"""Name by which callers of the index layer address entries, whatever the embedder."""
TURNS = ("message", "archived")
"""Kinds whose records are conversation turns."""
SPEAKING: tuple[Role, ...] = ("user", "assistant")
"""Roles whose messages are turns; messages of other roles are found only on request."""
INDEX_BYTES = 2**30
"""Maximum memory of all cached indexes before the least recently used is evicted."""
MAX_TERMS = 50_000
"""Maximum number of terms kept per text; a longer text is found by its beginning."""
CHUNK = 600
"""Maximum number of characters per vector; a longer text has several vectors."""
MAX_CHUNKS = 64
"""Maximum number of vectors per text, spread evenly over it."""

_CHECKSUM = struct.Struct("<I")
_HEAD = struct.Struct("<BBHII")
_TIME_WORDS = (
    *DAYS,
    *MONTHS,
    *"yesterday today tonight tomorrow ago last next since soon recently lately morning evening".split(),  # noqa: SIM905
    *"weekend weekends week weeks month months year years day days".split(),  # noqa: SIM905
)
_TIMES = frozenset(form for word in _TIME_WORDS for form in (word, word.capitalize(), word.upper()))
_DIGIT = re.compile(r"\d")
_DATED = re.compile(r"\b(?:(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th))\b")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class Marks(IntFlag):
    """Flags of a text."""

    QUESTION = 1
    TIME = 2
    NUMBER = 4
    FACT = 8
    CALL = 16
    """A message that only calls tools and has no text of its own."""


_QUESTION, _TIME, _NUMBER, _LINK, _CALL = map(int, Marks)


class Entry(Struct):
    """A decoded entry; `terms` are hashes in text order, and `vectors` has one row per chunk."""

    marks: int
    role: int
    speaker: str
    terms: NDArray[np.uint32]
    vectors: NDArray[np.int8] | None


class _Hashes(dict[str, int]):
    """Cache of term hashes."""

    def __missing__(self, term: str) -> int:
        if len(self) >= _HASHES_KEPT:
            self.clear()
        number = self[term] = crc32(term.encode("utf-8", "surrogatepass"))
        return number


_HASHES_KEPT = 200_000
_hashes = _Hashes()


def hashed(term: str) -> int:
    """Return the hash of a term."""
    return _hashes[term]


def readable(record: Record) -> str:
    """Return the searchable text of a record."""
    return record.text or record.title or ""


def speaker_of(record: Record) -> tuple[int, str]:
    """Return the role number of a record (0 for none) and the speaker's name."""
    data: Any = record.data
    if record.kind not in TURNS or not isinstance(data, dict) or data.get("role") not in ROLES:
        return 0, ""
    name = data.get("name")
    return ROLES.index(data["role"]) + 1, name if isinstance(name, str) else ""


def _only_calls(data: Any) -> bool:
    """Return whether a message has only tool calls, so that its text merely spells them out."""
    own = data.get("content", ""), data.get("structured_data")
    return bool(data.get("tool_calls")) and own[0] is None and not any(texts_in(own[1]))


def chunks(text: str) -> list[str]:
    """Split a text into chunks of one vector each, at sentence ends where possible."""
    if len(text) <= CHUNK:
        return [text]
    found: list[str] = []
    for piece in _pieces(text):
        if found and len(found[-1]) + len(piece) < CHUNK:
            found[-1] = f"{found[-1]} {piece}"
        else:
            found.append(piece)
    if len(found) > MAX_CHUNKS:
        found = [found[n * len(found) // MAX_CHUNKS] for n in range(MAX_CHUNKS)]
    return found or [text[:CHUNK]]


def pack(record: Record, vectors: NDArray[np.int8] | None) -> bytes:
    """Encode the entry of a record; `vectors` has one row for each of its chunks."""
    text = readable(record)
    role, speaker = speaker_of(record)
    name = speaker.encode()
    spoken = words(text)
    marks = 0
    if text.rstrip().endswith(("?", "？")):
        marks |= _QUESTION
    if _DIGIT.search(text) is not None:
        marks |= _NUMBER
        if _DATED.search(text) is not None:
            marks |= _TIME
    if not _TIMES.isdisjoint(spoken):
        marks |= _TIME
    if record.labels and "subject" in record.labels and "object" in record.labels:
        marks |= _LINK
    if role and _only_calls(record.data):
        marks |= _CALL
    held = array("I", map(_hashes.__getitem__, terms(text, spoken)[:MAX_TERMS]))
    if byteorder == "big":
        held.byteswap()
    rows = 0 if vectors is None else len(vectors)
    head = _HEAD.pack(marks, role, len(name), len(held), rows)
    body = head + name + held.tobytes() + (b"" if vectors is None else vectors.tobytes())
    return _CHECKSUM.pack(crc32(body)) + body


def intact(value: bytes | None) -> bool:
    """Return whether a value is a valid entry; a damaged one is recomputed."""
    start = _CHECKSUM.size
    if value is None or len(value) < start + _HEAD.size:
        return False
    return crc32(memoryview(value)[start:]) == int(_CHECKSUM.unpack_from(value)[0])


def unpack(value: bytes) -> Entry:
    """Decode an entry; check `intact` first if it may be damaged."""
    import numpy as np

    marks, role, name, held, rows = _HEAD.unpack_from(value, _CHECKSUM.size)
    named = _CHECKSUM.size + _HEAD.size
    start = named + name
    end = start + 4 * held
    vectors = np.frombuffer(value, dtype=np.int8, offset=end).reshape(rows, -1) if rows else None
    return Entry(
        marks, role, value[named:start].decode(), np.frombuffer(value, dtype="<u4", count=held, offset=start), vectors
    )


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Quantize vectors to integers from -127 to 127, each with its own scale, which does not affect cosines."""
    import numpy as np

    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = vectors * (np.float32(127) / np.maximum(largest, np.float32(1e-30)))
    whole: NDArray[np.int8] = np.rint(scaled, out=scaled).astype(np.int8)
    return whole


def _pieces(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        for start in range(0, len(sentence), CHUNK):
            if piece := sentence[start : start + CHUNK].strip():
                yield piece
