"""The one embedder that every peer is given: WordLlama's 256 static dimensions, read from its wheel."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

DIMENSIONS = 256


class WordLlama:
    """The mean of the vectors of a text's tokens, at length one.

    The files are read here because the package, at this version, looks for its tokenizer in a folder
    that its wheel does not have, and then downloads it.
    """

    def __init__(self) -> None:
        found = find_spec("wordllama")
        assert found is not None
        assert found.origin is not None
        wheel = Path(found.origin).parent
        safetensors: Any = import_module("safetensors.numpy")
        tokenizers: Any = import_module("tokenizers")
        weights = safetensors.load_file(wheel / "weights" / "l2_supercat_256.safetensors")
        self._vectors = weights["embedding.weight"].astype(np.float32)
        self._tokenizer = tokenizers.Tokenizer.from_file(
            str(wheel / "tokenizers" / "l2_supercat_tokenizer_config.json")
        )

    def one(self, text: str) -> list[float]:
        """Return the vector of one text."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not tokens:
            return [0.0] * DIMENSIONS
        mean = self._vectors[tokens].mean(axis=0)
        vector: list[float] = (mean / np.linalg.norm(mean)).tolist()
        return vector

    def many(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        return [self.one(text) for text in texts]
