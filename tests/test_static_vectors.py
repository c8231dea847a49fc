"""The static vectors: what the table in the package says of texts, and how texts are cut into its pieces."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import mnemic
from mnemic.models import static
from mnemic.models.embedder import Embedder
from mnemic.models.static import DIMENSIONS, StaticEmbedder, WordPieces

TEXTS = [
    "The cat sat on the mat.",
    "A feline rested upon a rug.",
    "Interest rates rose by a quarter of a percent in March.",
    "x",
    "",
    "Die Katze saß auf der Matte, 猫はマットの上に座った 😀",
    "one after the other " * 2000,
]


def test_texts_that_mean_much_the_same_are_close() -> None:
    embedder = StaticEmbedder()
    assert isinstance(embedder, Embedder)
    assert embedder.id == "mnemic-static-1"
    rows = embedder.embed(TEXTS)
    assert rows.shape == (len(TEXTS), DIMENSIONS)
    assert rows.dtype == np.float32
    query = embedder.embed_query("a kitten on the carpet")
    cat, feline, rates = (rows @ query)[:3]
    assert min(cat, feline) > 0.4 > 0.1 > rates
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-6)
    assert embedder.embed([]).shape == (0, DIMENSIONS)


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        ("Where does she work?", "She has a job at a hospital.", "She has a dog at home."),
        ("What sports does he play?", "I joined a soccer team in the spring.", "I joined a choir in the spring."),
        ("Which database do we use?", "Everything is stored in PostgreSQL.", "Everything is stored in boxes."),
        ("Does he have allergies?", "Peanuts make me ill.", "Exams make me nervous."),
        ("What did they eat?", "We had pasta and a salad.", "We had rain and a storm."),
    ],
)
def test_an_answer_is_closer_than_a_text_of_the_same_form(question: str, answer: str, other: str) -> None:
    embedder = StaticEmbedder()
    right, wrong = embedder.embed([answer, other]) @ embedder.embed_query(question)
    assert right > wrong


def test_a_text_has_one_vector_whatever_it_is_embedded_with() -> None:
    embedder = StaticEmbedder()
    together = embedder.embed(TEXTS)
    assert (embedder.embed(TEXTS[::-1])[::-1] == together).all()
    for text, row in zip(TEXTS, together, strict=True):
        assert (embedder.embed([text])[0] == row).all()
        assert (StaticEmbedder().embed_query(text) == row).all()
    with ThreadPoolExecutor(4) as pool:
        assert all((rows == together).all() for rows in pool.map(lambda _: embedder.embed(TEXTS), range(8)))


def test_a_text_without_a_known_word_has_a_vector_of_zeros() -> None:
    assert not StaticEmbedder().embed(["", "😀 …", "猫はマットの上に座った"]).any()


def test_the_static_embedder_needs_only_numpy() -> None:
    program = (
        "import sys, json; from mnemic.models.static import StaticEmbedder as S;"
        "rows = S().embed(json.load(sys.stdin));"
        "heavy = {'tokenizers', 'splintr', 'safetensors', 'wordllama', 'msgspec'} & set(sys.modules);"
        "print(rows.tobytes().hex(), *heavy)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == StaticEmbedder().embed(TEXTS).tobytes().hex()


def test_the_files_are_small_and_fit_together() -> None:
    table = np.load(static.TABLE, mmap_mode="r")
    pieces = static.VOCABULARY.read_text(encoding="ascii").splitlines()
    assert table.shape == (len(pieces), DIMENSIONS)
    assert table.dtype == np.int8
    assert len(set(pieces)) == len(pieces)
    assert static.TABLE.stat().st_size + static.VOCABULARY.stat().st_size < 10_000_000


def test_words_are_cut_into_the_longest_pieces() -> None:
    pieces = WordPieces(["play", "##ing", "##in", "##g", "don't", "don", "t", "cafe", "s", "ana"])
    assert pieces.cut("Playing, playin' — PLAY!") == [0, 1, 0, 2, 0]
    assert pieces.cut("Don't: don’t DON") == [4, 4, 5]
    assert pieces.cut("Ana's café") == [9, 8, 7]
    assert pieces.cut("unknown words play") == [0]
    assert pieces.cut("play_s play-s") == [0, 8, 0, 8]
    assert pieces.cut("") == pieces.cut(" \n…") == []


def test_a_very_long_word_and_many_words_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = WordPieces(["a", "##a", *map(str, range(10))])
    assert len(pieces.cut("a" * 1_000_000)) == 60
    monkeypatch.setattr("mnemic.models.static.CACHED_WORDS", 5)
    assert pieces.cut(" ".join(str(n % 10) for n in range(100))) == [2 + n % 10 for n in range(100)]
    assert len(pieces) <= 5


def test_a_store_of_an_older_embedder_is_reembedded(tmp_path: Path) -> None:
    class Older(StaticEmbedder):
        id = "wordllama-l2-supercat-256"

    url = f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url, embedder=Older()) as memory:
        memory.scope("a").remember_many(["the winter garden", "the harbour"])
    with mnemic.open(url) as memory:
        assert "dense" not in memory.scope("a").recall("garden")[0].why
    command = [sys.executable, "-m", "mnemic", "reembed", "--store", url, "--embedder", "static"]
    subprocess.run(command, capture_output=True, check=True)
    with mnemic.open(url) as memory:
        assert "dense" in memory.scope("a").recall("garden")[0].why
