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


def bm25(
    occurrences: NDArray[np.float32],
    lengths: NDArray[np.float32],
    mean_length: float,
    weight: float,
    *,
    k1: float,
    b: float,
) -> NDArray[np.float32]:
    """Return what one term of weight `weight` adds to the score of each document that holds it.

    The lower `k1`, the sooner more occurrences stop mattering; the higher `b`, the less a long text's
    occurrences are worth.
    """
    scaled = occurrences + k1 * (1 - b + b * lengths / max(mean_length, 1e-9))
    return (weight * (k1 + 1) * occurrences / scaled).astype(occurrences.dtype)
