"""BM25 scores, computed from counts."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def rarity(documents: int, holding: int) -> float:
    """Return the inverse document frequency of a term that `holding` of `documents` contain; never negative."""
    return log(1 + (documents - holding + 0.5) / (holding + 0.5))


def length_norms(lengths: NDArray[np.float32], mean_length: float, *, k1: float, b: float) -> NDArray[np.float32]:
    """Return the BM25 length normalization of each document.

    A lower `k1` saturates repeated terms sooner; a higher `b` discounts long texts more.
    """
    return (k1 * (1 - b + b * lengths / max(mean_length, 1e-9))).astype(lengths.dtype)


def bm25(occurrences: NDArray[np.float32], norms: NDArray[np.float32], weight: float, k1: float) -> NDArray[np.float32]:
    """Return the BM25 contribution of a term of weight `weight` to each document that contains it."""
    scores: NDArray[np.float32] = occurrences / (occurrences + norms)
    scores *= weight * (k1 + 1)
    return scores
