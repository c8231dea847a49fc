"""What turns texts into vectors: the protocol, and the ways to name one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]

__all__ = [
    "Embedder",
]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors that are close where the texts mean much the same.

    Both methods may block, and may be called from several threads at once. A text's vector must not
    depend on the texts that are embedded with it. Vectors need not have the length one.
    """

    @property
    def id(self) -> str:
        """The name of the model and of all that changes its vectors; those of two ids are never compared."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text."""
        ...

    def embed_query(self, query: str) -> Vectors:
        """Return the vector, of one dimension, of a text that is searched for."""
        ...
