"""The default embedder: a vector for each word or part of one, looked up and summed, from a table in this package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .loading import Once
from .wordpiece import WordPieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .embedder import Vectors

    Table = NDArray[np.int8]

TABLE = Path(__file__).with_name("static_vectors.npy")
"""A row of eight-bit numbers for each piece; `training/` in the repository makes it."""
VOCABULARY = Path(__file__).with_name("static_vocabulary.txt")
"""The pieces, one in a line, in the order of the rows."""
DIMENSIONS = 256
"""The length of a vector."""


class StaticEmbedder:
    """English, 256 dimensions: nothing to download, and some microseconds for a sentence.

    The table is mapped into memory when the first text is embedded, and so shared by all processes.
    """

    id = "mnemic-static-1"
    trust = 1.0
    instant = True
    """A few texts take less time than it takes to find a thread for them."""

    def __init__(self) -> None:
        self._model = Once(_load)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text, of length one, or of zeros for a text without a known word."""
        import numpy as np

        pieces, table = self._model.get()
        rows = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            found = pieces.cut(text)
            if found:
                # Whole numbers, so that the sum is exact, whatever the order.
                np.add.reduce(table.take(found, axis=0).astype(np.float32), axis=0, out=row)
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
        np.divide(rows, lengths, out=rows, where=lengths > 0)
        return rows

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector, made as that of any text."""
        row: Vectors = self.embed([query])[0]
        return row


def _load() -> tuple[WordPieces, Table]:
    import numpy as np

    table: Table = np.load(TABLE, mmap_mode="r")
    # A plain view of the map: an array of the class memmap is slow to take rows from.
    return WordPieces(VOCABULARY.read_text(encoding="ascii").splitlines()), table.view(np.ndarray)
