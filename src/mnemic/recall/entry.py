"""What is kept beside a record to find it again: its terms, its speaker, a few marks, and its vectors.

An entry is made once, when the record is written, and read whenever a process first searches its scope.
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
"""Raised when entries of older versions of Mnemic are to be made again."""
RECALL = "recall"
"""By this name, whoever reads and writes through the index layer means its entries, whichever embedder's."""
TURNS = ("message", "archived")
"""The kinds whose records are turns of a conversation."""
SPEAKING: tuple[Role, ...] = ("user", "assistant")
"""The roles whose messages are turns; those of the others are found only if they are asked for."""
INDEX_BYTES = 2**30
"""How much memory the indexes of all scopes take together, before the least recently searched goes."""
MAX_TERMS = 50_000
"""How many terms of one text are kept; a longer text is found by those that it begins with."""
CHUNK = 600
"""The most characters that one vector stands for; a longer text has several."""
MAX_CHUNKS = 64
"""How many vectors one text has at most, taken evenly from all of it."""

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
    """What can be told of a text at a glance."""

    QUESTION = 1
    TIME = 2
    NUMBER = 4
    FACT = 8
    CALL = 16
    """A message that only calls tools, and says nothing itself."""


_QUESTION, _TIME, _NUMBER, _LINK, _CALL = map(int, Marks)


class Entry(Struct):
    """An entry, taken apart; `terms` are hashes in the order of the text, and `vectors` has a row a chunk."""

    marks: int
    role: int
    speaker: str
    terms: NDArray[np.uint32]
    vectors: NDArray[np.int8] | None


class _Hashes(dict[str, int]):
    """The numbers that stand for terms, of all that were seen lately."""

    def __missing__(self, term: str) -> int:
        if len(self) >= _HASHES_KEPT:
            self.clear()
        number = self[term] = crc32(term.encode("utf-8", "surrogatepass"))
        return number


_HASHES_KEPT = 200_000
_hashes = _Hashes()


def hashed(term: str) -> int:
    """Return the number that stands for a term."""
    return _hashes[term]


def readable(record: Record) -> str:
    """Return what is searched of a record."""
    return record.text or record.title or ""


def speaker_of(record: Record) -> tuple[int, str]:
    """Return the number of the role that a record was said in, 0 for none, and the name of who said it."""
    data: Any = record.data
    if record.kind not in TURNS or not isinstance(data, dict) or data.get("role") not in ROLES:
        return 0, ""
    name = data.get("name")
    return ROLES.index(data["role"]) + 1, name if isinstance(name, str) else ""


def _only_calls(data: Any) -> bool:
    """Tell whether a message holds calls of tools, and no text of its own: its text then spells the calls."""
    own = data.get("content", ""), data.get("structured_data")
    return bool(data.get("tool_calls")) and own[0] is None and not any(texts_in(own[1]))


def chunks(text: str) -> list[str]:
    """Cut a text into pieces that a vector can stand for, at the ends of sentences where there are any."""
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
    """Return the entry of a record as bytes; `vectors` has one row for each of its chunks."""
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
    """Tell whether a value is an entry as `pack` made it: one that is damaged is made again."""
    start = _CHECKSUM.size
    if value is None or len(value) < start + _HEAD.size:
        return False
    return crc32(memoryview(value)[start:]) == int(_CHECKSUM.unpack_from(value)[0])


def unpack(value: bytes) -> Entry:
    """Return the entry that `pack` made; whoever is not sure asks first whether it is `intact`."""
    import numpy as np

    marks, role, name, held, rows = _HEAD.unpack_from(value, _CHECKSUM.size)
    named = _CHECKSUM.size + _HEAD.size
    start = named + name
    end = start + 4 * held
    vectors = np.frombuffer(value, dtype=np.int8, offset=end).reshape(rows, -1) if rows else None
    return Entry(
        marks,
        role,
        value[named:start].decode(),
        np.frombuffer(value, dtype="<u4", count=held, offset=start),
        vectors,
    )


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return vectors in whole numbers from -127 to 127, each with its own scale, which cosines do not see."""
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
