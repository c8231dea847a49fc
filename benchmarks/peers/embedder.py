"""The one embedder that every peer is given: Mnemic's own static vectors, as lists of numbers."""

from __future__ import annotations

from mnemic.models.static import DIMENSIONS as DIMENSIONS
from mnemic.models.static import StaticEmbedder


class StaticVectors:
    """The default embedder, which needs nothing but NumPy, in the form that the peers take."""

    def __init__(self) -> None:
        self._embedder = StaticEmbedder()

    def one(self, text: str) -> list[float]:
        """Return the vector of one text."""
        return self.many([text])[0]

    def many(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        found: list[list[float]] = self._embedder.embed(texts).tolist()
        return found
