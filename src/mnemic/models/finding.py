"""Finds an embedder by name."""

from __future__ import annotations

from ..checks import shown
from ..errors import InvalidValueError, MissingExtraError
from .embedder import Embedder

AUTO = "auto"
"""The embedder that made the store's vectors, or the default for a new store."""


STATIC_SHARE = 0.64
"""Weight of the static vectors beside the transformer's: they know rare names better."""


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
    if given in OURS:
        return OURS[given]()
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


def embedder_of(id: str | None) -> Embedder | None:
    """Return the embedder that made the vectors of a store; the default for a store without vectors.

    None if it is not a built-in one or not installed; recall then uses keyword search only.
    """
    for make in OURS.values():
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
    from .combined import CombinedEmbedder
    from .transformer import TransformerEmbedder

    return CombinedEmbedder((TransformerEmbedder(), 1.0), (_static(), STATIC_SHARE))


OURS = {"static": _static, "transformer": _transformer}
"""Built-in embedders, the default first."""
