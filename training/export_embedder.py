"""Writes the conversation embedder: an ONNX file with eight-bit weights, for ONNX Runtime, and its tokenizer.

usage: export_embedder.py TEACHER WEIGHTS.safetensors FOLDER

Needs onnx and tokenizers. The graph is built here, from operators that ONNX Runtime runs as one step each, so a text
takes less than half of the time that an exported graph takes. Matrices have a scale for each column, and seven bits of
the eight: with all eight, sums of two products overflow on processors without VNNI. A text must run alone: its
activations are scaled by their largest, so another text in the batch would change its vector.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HEADS = 12
LARGEST = 63
"""Of a weight: seven bits."""
EPSILON = 1e-12
FUSED = "com.microsoft"

Array = np.ndarray[Any, np.dtype[Any]]


class Graph:
    """Nodes and constants of the model."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = {name: value.astype(np.float32) for name, value in weights.items() if value.dtype != np.int64}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Array) -> str:
        """Add a constant, and return its name."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def run(self, operator: str, *inputs: str, outputs: int = 1, domain: str = "", **options: Any) -> Any:
        """Add a node, and return the names of its outputs."""
        names = [f"{operator}{len(self.nodes)}.{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, domain=domain, **options))
        return names[0] if outputs == 1 else names

    def multiply(self, given: str, name: str, matrix: Array, bias: Array | None = None) -> str:
        """Multiply by a matrix in eight bits; the other factor is rounded to eight bits as it comes."""
        scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12) / LARGEST
        whole = np.rint(matrix / scale).astype(np.int8)
        inputs = [
            given,
            self.constant(f"{name}.weight", whole),
            self.constant(f"{name}.scale", scale.astype(np.float32)),
            self.constant(f"{name}.zero", np.zeros(len(scale), dtype=np.int8)),
        ]
        if bias is not None:
            inputs.append(self.constant(f"{name}.bias", bias))
        found: str = self.run("DynamicQuantizeMatMul", *inputs, domain=FUSED)
        return found

    def dense(self, given: str, name: str) -> str:
        """Multiply by a matrix, and add a bias."""
        return self.multiply(given, name, self.weights[f"{name}.weight"].T, self.weights[f"{name}.bias"])

    def normalized(self, given: str, added: str, name: str) -> str:
        """Add two values, and normalize the sum."""
        parts = [
            self.constant(f"{name}.{part}", self.weights[f"{name}.LayerNorm.{part}"]) for part in ("weight", "bias")
        ]
        total = self.run("Add", given, added)
        found: str = self.run("LayerNormalization", total, *parts, epsilon=EPSILON)
        return found

    def embedded(self, ids: str) -> str:
        """Look up the tokens and their positions."""
        table = self.weights["embeddings.word_embeddings.weight"]
        scale = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-12) / 127
        rows = self.run("Gather", self.constant("words", np.rint(table / scale).astype(np.int8)), ids)
        scales = self.run("Gather", self.constant("scales", scale.astype(np.float32)), ids)
        words = self.run("Mul", self.run("Cast", rows, to=TensorProto.FLOAT), scales)
        positions = self.weights["embeddings.position_embeddings.weight"][:256]
        positions = positions + self.weights["embeddings.token_type_embeddings.weight"][0]
        start = self.constant("start", np.zeros(1, dtype=np.int64))
        axis = self.constant("axis", np.zeros(1, dtype=np.int64))
        count = self.run("Shape", ids, start=1, end=2)
        placed = self.run("Slice", self.constant("positions", positions), start, count, axis)
        return self.normalized(words, placed, "embeddings")

    def layer(self, given: str, name: str) -> str:
        """Run one layer: attention, then two matrices."""
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        matrix = np.concatenate([self.weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([self.weights[f"{part}.bias"] for part in parts])
        size = len(bias) // 3
        sizes = self.constant(f"{name}.sizes", np.full(3, size, dtype=np.int64))
        projected = self.multiply(given, f"{name}.qkv", matrix, bias)
        asked, keys, values = self.run("Split", projected, sizes, outputs=3, axis=2)
        attended = self.run("MultiHeadAttention", asked, keys, values, domain=FUSED, num_heads=HEADS)
        output = f"{name}.attention.output"
        out = self.dense(attended, f"{output}.dense")
        middle = self.normalized(given, out, output)
        wide = f"{name}.intermediate.dense"
        first = self.multiply(middle, wide, self.weights[f"{wide}.weight"].T)
        curved = self.run("BiasGelu", first, self.constant(f"{wide}.bias", self.weights[f"{wide}.bias"]), domain=FUSED)
        output = f"{name}.output"
        return self.normalized(middle, self.dense(curved, f"{output}.dense"), output)


def build(weights: dict[str, Array]) -> onnx.ModelProto:
    """Return the model: token ids to the last hidden states."""
    graph = Graph(weights)
    found = graph.embedded("input_ids")
    layers = sorted({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")}, key=int)
    for layer in layers:
        found = graph.layer(found, f"encoder.layer.{layer}")
    graph.nodes.append(helper.make_node("Identity", [found], ["last_hidden_state"]))
    size = graph.weights["embeddings.LayerNorm.bias"].shape[0]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
    hidden = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", size])
    return helper.make_model(
        helper.make_graph(graph.nodes, "conversation-embedder", [ids], [hidden], graph.constants),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)],
        ir_version=8,
        producer_name="mnemic",
    )


def tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    """Return a tokenizer for these pieces, without the rest of the teacher's: "[SEP]" in a text is text."""
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def main(teacher: str, weights: str, folder: str) -> None:
    """Write both files."""
    pieces = Tokenizer.from_file(f"{teacher}/tokenizer.json").get_vocab()
    tokenizer(pieces).save(f"{folder}/tokenizer.json", pretty=True)
    onnx.save(build(load_file(weights)), f"{folder}/model.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
