"""The default embedder: a vector for each token, looked up and averaged, from a wheel that carries them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EmbedderError, MissingExtraError
from .loading import Once

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .embedder import Vectors

_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
TOKENS_AT_ONCE = 1024
"""How many tokens' vectors are gathered before they are summed: few enough for the processor's cache."""


class StaticEmbedder:
    """WordLlama's 256 dimensions: nothing to download, and some microseconds for a sentence.

    The package is only where the two files lie; its own loader would look for one of them elsewhere,
    and then on the network. They are read when the first text is embedded.
    """

    id = "wordllama-l2-supercat-256"
    trust = 1.0
    instant = True
    """A few texts take less time than it takes to find a thread for them."""

    def __init__(self) -> None:
        """Raise MissingExtraError if the package that carries the vectors is not installed."""
        if find_spec("wordllama") is None:
            raise MissingExtraError("the static embedder needs 'wordllama': pip install wordllama")
        self._model = Once(_load)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text, of length one, or of zeros for a text without tokens."""
        import numpy as np

        tokenizer, vectors = self._model.get()
        if len(texts) == 1:
            return self._one(texts[0], tokenizer, vectors)
        # One by one: in a forked child the tokenizer would wait for threads that are not there.
        encoded = [tokenizer.encode_flat(text) for text in texts]
        tokens = np.frombuffer(b"".join(encoded), dtype=np.uint32)
        sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) // 4
        offsets = np.append(0, np.cumsum(sizes))
        found = np.zeros((len(texts), vectors.shape[1]), dtype=np.float32)
        start = 0
        while start < len(texts):
            # As many whole texts as fit, and at least one.
            end = int(np.searchsorted(offsets, offsets[start] + TOKENS_AT_ONCE, side="right")) - 1
            end = max(end, start + 1)
            self._sum(
                tokens[offsets[start] : offsets[end]], offsets[start : end + 1], vectors, found[start:end]
            )
            start = end
        norms = np.sqrt(np.einsum("ij,ij->i", found, found))[:, None]
        np.divide(found, norms, out=found, where=norms > 0)
        return found

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector, made as that of any text."""
        row: Vectors = self.embed([query])[0]
        return row

    @staticmethod
    def _one(text: str, tokenizer: Any, vectors: Vectors) -> Vectors:
        """Return the row of one text, by the shortest way: this is done for every message and question."""
        import numpy as np

        tokens = np.frombuffer(tokenizer.encode_flat(text), dtype=np.uint32)
        # Added up as in a batch, so that it is the same to the last bit.
        row = np.add.reduceat(vectors[tokens], [0], axis=0)
        length = np.sqrt(np.einsum("ij,ij->i", row, row))
        if length[0]:
            row /= length[:, None]
        return row

    @staticmethod
    def _sum(tokens: NDArray[np.uint32], offsets: NDArray[np.int64], vectors: Vectors, into: Vectors) -> None:
        """Add the vectors of each text's tokens up."""
        import numpy as np

        lengths = np.diff(offsets)
        held = np.flatnonzero(lengths)
        if len(held):
            starts = (offsets[:-1] - offsets[0])[held]
            into[held] = np.add.reduceat(vectors[tokens], starts, axis=0)


def _load() -> tuple[Any, NDArray[np.float32]]:
    import numpy as np

    package = find_spec("wordllama")
    assert package is not None
    assert package.submodule_search_locations
    import splintr
    from safetensors.numpy import load_file

    folder = Path(package.submodule_search_locations[0])
    for name in (_WEIGHTS, _TOKENIZER):
        if not (folder / name).is_file():
            raise EmbedderError(f"the installed 'wordllama' has no {name}: install another version of it")
    tokenizer = splintr.from_json(str(folder / _TOKENIZER))
    (weights,) = load_file(folder / _WEIGHTS).values()
    vectors = weights.astype(np.float32)
    # What marks the beginning of every text says nothing about any.
    vectors[tokenizer.encode("")] = 0
    return tokenizer, vectors
