"""The forgetting curve: how much of its importance a memory has left."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray

HALF_LIFE = 30.0
"""After how many days without use half of the importance is left."""
DAY = 86_400_000_000

USE = "use"
"""The name under which a record's uses are kept beside it."""
ONE_MORE, OF_USE = b"+", b"!"
"""A use that is to be counted, by whoever holds back the others; and one that a caller says was of use."""
_USE = struct.Struct("<qdq")


class Use(Struct, frozen=True):
    """Since when a record fades, how often it was used, and when last; times in microseconds, 0 for never."""

    since: int = 0
    uses: float = 0.0
    last: int = 0


def strength(importance: Any, days: Any, uses: Any, half_life: float = HALF_LIFE) -> Any:
    """Return what is left of an importance after so many days since its last use; takes numbers or arrays.

    The importance is halved with each half-life. Uses make the half-life longer, by half the logarithm
    of one more than their number: by a third after one use, by 0.7 after three, by 1.2 after ten.
    """
    import numpy as np

    return importance * np.exp2(-np.maximum(days, 0) / (half_life * (1 + np.log1p(uses) / 2)))


def pack_use(use: Use) -> bytes:
    """Return the uses of a record as bytes."""
    return _USE.pack(use.since, use.uses, use.last)


def unpack_use(value: bytes | None) -> Use:
    """Return what `pack_use` was given; no use at all for anything else."""
    return Use(*_USE.unpack(value)) if value is not None and len(value) == _USE.size else Use()


def days_between(earlier: NDArray[Any], later: int) -> NDArray[Any]:
    """Return the days from each moment to a later one, both in microseconds."""
    days: NDArray[Any] = (later - earlier) / DAY
    return days
