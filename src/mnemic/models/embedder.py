"""The Embedder protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]
    """A row for each text, or one vector."""
else:

    def __getattr__(name: str) -> object:
        """Load numpy only when someone asks for the type by its name."""
        if name != "Vectors":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import numpy as np
        from numpy.typing import NDArray

        vectors = globals()[name] = NDArray[np.float32]
        return vectors


__all__ = ["Embedder"]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; texts with similar meanings have similar vectors.

    Both methods may block and must be thread-safe. A text's vector must not depend on the batch. Vectors need not
    be normalized.
    """

    @property
    def id(self) -> str:
        """Name of the model and every option that changes its vectors; different ids are never compared."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text."""
        ...

    def embed_query(self, query: str) -> Vectors:
        """Return the one-dimensional vector of a query."""
        ...
