"""The forgetting curve: how much of its importance a memory has left."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from numpy.typing import NDArray

HALF_LIFE = 30.0
"""Half-life of importance without use, in days."""
DAY = 86_400_000_000

USE = "use"
"""Name of the derived value with a record's uses."""
_USE = struct.Struct("<qdq")


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

    return importance * np.exp2(-np.maximum(days, 0) / (half_life * (1 + np.log1p(uses) / 2)))


def pack_use(use: Use) -> bytes:
    """Encode the uses of a record."""
    return _USE.pack(use.since, use.uses, use.last)


def unpack_use(value: bytes | None) -> Use:
    """Decode the uses of a record; no uses for anything else."""
    return Use(*_USE.unpack(value)) if value is not None and len(value) == _USE.size else Use()


def days_between(earlier: NDArray[Any], later: int) -> NDArray[Any]:
    """Return the days from each moment to a later one, both in microseconds."""
    days: NDArray[Any] = (later - earlier) / DAY
    return days
