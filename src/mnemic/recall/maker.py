"""Computes index entries in batches: terms and flags from the text, vectors from an embedder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING
from zlib import crc32

from ..errors import EmbedderError
from ..models.embedder import Embedder
from ..records import Record
from ..store.availability import name_of
from .entry import CHUNK, FORMAT, chunks, pack, quantized, readable
from .question import MAX_QUESTION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TEXTS_AT_ONCE = 256
"""How many texts an embedder gets at once."""

TRUST = 1.6
"""Weight of an embedder's vectors relative to the static ones, unless it defines its own."""

log: logging.Logger = logging.getLogger("mnemic.recall")


def entry_name(id: str | None) -> str:
    """Return the name of the derived value for entries of an embedder, or of none."""
    # Short, because it is stored with every record; the store records the full id once.
    return f"recall{FORMAT}:{crc32((id or '').encode()):08x}"


class Maker:
    """Computes the entries of records with one embedder, or without."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self.name: str = entry_name(embedder.id if embedder else None)
        self.trust: float = getattr(embedder, "trust", TRUST)
        self.instant: bool = embedder is None or getattr(embedder, "instant", False)
        """Whether computing an entry is faster than handing it to a thread."""
        self.dimensions: int = 0
        self.failures: int = 0

    def make(self, records: Sequence[Record]) -> list[bytes | None]:
        """Return the entry of each record; None if it has no text, or the embedder failed.

        Failed entries are computed later, so a write never fails because a model cannot be reached.
        """
        texts = [readable(record) for record in records]
        vectors = self._tried(texts)
        return [
            pack(record, rows) if text and (rows is not None or self.embedder is None) else None
            for record, text, rows in zip(records, texts, vectors, strict=True)
        ]

    def _tried(self, texts: list[str]) -> list[NDArray[np.int8] | None]:
        """Return the vectors of texts; if some cannot be embedded, those of the others."""
        found = self._attempt(texts, "embedding %d texts failed, they will be embedded later (%s)")
        if found is not None or len(texts) == 1:
            return [None] if found is None else found
        ends = [self._attempt([text]) for text in (texts[0], texts[-1])]
        if ends == [None, None]:
            # The failure is not specific to one of the texts.
            return [None] * len(texts)
        return [*(ends[0] or [None]), *self._halves(texts[1:-1]), *(ends[1] or [None])]

    def _halves(self, texts: list[str]) -> list[NDArray[np.int8] | None]:
        found = self._attempt(texts) if texts else []
        if found is not None or len(texts) == 1:
            return [None] if found is None else found
        middle = len(texts) // 2
        return self._halves(texts[:middle]) + self._halves(texts[middle:])

    def _attempt(self, texts: list[str], complaint: str = "") -> list[NDArray[np.int8] | None] | None:
        try:
            return self.vectors(texts)
        except Exception as error:
            self.failures += 1
            if complaint:
                log.warning(complaint, len(texts), name_of(error))
            return None

    def vectors(self, texts: Sequence[str]) -> list[NDArray[np.int8] | None]:
        """Return the vectors of each text's chunks; raises the embedder's error, or EmbedderError."""
        if self.embedder is None:
            return [None] * len(texts)
        if len(texts) == 1 and 0 < len(texts[0]) <= CHUNK:
            # A single message is the most common case.
            return [self._checked(self.embedder.embed(texts), 1)]
        pieces = [chunks(text) if text else [] for text in texts]
        flat = [piece for some in pieces for piece in some]
        found: list[NDArray[np.int8] | None] = []
        if not flat:
            return [None] * len(texts)
        import numpy as np

        rows = np.concatenate(
            [
                self._checked(self.embedder.embed(some), len(some))
                for some in (flat[n : n + TEXTS_AT_ONCE] for n in range(0, len(flat), TEXTS_AT_ONCE))
            ]
        )
        place = 0
        for some in pieces:
            found.append(rows[place : place + len(some)] if some else None)
            place += len(some)
        return found

    def question(self, text: str) -> NDArray[np.int8] | None:
        """Return the vector of a question; None without an embedder, or if it failed."""
        if self.embedder is None:
            return None
        import numpy as np

        try:
            given = np.asarray(self.embedder.embed_query(text[:MAX_QUESTION]))[None]
            return self._checked(given, 1)[0]  # type: ignore[no-any-return]
        except Exception as error:
            self.failures += 1
            log.warning("embedding the question failed, so only words are searched (%s)", name_of(error))
            return None

    def _checked(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.int8]:
        import numpy as np

        given = np.asarray(vectors, dtype=np.float32)
        # A sum is finite only if all terms are.
        if given.ndim != 2 or len(given) != count or not isfinite(float(given.sum())):
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
