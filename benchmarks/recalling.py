"""Recall against its bare parts, among other users, over a million records; and remembering in batches."""

from __future__ import annotations

import gc
import itertools
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import simsimd

import mnemic
from mnemic.models.static import StaticEmbedder
from mnemic.recall.index_entry import quantized
from mnemic.recall.languages.detection import _foreign
from mnemic.telemetry.calls import figures

from .measuring import Result, Work, in_turns, per_call, rate_share, time_ratio

SIZES = {1_000: 10.0, 10_000: 5.0, 100_000: 3.0}
"""How many times the bare parts' time a recall may take, by how many records the user has."""
QUESTIONS = [
    "When is the dentist's appointment?",
    "Which allergy does my sister have?",
    "Where did I move to in March?",
    "What did the new client say about the budget of the harbour project?",
    "Who recommended the bakery near the old station?",
]
LOADED = 100_000
"""How many records of one scope a new process loads."""
LOADING_SECONDS, RECORD_BYTES = 1.0, 400
"""How long the first recall of these may take, and how much memory each may."""
MILLION = 1_000_000
MEMORY = 1024
"""How many MiB a process may take that recalls among a million records."""


class Texts:
    """Sentences from a vocabulary in which few words are frequent and most are rare, as in language.

    No word is one of another language than English, so that the sentences are not taken for many languages.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "ar", "en", "ol")]
        made = ("".join(self.random.choices(syllables, k=self.random.randint(1, 3))) for _ in range(20_000))
        words = [word for word in made if word not in _foreign()]
        known = [word.strip("?.,'s") for question in QUESTIONS for word in question.split()]
        self.words = [*words[:30], *known, *words[30:]]
        self.weights = [1 / (n + 5) for n in range(len(self.words))]

    def some(self, count: int) -> list[str]:
        """Return so many sentences."""
        drawn = iter(self.random.choices(self.words, self.weights, k=count * 16))
        return [" ".join(next(drawn) for _ in range(self.random.randint(8, 16))) for _ in range(count)]


def fill(space: mnemic.Scope, texts: list[str]) -> None:
    """Remember texts in batches."""
    for start in range(0, len(texts), 1000):
        space.remember_many(texts[start : start + 1000])


def asking(space: mnemic.Scope) -> Work:
    """Return what asks one question after another."""
    numbers = iter(range(10**9))
    return lambda: space.recall(QUESTIONS[next(numbers) % len(QUESTIONS)], 10)


class Bare:
    """What a recall cannot do without: the question's vector, one exact scan, one full-text query."""

    def __init__(self, path: Path, texts: list[str]) -> None:
        self.embedder = StaticEmbedder()
        self.matrix = np.concatenate(
            [quantized(self.embedder.embed(texts[n : n + 1000])) for n in range(0, len(texts), 1000)]
        )
        self.raw = sqlite3.connect(path)
        self.raw.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize='porter')")
        self.raw.executemany("INSERT INTO words VALUES (?)", ((text,) for text in texts))
        self.raw.commit()
        self.numbers = iter(range(10**9))

    def ask(self) -> object:
        """Embed, scan and query once."""
        question = QUESTIONS[next(self.numbers) % len(QUESTIONS)]
        vector = quantized(self.embedder.embed_query(question)[None])
        distances = np.asarray(simsimd.cdist(vector, self.matrix, "cosine"))
        query = " OR ".join(f'"{word}"' for word in question.strip("?").replace("'", " ").split())
        found = self.raw.execute(
            "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words) LIMIT 10", (query,)
        ).fetchall()
        return distances.argmin(), found


def against_bare(folder: Path) -> list[Result]:
    """Measure a recall against its bare parts, at several sizes, in a file with other users."""
    results = []
    for size, most in SIZES.items():
        texts = Texts(size)
        own = texts.some(size)
        with mnemic.open(f"sqlite:///{folder / f'{size}.db'}") as memory:
            for n in range(100):
                memory.scope("acme", f"other-{n}").remember_many(texts.some(20))
            space = memory.scope("acme", "alice")
            fill(space, own)
            memory.warm("acme", "alice")
            bare = Bare(folder / f"bare-{size}.db", own)
            calls = 50 if size < 50_000 else 10
            ours, theirs = in_turns(asking(space), bare.ask, calls=calls)
        what = f"recall among {size:,} records, against embedding, one exact scan and one full-text query"
        results.append(time_ratio(what, most, ours, theirs))
    return results


def among_others(folder: Path) -> Result:
    """Measure whether the records of other users slow a recall down."""
    memories = []
    try:
        for others in (10, 10_000):
            memory = mnemic.open(f"sqlite:///{folder / f'among-{others}.db'}?synchronous=normal")
            memories.append(memory)
            texts = Texts(1)
            own = texts.some(1000)
            rest = texts.some(1000)
            for n in range(others):
                memory.scope(f"other-{n}").remember_many(rest[n % 980 : n % 980 + 20])
            fill(memory.scope("alice"), own)
        many, few = (asking(memory.scope("alice")) for memory in reversed(memories))
        ours, baseline = in_turns(many, few, calls=50)
    finally:
        for memory in memories:
            memory.close()
    return time_ratio("recall among 10,000 other users, against among 10", 1.3, ours, baseline)


def among_active(folder: Path) -> list[Result]:
    """Measure whether other users slow a recall down whose own recalls were answered by the same process.

    Between two recalls that are timed, another user recalls, so that every index is in use.
    """
    counts = (10, 1_000, 8_000)
    texts = Texts(4)
    own, rest = texts.some(1000), texts.some(1000)
    asks: dict[int, tuple[Work, Work]] = {}
    with ExitStack() as opened:
        for count in counts:
            url = f"sqlite:///{folder / f'active-{count}.db'}?synchronous=normal"
            memory = opened.enter_context(mnemic.open(url))
            fill(memory.scope("alice"), own)
            others = [memory.scope(f"other-{n}") for n in range(count)]
            for n, other in enumerate(others):
                other.remember_many(rest[n % 980 : n % 980 + 20])
                other.recall(QUESTIONS[n % len(QUESTIONS)])
            turns = itertools.cycle(others)
            asks[count] = asking(memory.scope("alice")), lambda turns=turns: next(turns).recall(QUESTIONS[0])  # type: ignore[misc]
        times: dict[int, list[float]] = {count: [] for count in counts}
        gc.collect()
        gc.disable()
        for _ in range(500):
            for count, (ask, interleave) in asks.items():
                interleave()
                times[count].append(per_call(ask, 1))
        gc.enable()
    few, *many = (statistics.median(times[count]) for count in counts)
    return [
        time_ratio(f"recall beside {count:,} other users who recall too, against 10", 1.3, ours, few)
        for count, ours in zip(counts[1:], many, strict=True)
    ]


def batches(folder: Path) -> Result:
    """Measure remembering, embedded and durable, against the embedder alone."""
    embedder = StaticEmbedder()
    embedder.embed(["loaded"])
    texts = Texts(2)
    times = []
    with mnemic.open(f"sqlite:///{folder / 'batches.db'}") as memory:
        space = memory.scope("alice")
        space.remember("loaded")
        drawn = [texts.some(1000) for _ in range(20)]
        gc.collect()
        gc.disable()
        for some in drawn:
            begun = time.perf_counter()
            space.remember_many(some)
            between = time.perf_counter()
            embedder.embed(some)
            times.append((between - begun, time.perf_counter() - between))
        gc.enable()
    ours, baseline = (statistics.median(column) / 1000 for column in zip(*times, strict=True))
    return rate_share("remember in batches of 1,000, against the embedder alone", 0.25, ours, baseline)


def first_recall(folder: Path) -> list[Result]:
    """Measure the first recall of a new process in a large scope that was searched before, and its index."""
    results = []
    for kind, session in (("memories", 0), ("messages", 1000), ("messages in 2,000 sessions", 50)):
        path = folder / f"first-{session}.db"
        texts = Texts(5)
        with mnemic.open(f"sqlite:///{path}?synchronous=normal") as memory:
            alice = memory.scope("acme", "alice")
            for n in range(LOADED // (session or 1000)):
                some = texts.some(session or 1000)
                if session:
                    turns = [mnemic.Message(("user", "assistant")[m % 2], text) for m, text in enumerate(some)]
                    alice.session(f"s{n}").add_many(turns)
                else:
                    alice.remember_many(some)
            memory.warm("acme", "alice")
        command = [sys.executable, "-m", "benchmarks.recalling", "--first", str(path)]
        runs = [
            subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
            for _ in range(5)
        ]
        seconds, size = (
            statistics.median(map(float, one)) for one in zip(*(r.stdout.split() for r in runs), strict=True)
        )
        what = f"first recall of {LOADED:,} {kind} of one scope in a new process, in all"
        target = f"at most {LOADING_SECONDS:g} s"
        results.append(Result(what, target, f"{seconds:.2f} s", seconds <= LOADING_SECONDS))
        what, target = f"index of {LOADED:,} {kind}, per record", f"at most {RECORD_BYTES} bytes"
        results.append(Result(what, target, f"{size:.0f} bytes", size <= RECORD_BYTES))
    return results


def load(path: str) -> None:
    """Recall in a large scope; print the seconds, and the bytes of its index for each record."""
    with mnemic.open(f"sqlite:///{path}") as memory:
        begun = time.perf_counter()
        memory.scope("acme", "alice").recall(QUESTIONS[0])
        seconds = time.perf_counter() - begun
        print(seconds, sum(value for name, _, value in figures() if name == "index_bytes") / LOADED)


def million(folder: Path) -> list[Result]:
    """Measure what a process needs that opens a file of a million records, and recalls."""
    path = folder / "million.db"
    texts = Texts(3)
    with mnemic.open(f"sqlite:///{path}?synchronous=normal") as memory:
        for n in range(MILLION // 1000):
            memory.scope("acme", f"user-{n}").remember_many(texts.some(1000))
    command = [sys.executable, "-m", "benchmarks.recalling", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    opened, one, again, everyone, later, most = map(float, ran.stdout.split())
    size = path.stat().st_size / MILLION
    measured = [
        (f"open a file of 1,000,000 records of {size:,.0f} bytes", "seconds", f"{opened:.2f} s", opened < 5),
        ("first recall of one user of 1,000, and the next", "", f"{one:.2f} s, {again * 1e3:.1f} ms", True),
        ("first recall over all, and the next", "", f"{everyone:.1f} s, {later * 1e3:.0f} ms", True),
        ("memory that took, in all", f"under {MEMORY} MiB", f"{most:.0f} MiB", most < MEMORY),
    ]
    return [Result(what, target or "(to know)", reached, holds) for what, target, reached, holds in measured]


def visit(path: str) -> None:
    """Open a file, recall for one user and for all, and print the seconds of each and the memory."""
    times = [time.perf_counter()]

    def done() -> None:
        times.append(time.perf_counter())

    with mnemic.open(f"sqlite:///{path}") as memory:
        done()
        one, everyone = memory.scope("acme", "user-7"), memory.scope("acme")
        for space in (one, one, everyone, everyone):
            space.recall(QUESTIONS[0])
            done()
    print(*np.diff(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def run(folder: Path) -> list[Result]:
    """Run all of it."""
    users = [among_others(folder), *among_active(folder)]
    return [*against_bare(folder), *users, batches(folder), *first_recall(folder), *million(folder)]


if __name__ == "__main__":
    load(sys.argv[2]) if sys.argv[1] == "--first" else visit(sys.argv[1])
