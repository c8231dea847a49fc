"""Embedders that run locally in other libraries: sentence-transformers, fastembed, and onnxruntime."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from importlib import import_module
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import check_count, check_extra, check_name, check_text, shown
from ..errors import EmbedderError, InvalidValueError
from .embedder import LazyValue

if TYPE_CHECKING:
    from .embedder import Vectors


class SentenceTransformerEmbedder:
    """A sentence-transformers model; queries use its query encoder if it has one.

    A model given by name is loaded on first use, and downloaded if the library does not have it.
    """

    def __init__(
        self,
        model: str | PathLike[str] | object,
        *,
        id: str | None = None,
        batch_size: int = 32,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> None:
        """Take a model's name, its folder, or a SentenceTransformer; `options` are passed to the library.

        The id is the name, or the folder's own name, followed by `@` and `truncate_dim` if given. Pass an `id`
        for a SentenceTransformer, or if the options change the vectors.

        Raises InvalidValueError, or MissingExtraError if the library is not installed.
        """
        self._batch_size = check_count(batch_size, "batch_size", least=1)
        if truncate_dim is not None:
            options["truncate_dim"] = check_count(truncate_dim, "truncate_dim", least=1)
        # The library's tokenizers are not thread-safe.
        self._lock = threading.Lock()
        if isinstance(model, str | PathLike):
            name = check_name(fspath(model), "model")
            check_extra("sentence-transformers", "this embedder", "sentence_transformers")
            self.id: str = check_name(_named(name, truncate_dim) if id is None else id, "id")
            self._model = _loader("sentence_transformers", "SentenceTransformer", name, options)
        else:
            self.id = _id_of_object(model, id, options)
            self._model = LazyValue(lambda: model)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text; raises EmbedderError if the model cannot be loaded."""
        import numpy as np

        inputs = [check_text(text, "text") for text in texts]
        return self._encode("encode_document", inputs) if inputs else np.empty((0, 0), dtype=np.float32)

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector; raises EmbedderError if the model cannot be loaded."""
        row: Vectors = self._encode("encode_query", [check_text(query, "query")])[0]
        return row

    def _encode(self, side: str, texts: list[str]) -> Vectors:
        import numpy as np

        model = self._model.get()
        # Before version 5 there was one encoder only.
        encode: Callable[..., Any] = getattr(model, side, None) or model.encode
        with self._lock:
            made = encode(texts, batch_size=self._batch_size, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(made, dtype=np.float32)


class FastEmbedEmbedder:
    """A fastembed model; queries use its query encoder if it has one.

    A model given by name is loaded on first use, and downloaded if the library does not have it.
    """

    def __init__(self, model: str | object, *, id: str | None = None, batch_size: int = 1, **options: Any) -> None:
        """Take a model's name or a TextEmbedding; `options` are passed to the library.

        They include `specific_model_path`, a folder with the model, and `local_files_only`. Many of these models
        are quantized, and their vectors then depend on the batch, so `batch_size` defaults to one. The id is the
        model's name unless given.

        Raises InvalidValueError, or MissingExtraError if the library is not installed.
        """
        self._batch_size = check_count(batch_size, "batch_size", least=1)
        if isinstance(model, str):
            name = check_name(model, "model")
            check_extra("fastembed", "this embedder", "fastembed")
            self.id: str = check_name(name if id is None else id, "id")
            self._model = _loader("fastembed", "TextEmbedding", name, options)
        else:
            self.id = _id_of_object(model, getattr(model, "model_name", None) if id is None else id, options)
            self._model = LazyValue(lambda: model)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text; raises EmbedderError if the model cannot be loaded."""
        import numpy as np

        inputs = [check_text(text, "text") for text in texts]
        if not inputs:
            return np.empty((0, 0), dtype=np.float32)
        made = self._model.get().passage_embed(inputs, batch_size=self._batch_size)
        return np.asarray(list(made), dtype=np.float32)

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector; raises EmbedderError if the model cannot be loaded."""
        import numpy as np

        (row,) = self._model.get().query_embed(check_text(query, "query"))
        return np.asarray(row, dtype=np.float32)


def _named(name: str, truncate_dim: int | None) -> str:
    # The same folder may have another path on another machine.
    name = Path(name).resolve().name if Path(name).exists() else name
    return name if truncate_dim is None else f"{name}@{truncate_dim}"


def _id_of_object(model: object, id: str | None, options: dict[str, Any]) -> str:
    """Return the id of a loaded model; it must be given, without options."""
    if options:
        raise InvalidValueError(f"options are for a model given by name, not an object: {shown(sorted(options))}")
    if id is None:
        raise InvalidValueError(f"a model given as an object needs an id: {shown(model)}")
    return check_name(id, "id")


def _loader(module: str, type: str, name: str, options: dict[str, Any]) -> LazyValue[Any]:
    """Return a lazy loader of a model."""

    def load() -> Any:
        # Imported by name, because the library may be missing when types are checked.
        try:
            return getattr(import_module(module), type)(name, **options)
        except Exception as error:
            raise EmbedderError(f"{module} cannot load the model {shown(name)}: {error}") from error

    return LazyValue(load)


# ---------------------------------------------------------------- the conversation embedder, from its own package

MAX_TOKENS = 256
"""Maximum number of tokens, including the two special ones; the model was trained on no more."""
DIMENSIONS = 384
"""Dimension of a vector."""

_BEGIN, _END = 101, 102
_PACKAGE = "mnemic_conversation_embedder"
# Other files would give other vectors under the same id, hence the digests.
_MODEL = ("model.onnx", "9f1fec0e2e329b184cf1209f030b6f0bd1e202b125e81d31c3f480a691c91a85")
_TOKENIZER = ("tokenizer.json", "46f730a3e05e478bccfd861a2c7f9260794837d56cbf1245a338850bbb404aec")


class TransformerEmbedder:
    """all-MiniLM-L6-v2 fine-tuned for conversations, with 8-bit weights: English, 384 dimensions, 4 ms per text.

    Nothing is downloaded; the files are loaded on first use. A text is cut after 256 tokens. Each text runs
    alone, so its vector does not depend on the batch.
    """

    id = "mnemic-conversation-2"

    latin_only = True
    """Vectors of texts in other scripts mean nothing."""

    def __init__(self, *, threads: int | None = None) -> None:
        """Set how many texts run at the same time: by default one per CPU, at most eight.

        Raises MissingExtraError if a dependency is not installed.
        """
        check_extra("transformer", "the transformer embedder", "onnxruntime", _PACKAGE)
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
        (hidden,) = self._session.run(["last_hidden_state"], {"input_ids": ids})
        mean = hidden[0].mean(axis=0, dtype=np.float64)
        row: Vectors = (mean / np.sqrt(mean @ mean)).astype(np.float32)
        return row


def _load() -> _Model:
    # onnxruntime is not typed.
    onnxruntime: Any = import_module("onnxruntime")
    from splintr import from_json

    options = onnxruntime.SessionOptions()
    # One thread per text is faster than many for one, and leaves no spinning threads.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(_file(*_MODEL)), options, providers=["CPUExecutionProvider"])
    return _Model(from_json(str(_file(*_TOKENIZER))), session)


def _file(name: str, digest: str) -> Path:
    """Return the path of a file in the model's package, without importing it."""
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, name)
        if path.is_file():
            with path.open("rb") as content:
                if file_digest(content, "sha256").hexdigest() == digest:
                    return path
    raise EmbedderError(
        f"the installed {_PACKAGE} lacks the {name} of {TransformerEmbedder.id}, or has another: "
        "pip install --force-reinstall 'mnemic[transformer]'"
    )
