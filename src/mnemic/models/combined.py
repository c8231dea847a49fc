"""Combines several embedders into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidValueError
from .embedder import Embedder

if TYPE_CHECKING:
    from .embedder import Vectors


class CombinedEmbedder:
    """Concatenates the vectors of several embedders, so that cosines are their weighted mean."""

    def __init__(self, *parts: tuple[Embedder, float]) -> None:
        """Take embedders and their weights; raises InvalidValueError for a weight that is not positive."""
        if not parts or any(weight <= 0 for _, weight in parts):
            raise InvalidValueError("embedders are combined with positive weights, and there is at least one")
        self._parts = parts
        self.id: str = " + ".join(f"{weight:g} × {embedder.id}" for embedder, weight in parts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text."""
        return self._joined([embedder.embed(texts) for embedder, _ in self._parts])

    def embed_query(self, query: str) -> Vectors:
        """Return the vector of a query."""
        row: Vectors = self._joined([embedder.embed_query(query)[None] for embedder, _ in self._parts])[0]
        return row

    def _joined(self, found: list[Vectors]) -> Vectors:
        import numpy as np

        scaled = []
        for vectors, (_, weight) in zip(found, self._parts, strict=True):
            lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
            unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
            scaled.append(unit * np.float32(weight**0.5))
        return np.concatenate(scaled, axis=1)
