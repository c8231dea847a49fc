"""Scores, computed from counts alone."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def rarity(documents: int, holding: int) -> float:
    """Return how telling a term is that `holding` of so many documents hold; never negative."""
    return log(1 + (documents - holding + 0.5) / (holding + 0.5))


def length_norms(
    lengths: NDArray[np.float32], mean_length: float, *, k1: float, b: float
) -> NDArray[np.float32]:
    """Return what BM25 holds against each document for its length.

    The lower `k1`, the sooner more occurrences of a term stop mattering; the higher `b`, the less a long
    text's occurrences are worth.
    """
    return (k1 * (1 - b + b * lengths / max(mean_length, 1e-9))).astype(lengths.dtype)


def bm25(
    occurrences: NDArray[np.float32], norms: NDArray[np.float32], weight: float, k1: float
) -> NDArray[np.float32]:
    """Return what one term of weight `weight` adds to the score of each document that holds it."""
    scores: NDArray[np.float32] = occurrences / (occurrences + norms)
    scores *= weight * (k1 + 1)
    return scores
