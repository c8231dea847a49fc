"""Adapts embedding models of other libraries to the Embedder protocol."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..checks import shown
from ..errors import InvalidValueError
from ..event_loop import Portal, running_loop
from ..models.embedder import Embedder
from ..models.local import SentenceTransformerEmbedder

if TYPE_CHECKING:
    from ..models.embedder import Vectors

AT_ONCE = 8
"""How many texts an async model embeds concurrently."""

_caller: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("caller", default=None)


@contextmanager
def embedding_here() -> Iterator[None]:
    """Run async models on the current event loop, on which their clients were created."""
    token = _caller.set(running_loop())
    try:
        yield
    finally:
        _caller.reset(token)


def embedder_from(model: Any) -> Embedder:
    """Return an embedding model as an Embedder; raises InvalidValueError for anything else.

    Accepts an Embedder, a sentence-transformers model, an object with `embed` or `encode`, sync or async, from
    one text to its vector, or such a function.
    """
    if isinstance(model, Embedder):
        return model
    if type(model).__module__.partition(".")[0] == "sentence_transformers":
        return SentenceTransformerEmbedder(model, id=_name(model))
    for function in (getattr(model, "embed", None), getattr(model, "encode", None), model):
        if callable(function) and not isinstance(function, type):
            return _OneByOne(function, _name(model))
    raise InvalidValueError(f"an embedding model has embed or encode, from a text to a vector: {shown(model)}")


def _name(model: Any) -> str:
    """Return an id that identifies this model's vectors."""
    known = (getattr(model, name, None) for name in ("id", "model_name", "model", "name", "__name__"))
    own = next((name for name in known if isinstance(name, str) and name), None)
    kind = type(model)
    return ":".join([f"{kind.__module__}.{kind.__qualname__}", *([own] if own else [])])


class _OneByOne:
    """A function from one text to its vector, as an Embedder."""

    def __init__(self, function: Callable[[str], Any], name: str) -> None:
        self.id = name
        self._function = function
        self._portal: Portal | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        made = [self._function(text) for text in texts]
        if any(inspect.isawaitable(one) for one in made):
            made = self._waited(made)
        return np.array(made, dtype=np.float32)

    def embed_query(self, query: str) -> Vectors:
        row: Vectors = self.embed([query])[0]
        return row

    def _waited(self, promised: list[Any]) -> list[Any]:
        async def all_of_them() -> list[Any]:
            made: list[Any] = []
            for start in range(0, len(promised), AT_ONCE):
                made += await asyncio.gather(*promised[start : start + AT_ONCE])
            return made

        loop = _caller.get()
        if loop is not None and loop.is_running() and running_loop() is None:
            return asyncio.run_coroutine_threadsafe(all_of_them(), loop).result()
        # A client stays bound to the event loop of its first use, so all calls share one loop.
        portal = self._portal = self._portal or Portal()
        return portal.run(all_of_them())
