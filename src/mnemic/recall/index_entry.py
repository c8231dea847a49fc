"""Index entries (terms, speaker, flags and vectors) and uses, which recall stores beside a record.

An entry is computed once and loaded when a process first searches its scope.
"""

from __future__ import annotations

import logging
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntFlag
from functools import cache
from math import isfinite
from sys import byteorder
from typing import TYPE_CHECKING, Any
from zlib import crc32

from msgspec import Struct

from ..checks import LATEST
from ..errors import EmbedderError
from ..messages import ROLES, Role, texts_in
from ..models.embedder import Embedder
from ..records import ARCHIVED, MESSAGE, Record
from ..store.availability import cause_name
from .languages.detection import LANGUAGES, NUMBERS, all_cases, fold, is_latin, language_of
from .languages.time_words import AMBIGUOUS, DAYS, MONTHS, OTHERS, UNSPACED_TIMES
from .text_analysis import terms, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = "3"
"""Entry format; raise it to recompute the entries of older versions."""
RECALL = "recall"
"""Name by which callers of the index layer address entries, whatever the embedder."""
TURNS = (MESSAGE, ARCHIVED)
"""Kinds whose records are conversation turns."""
SPEAKING: tuple[Role, ...] = ("user", "assistant")
"""Roles whose messages are turns; messages of other roles are found only on request."""
INDEX_BYTES = 2**30
"""Maximum memory of all cached indexes before the least recently used is evicted."""
MAX_TERMS = 50_000
"""Maximum number of terms kept per text; a longer text is found by its beginning."""
CHUNK = 600
"""Maximum number of characters per vector; a longer text has several vectors."""
LINE = 100
"""The same for notes, memories and other texts that are no turns: each of their lines may be about something else."""
MAX_QUESTION = 10_000
"""How many characters of a question are used."""
MAX_CHUNKS = 64
"""Maximum number of vectors per text, spread evenly over it."""
TEXTS_AT_ONCE = 256
"""How many texts an embedder gets at once."""
TRUST = 1.6
"""Weight of an embedder's vectors relative to the static ones, unless it defines its own."""

log: logging.Logger = logging.getLogger("mnemic.recall")

_CHECKSUM = struct.Struct("<I")
_HEAD = struct.Struct("<BBBHII")
_DIGIT = re.compile(r"\d")
_DATED = re.compile(r"\b(?:(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th))\b")
_ASKING = ("?", "？", "؟", "か", "か。", "吗", "吗。", "呢。")
"""How questions end."""
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class TextFlags(IntFlag):
    """Flags of a text."""

    QUESTION = 1
    TIME = 2
    NUMBER = 4
    FACT = 8
    CALL = 16
    """A message that only calls tools and has no text of its own."""


_QUESTION, _TIME, _NUMBER, _LINK, _CALL = map(int, TextFlags)


class IndexEntry(Struct):
    """A decoded entry; `terms` are hashes in text order, and `vectors` has one row per chunk."""

    flags: int
    role: int
    speaker: str
    terms: NDArray[np.uint32]
    vectors: NDArray[np.int8] | None


class Entries(Struct):
    """Decoded entries of several texts, as columns."""

    flags: NDArray[np.uint8]
    roles: NDArray[np.uint8]
    languages: NDArray[np.uint8]
    """Positions in LANGUAGES."""
    speakers: list[str]
    sizes: NDArray[np.int64]
    """Number of terms of each text."""
    terms: NDArray[np.uint32]
    """Terms of all texts, one after another."""
    rows: NDArray[np.int64]
    """Number of vectors of each text."""
    vectors: NDArray[np.int8]
    """Vectors of all texts, one after another."""


_MAX_HASHES = 200_000


class _Hashes(dict[str, int]):
    """Cache of term hashes."""

    def __missing__(self, term: str) -> int:
        if len(self) >= _MAX_HASHES:
            self.clear()
        number = self[term] = crc32(term.encode("utf-8", "surrogatepass"))
        return number


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


def chunks(text: str, size: int = CHUNK) -> list[str]:
    """Split a text into chunks of one vector each, at sentence ends where possible; a very long text in larger ones."""
    if len(text) <= size:
        return [text]
    size = min(CHUNK, max(size, len(text) // MAX_CHUNKS))
    found: list[str] = []
    for piece in _pieces(text):
        if found and len(found[-1]) + len(piece) < size:
            found[-1] = f"{found[-1]} {piece}"
        else:
            found.append(piece)
    if len(found) > MAX_CHUNKS:
        found = [found[n * len(found) // MAX_CHUNKS] for n in range(MAX_CHUNKS)]
    return found or [text[:CHUNK]]


def _pieces(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        for start in range(0, len(sentence), CHUNK):
            if piece := sentence[start : start + CHUNK].strip():
                yield piece


@cache
def _times() -> frozenset[str]:
    """Return the words for times of all languages, as they are written."""
    tables = (*DAYS.values(), *(form for forms in MONTHS.values() for form in forms), *OTHERS.values())
    return all_cases(fold(word) for table in tables for word in table.split() if word not in AMBIGUOUS)


def pack(record: Record, vectors: NDArray[np.int8] | None) -> bytes:
    """Encode the entry of a record; `vectors` has one row for each of its chunks."""
    text = readable(record)
    role, speaker = speaker_of(record)
    name = speaker.encode()
    spoken = words(text)
    flags = 0
    if text.rstrip().endswith(_ASKING):
        flags |= _QUESTION
    if _DIGIT.search(text) is not None:
        flags |= _NUMBER
        if _DATED.search(text) is not None:
            flags |= _TIME
    language = language_of(text, spoken)
    if not _times().isdisjoint(spoken) or (not LANGUAGES[language] and re.search(UNSPACED_TIMES, text) is not None):
        flags |= _TIME
    if record.labels and "subject" in record.labels and "object" in record.labels:
        flags |= _LINK
    if role and _only_calls(record.data):
        flags |= _CALL
    hashes = array("I", map(_hashes.__getitem__, terms(text, spoken, language)[:MAX_TERMS]))
    if byteorder == "big":
        hashes.byteswap()
    rows = 0 if vectors is None else len(vectors)
    head = _HEAD.pack(flags, role, NUMBERS[language], len(name), len(hashes), rows)
    body = head + name + hashes.tobytes() + (b"" if vectors is None else vectors.tobytes())
    return _CHECKSUM.pack(crc32(body)) + body


def intact(value: bytes | None) -> bool:
    """Return whether a value is a valid entry; a damaged one is recomputed."""
    return intact_only((value,)) != [None]


def intact_only(values: Iterable[bytes | None]) -> list[bytes | None]:
    """Return the valid entries as they are, and None for the others."""
    start, least = _CHECKSUM.size, _CHECKSUM.size + _HEAD.size
    return [
        value
        if value is not None and len(value) >= least and crc32(value[start:]) == int.from_bytes(value[:start], "little")
        else None
        for value in values
    ]


def unpack(value: bytes) -> IndexEntry:
    """Decode an entry; check `intact` first if it may be damaged."""
    import numpy as np

    flags, role, _, name, hashes, rows = _HEAD.unpack_from(value, _CHECKSUM.size)
    named = _CHECKSUM.size + _HEAD.size
    start = named + name
    end = start + 4 * hashes
    vectors = np.frombuffer(value, dtype=np.int8, offset=end).reshape(rows, -1) if rows else None
    terms = np.frombuffer(value, dtype="<u4", count=hashes, offset=start)
    return IndexEntry(flags, role, value[named:start].decode(), terms, vectors)


def unpack_all(values: Sequence[bytes], width: int = 0) -> Entries:
    """Decode intact entries; vectors of another dimension than `width`, or than the first, are left out."""
    import numpy as np

    named = _CHECKSUM.size + _HEAD.size
    heads = np.frombuffer(b"".join([value[_CHECKSUM.size : named] for value in values]), dtype=_head_type())
    sizes, rows = heads["hashes"].astype(np.int64), heads["rows"].astype(np.int64)
    starts = named + heads["name"].astype(np.int64)
    ends = starts + 4 * sizes
    last = ends.tolist()
    first = starts.tolist()
    speakers = [""] * len(values)
    if heads["name"].any():
        speakers = [value[named:start].decode() for value, start in zip(values, first, strict=True)]
    terms = b"".join([value[start:end] for value, start, end in zip(values, first, last, strict=True)])
    kept = [value[end:] for value, end in zip(values, last, strict=True)]
    widths = np.fromiter(map(len, kept), dtype=np.int64, count=len(kept)) // np.maximum(rows, 1)
    width = width or int(widths[rows > 0][:1].sum())
    for n in np.flatnonzero((rows > 0) & (widths != width)).tolist():
        kept[n], rows[n] = b"", 0
    vectors = np.frombuffer(b"".join(kept), dtype=np.int8).reshape(-1, max(width, 1))
    hashes = np.frombuffer(terms, dtype="<u4")
    return Entries(heads["flags"], heads["role"], heads["language"], speakers, sizes, hashes, rows, vectors)


@cache
def _head_type() -> np.dtype[np.void]:
    """Return the type of the head of an entry."""
    import numpy as np

    fields = [("flags", "u1"), ("role", "u1"), ("language", "u1"), ("name", "<u2"), ("hashes", "<u4"), ("rows", "<u4")]
    return np.dtype(fields)


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Quantize vectors to integers from -127 to 127, each with its own scale, which does not affect cosines."""
    import numpy as np

    largest = np.maximum.reduce(np.abs(vectors), axis=1, keepdims=True)
    scaled = vectors * (np.float32(127) / np.maximum(largest, np.float32(1e-30)))
    whole: NDArray[np.int8] = np.rint(scaled, out=scaled).astype(np.int8)
    return whole


def entry_name(id: str | None) -> str:
    """Return the name of the derived value for entries of an embedder, or of none."""
    # Short, because it is stored with every record; the store records the full id once.
    return f"recall{FORMAT}:{crc32((id or '').encode()):08x}"


class EntryBuilder:
    """Computes the entries of records with one embedder, or without."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self.name: str = entry_name(embedder.id if embedder else None)
        self.trust: float = getattr(embedder, "trust", TRUST)
        self.instant: bool = embedder is None or getattr(embedder, "instant", False)
        """Whether computing an entry is faster than handing it to a thread."""
        self._latin_only: bool = getattr(embedder, "latin_only", False)
        self.dimensions: int = 0
        self.failures: int = 0

    def build(self, records: Sequence[Record]) -> list[bytes | None]:
        """Return the entry of each record; None if it has no text, or the embedder failed.

        Failed entries are computed later, so a write never fails because a model cannot be reached.
        """
        texts = [
            chunks(text, CHUNK if record.kind in TURNS else LINE) if (text := readable(record)) else []
            for record in records
        ]
        vectors = self._embed(texts)
        return [
            pack(record, rows) if text and (rows is not None or self.embedder is None) else None
            for record, text, rows in zip(records, texts, vectors, strict=True)
        ]

    def _embed(self, texts: list[list[str]]) -> list[NDArray[np.int8] | None]:
        """Return the vectors of texts, given in chunks; if some cannot be embedded, those of the others."""
        found = self._try_to_embed(texts, "embedding %d texts failed, they will be embedded later (%s)")
        if found is not None or len(texts) == 1:
            return [None] if found is None else found
        ends = [self._try_to_embed([text]) for text in (texts[0], texts[-1])]
        if ends == [None, None]:
            # The failure is not specific to one of the texts.
            return [None] * len(texts)
        return [*(ends[0] or [None]), *self._embed_halves(texts[1:-1]), *(ends[1] or [None])]

    def _embed_halves(self, texts: list[list[str]]) -> list[NDArray[np.int8] | None]:
        found = self._try_to_embed(texts) if texts else []
        if found is not None or len(texts) == 1:
            return [None] if found is None else found
        middle = len(texts) // 2
        return self._embed_halves(texts[:middle]) + self._embed_halves(texts[middle:])

    def _try_to_embed(self, texts: list[list[str]], complaint: str = "") -> list[NDArray[np.int8] | None] | None:
        try:
            return self.vectors(texts)
        except Exception as error:
            self.failures += 1
            if complaint:
                log.warning(complaint, len(texts), cause_name(error))
            return None

    def vectors(self, texts: Sequence[Sequence[str]]) -> list[NDArray[np.int8] | None]:
        """Return the vectors of texts, given in chunks; raises the embedder's error, or EmbedderError."""
        if self.embedder is None:
            return [None] * len(texts)
        if len(texts) == 1 and len(texts[0]) == 1:
            # A single message is the most common case.
            return [self._quantized(self.embedder.embed(texts[0]), 1)]
        flat = [piece for some in texts for piece in some]
        found: list[NDArray[np.int8] | None] = []
        if not flat:
            return [None] * len(texts)
        import numpy as np

        rows = np.concatenate(
            [
                self._quantized(self.embedder.embed(some), len(some))
                for some in (flat[n : n + TEXTS_AT_ONCE] for n in range(0, len(flat), TEXTS_AT_ONCE))
            ]
        )
        place = 0
        for some in texts:
            found.append(rows[place : place + len(some)] if some else None)
            place += len(some)
        return found

    def embed_question(self, text: str) -> NDArray[np.int8] | None:
        """Return the vector of a question; None without an embedder that knows its script, or if it failed."""
        if self.embedder is None or (self._latin_only and not is_latin(text)):
            return None
        import numpy as np

        try:
            given = np.asarray(self.embedder.embed_query(text[:MAX_QUESTION]))[None]
            return self._quantized(given, 1)[0]  # type: ignore[no-any-return]
        except Exception as error:
            self.failures += 1
            log.warning("embedding the question failed, so only words are searched (%s)", cause_name(error))
            return None

    def _quantized(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.int8]:
        import numpy as np

        given = np.asarray(vectors, dtype=np.float32)
        # A sum is finite only if all terms are.
        if given.ndim != 2 or len(given) != count or not isfinite(float(np.add.reduce(given, axis=None))):
            raise EmbedderError(
                f"{self._id} returned vectors of the shape {given.shape} for {count} texts, or not of numbers"
            )
        self.dimensions = self.dimensions or given.shape[1]
        if given.shape[1] != self.dimensions:
            raise EmbedderError(
                f"{self._id} returned vectors of {given.shape[1]} dimensions, and of {self.dimensions} before"
            )
        return quantized(given)

    @property
    def _id(self) -> str:
        return repr(self.embedder.id if self.embedder else "")


# ---------------------------------------------------------------- uses, and the forgetting curve

HALF_LIFE = 30.0
"""Half-life of importance without use, in days."""
DAY = 86_400_000_000

USE = "use"
"""Name of the derived value with a record's uses."""
_USE = struct.Struct("<qdq")
LARGEST = 1e15
"""No record is used more often."""


class Use(Struct, frozen=True):
    """Start of the decay, number of uses, and last use; times in microseconds, 0 for never."""

    since: int = 0
    uses: float = 0.0
    last: int = 0


def strength(importance: Any, days: Any, uses: Any, half_life: float = HALF_LIFE) -> Any:
    """Return the decayed importance after a number of days since the last use; takes numbers or arrays.

    Importance halves with each half-life. Uses lengthen the half-life by the factor 1 + ln(1 + uses) / 2: by a
    third after one use, by 0.7 after three, by 1.2 after ten.
    """
    import numpy as np

    return importance * np.exp2(-np.maximum(days, 0) / _half_life(uses, half_life))


def days_until(below: float, importance: Any, uses: Any, half_life: float = HALF_LIFE) -> Any:
    """Return after how many days without use the decayed importance reaches `below`; takes numbers or arrays.

    Negative, or minus infinity, for what was never more important.
    """
    import numpy as np

    with np.errstate(divide="ignore", over="ignore"):
        return np.log2(importance / below) * _half_life(uses, half_life)


def _half_life(uses: Any, half_life: float) -> Any:
    import numpy as np

    return half_life * (1 + np.log1p(uses) / 2)


def pack_use(use: Use) -> bytes:
    """Encode the uses of a record."""
    return _USE.pack(use.since, use.uses, use.last)


def unpack_use(value: bytes | None) -> Use:
    """Decode the uses of a record; no uses for anything else."""
    if value is None or len(value) != _USE.size:
        return Use()
    since, uses, last = _USE.unpack(value)
    return Use(since, uses, last) if 0 <= uses < LARGEST and 0 <= since <= LATEST and 0 <= last <= LATEST else Use()


def days_between(earlier: NDArray[Any], later: int) -> NDArray[Any]:
    """Return the days from each moment to a later one, both in microseconds."""
    days: NDArray[Any] = (later - earlier) / DAY
    return days
