"""Makes entries: terms and marks from the text, vectors from an embedder, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING
from zlib import crc32

from ..errors import EmbedderError
from ..models.embedder import Embedder
from ..records import Record
from .entry import CHUNK, FORMAT, chunks, pack, quantized, readable
from .question import MAX_QUESTION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TEXTS_AT_ONCE = 256
"""How many texts an embedder is given at a time."""

TRUST = 1.6
"""How much more the vectors of an embedder count than those of the static one, unless it says otherwise."""

log = logging.getLogger("mnemic")


def entry_name(id: str | None) -> str:
    """Return the name under which the entries of an embedder, or of none, are kept beside records."""
    # Short, since it stands beside every record; the store notes the id itself once.
    return f"recall{FORMAT}:{crc32((id or '').encode()):08x}"


class Maker:
    """Makes the entries of records with one embedder, or with none."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self.name = entry_name(embedder.id if embedder else None)
        self.trust: float = getattr(embedder, "trust", TRUST)
        self.instant: bool = embedder is None or getattr(embedder, "instant", False)
        """Whether it takes less time to make an entry than to find a thread for it."""
        self.dimensions = 0
        self.failures = 0

    def make(self, records: Sequence[Record]) -> list[bytes | None]:
        """Return the entry of each record with text; None where it has none, or the embedder failed.

        What failed is made later: a write is never lost because a model could not be reached.
        """
        texts = [readable(record) for record in records]
        vectors = self._tried(texts)
        return [
            pack(record, rows) if text and (rows is not None or self.embedder is None) else None
            for record, text, rows in zip(records, texts, vectors, strict=True)
        ]

    def _tried(self, texts: list[str]) -> list[NDArray[np.int8] | None]:
        """Return the vectors of texts; if only some of them cannot be embedded, those of the others."""
        found = self._attempt(texts, "embedding %d texts failed, they are embedded later: %s")
        if found is not None or len(texts) == 1:
            return [None] if found is None else found
        ends = [self._attempt([text]) for text in (texts[0], texts[-1])]
        if ends == [None, None]:
            # It is not for one of the texts that it failed.
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
                log.warning(complaint, len(texts), error)
            return None

    def vectors(self, texts: Sequence[str]) -> list[NDArray[np.int8] | None]:
        """Return the vectors of each text's chunks; raises what the embedder raises, or EmbedderError."""
        if self.embedder is None:
            return [None] * len(texts)
        if len(texts) == 1 and 0 < len(texts[0]) <= CHUNK:
            # One message at a time is what is written most.
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
            log.warning("embedding the question failed, so only words are searched: %s", error)
            return None

    def _checked(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.int8]:
        import numpy as np

        given = np.asarray(vectors, dtype=np.float32)
        # A sum is finite only if all that was added up is.
        if given.ndim != 2 or len(given) != count or not isfinite(float(given.sum())):
            raise EmbedderError(
                f"{self._id} gave vectors of the shape {given.shape} for {count} texts, or not of numbers"
            )
        self.dimensions = self.dimensions or given.shape[1]
        if given.shape[1] != self.dimensions:
            raise EmbedderError(
                f"{self._id} gave vectors of {given.shape[1]} dimensions, and of {self.dimensions} before"
            )
        return quantized(given)

    @property
    def _id(self) -> str:
        return repr(self.embedder.id if self.embedder else "")
