"""The Embedder protocol, weighted combinations of embedders, and embedders by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from ..checks import shown
from ..errors import InvalidValueError, MissingExtraError

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


__all__ = ["CombinedEmbedder", "Embedder"]


T = TypeVar("T")

AUTO = "auto"
"""The embedder that made the store's vectors, or the default for a new store."""
STATIC_SHARE = 0.64
"""Weight of the static vectors beside the transformer's: they know rare names better."""


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


class LazyValue(Generic[T]):
    """A thread-safe lazily computed value; if computing it fails, the next call retries."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[T] | None = None

    def get(self) -> T:
        """Return the value, computed on the first call."""
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = (self._make(),)
        return self._made[0]


class CombinedEmbedder:
    """Concatenates the vectors of several embedders, so that cosines are their weighted mean."""

    def __init__(self, *parts: tuple[Embedder, float]) -> None:
        """Take embedders and their weights; raises InvalidValueError for a weight that is not positive."""
        if not parts or any(weight <= 0 for _, weight in parts):
            raise InvalidValueError("embedders are combined with positive weights, and there is at least one")
        self._parts = parts
        self.latin_only: bool = all(getattr(embedder, "latin_only", False) for embedder, _ in parts)
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


def find_embedder(given: Embedder | str | None) -> Embedder | None:
    """Return an embedder given as an object or a name; None for "none" (keyword search only).

    Raises InvalidValueError for an unknown name, MissingExtraError for one that is not installed.
    """
    if given is None or given == "none":
        return None
    if not isinstance(given, str):
        if not isinstance(given, Embedder):
            raise InvalidValueError(
                f"an embedder has an id and the methods embed and embed_query; {shown(given)} has not"
            )
        return given
    name, _, model = given.partition(":")
    if given in BUILT_IN:
        return BUILT_IN[given]()
    if name == "sentence-transformers" and model:
        from .local import SentenceTransformerEmbedder

        return SentenceTransformerEmbedder(model)
    if name == "fastembed" and model:
        from .local import FastEmbedEmbedder

        return FastEmbedEmbedder(model)
    raise InvalidValueError(
        f"no embedder is named {shown(given)}: use 'auto', 'static', 'transformer', 'none', "
        "'sentence-transformers:MODEL', 'fastembed:MODEL', or pass an embedder"
    )


def embedder_by_id(id: str | None) -> Embedder | None:
    """Return the embedder that made the vectors of a store; the default for a store without vectors.

    None if it is not a built-in one or not installed; recall then uses keyword search only.
    """
    for make in BUILT_IN.values():
        try:
            embedder = make()
        except MissingExtraError:
            continue
        if id in (None, embedder.id):
            return embedder
    return None


def _static() -> Embedder:
    from .static import StaticEmbedder

    return StaticEmbedder()


def _transformer() -> Embedder:
    from .local import TransformerEmbedder

    return CombinedEmbedder((TransformerEmbedder(), 1.0), (_static(), STATIC_SHARE))


BUILT_IN = {"static": _static, "transformer": _transformer}
"""Built-in embedders, the default first."""
