"""Embedders of one's own: once per text, never mixed, never a reason to lose a write, and changed later."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import mnemic
from mnemic import MemoryItem, Message
from mnemic.backends.memory import MemoryStore
from mnemic.backends.sql.migrate import revisions
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.layers import store_embedder
from mnemic.layers.index import IndexLayer
from mnemic.recall.index_entry import TEXTS_AT_ONCE, entry_name
from mnemic.recall.text_analysis import terms
from mnemic.store.registry import StoreURL

WORDS = ["tea", "coffee", "zebra", "bicycle", "Oslo", "Bergen", "piano", "garden", "winter", "harbour"]


class Words:
    """A vector with a place for each word, and a note of all that it was asked."""

    def __init__(self, id: str = "words", width: int = 64) -> None:
        self.id = id
        self.width = width
        self.texts: list[str] = []
        self.batches: list[int] = []
        self.queries: list[str] = []
        self.broken = False
        self.lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Any:
        if self.broken:
            raise ConnectionError("no model there")
        with self.lock:
            self.texts.extend(texts)
            self.batches.append(len(texts))
        return np.stack([self.vector(text) for text in texts])

    def embed_query(self, query: str) -> Any:
        if self.broken:
            raise ConnectionError("no model there")
        self.queries.append(query)
        return self.vector(query)

    def vector(self, text: str) -> Any:
        found = np.full(self.width, 0.01, dtype=np.float32)
        for term in terms(text):
            found[crc32(term.encode()) % self.width] += 1
        return found


def found(hits: list[mnemic.Hit]) -> list[str]:
    return [hit.record.text or "" for hit in hits]


@pytest.fixture(autouse=True)
def _looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_embedder, "CHECK_SECONDS", 0.0)


# ---------------------------------------------------------------- once, and in batches


def test_each_text_is_embedded_once_and_in_batches(file_url: str) -> None:
    model = Words()
    texts = [f"note {n} on {WORDS[n % 10]}" for n in range(600)]
    with mnemic.open(file_url, embedder=model) as memory:
        space = memory.scope("a")
        space.remember_many(texts)
        assert sorted(model.texts) == sorted(texts)
        assert model.batches == [TEXTS_AT_ONCE, TEXTS_AT_ONCE, 600 - 2 * TEXTS_AT_ONCE]
        space.recall("tea")
        memory.scope().recall("tea")
    again = Words()
    with mnemic.open(file_url, embedder=again) as memory:
        assert memory.scope("a").recall("tea")[0].why["dense"] > 0
    assert len(model.texts) == 600
    assert (again.texts, again.queries) == ([], ["tea"])


@pytest.mark.parametrize("how", ["importance", "metadata", "decay", "archive", "fork", "restore"])
def test_a_text_that_does_not_change_is_not_embedded_again(how: str) -> None:
    model = Words()
    with mnemic.open("memory://", embedder=model) as memory:
        space = memory.scope("a")
        old = mnemic.MemoryItem(text="the winter garden", id="k", created=days_ago(400), importance=1)
        if how in ("archive", "fork"):
            chat = space.session("s", max_messages=4, overflow="archive")
            chat.add_many([Message("user", f"turn {WORDS[n]}") for n in range(4)])
            space.recall("turn")  # embeds them
            given = len(model.texts)
            if how == "fork":
                chat.fork("t")
            else:
                chat.add("user", "one more")
                assert chat.archived()
                given += 1
        else:
            space.remember_many([old])
            given = len(model.texts)
            if how == "importance":
                space.update("k", importance=4)
            elif how == "metadata":
                space.update("k", metadata={"a": 1})
            elif how == "decay":
                assert space.memories.decay() == 1
            else:
                assert space.forget(faded_below=0.5, archive=True).deleted == 1
                space.memories.restore("k")
                given += 1  # its vectors went with it
        assert len(space.recall("winter garden turn", k=9)) >= 1
        assert len(model.texts) == given


def days_ago(days: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) - timedelta(days=days)


def test_an_embedder_needs_the_methods_of_the_protocol() -> None:
    class Half:
        id = "half"

        def embed(self, texts: Sequence[str]) -> Any: ...

    for wrong in (Half(), 7, "no-such-model", object()):
        with pytest.raises(mnemic.InvalidValueError):
            mnemic.open("memory://", embedder=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["lists", "double", "long", "zero", "negative"])
def test_vectors_of_any_type_and_scale_are_accepted(kind: str) -> None:
    class Odd(Words):
        def vector(self, text: str) -> Any:
            plain = super().vector(text)
            return {
                "lists": plain,
                "double": plain.astype(np.float64),
                "long": plain * 1e6,
                "zero": plain * 0,
                "negative": -plain,
            }[kind]

        def embed(self, texts: Sequence[str]) -> Any:
            rows = super().embed(texts)
            return rows.tolist() if kind == "lists" else rows

    with mnemic.open("memory://", embedder=Odd()) as memory:
        space = memory.scope("a")
        space.remember_many(["the winter garden", "the harbour", "a piano"])
        space.session("s").add_many([Message("user", "garden?"), Message("assistant", "in winter")])
        hits = space.recall("winter garden")
        assert sorted(found(hits)[:3]) == ["garden?", "in winter", "the winter garden"]
        assert all(np.isfinite(hit.score) for hit in hits)
        assert memory.metrics().embedding_failures == 0


# ---------------------------------------------------------------- an embedder that fails


def test_a_failing_embedder_loses_no_write_and_vectors_are_added_later(
    file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Words()
    model.broken = True
    with mnemic.open(file_url, embedder=model) as memory, caplog.at_level(logging.WARNING, "mnemic"):
        space = memory.scope("a")
        space.remember_many(["the winter garden", "the harbour", "a piano"])
        space.session("s").add("user", "the garden in winter")
        assert "garden" in found(space.recall("garden"))[0]
        assert "embedded later" in caplog.text
        assert memory.metrics().embedding_failures > 0
        model.broken = False
        hits = space.recall("garden", k=9)
        assert "garden" in found(hits)[0]
        assert hits[0].why["dense"] > 0
        assert all(np.isfinite(hit.score) for hit in hits)
        assert sorted(model.texts) == ["a piano", "the garden in winter", "the harbour", "the winter garden"]
    again = Words()
    with mnemic.open(file_url, embedder=again) as memory:
        assert memory.scope("a").recall("garden")[0].why["dense"] > 0
    assert again.texts == []


def test_a_question_that_cannot_be_embedded_is_answered_by_words(file_url: str) -> None:
    model = Words()
    with mnemic.open(file_url, embedder=model) as memory:
        memory.scope("a").remember_many(["the winter garden", "the harbour"])
        model.broken = True
        (hit,) = memory.scope("a").recall("garden")
        assert "dense" not in hit.why
        model.broken = False
        assert "dense" in memory.scope("a").recall("garden")[0].why


def test_one_failing_text_does_not_affect_the_others_of_its_batch(file_url: str) -> None:
    class Choosy(Words):
        def embed(self, texts: Sequence[str]) -> Any:
            if any("poison" in text for text in texts):
                raise ValueError("too bitter")
            return super().embed(texts)

    model = Choosy()
    with mnemic.open(file_url, embedder=model) as memory:
        space = memory.scope("a")
        space.remember_many(["the winter garden", "poison in a bottle", "the harbour"])
        for _ in range(3):
            space.recall("garden")
        assert sorted(model.texts) == ["the harbour", "the winter garden"]
        assert found(space.recall("poison"))[0] == "poison in a bottle"


def test_a_text_without_a_vector_does_not_change_other_scores() -> None:
    class Choosy(Words):
        def embed(self, texts: Sequence[str]) -> Any:
            if any("poison" in text for text in texts):
                raise ValueError("too bitter")
            return super().embed(texts)

    parts = []
    for unrelated in ("nothing of note", "poison of note"):
        with mnemic.open("memory://", embedder=Choosy()) as memory:
            space = memory.scope("a")
            space.remember_many([f"the {word} stands here" for word in WORDS])
            space.remember(unrelated)
            (hit, *_) = space.recall("winter garden", k=1)
            parts.append(hit.why["dense"] / hit.score)
    assert parts[0] == pytest.approx(parts[1], rel=0.2)


@pytest.mark.parametrize("shape", ["more", "fewer", "flat", "nan", "infinite", "other-width", "none", "text"])
def test_vectors_of_the_wrong_shape_count_as_failures(shape: str) -> None:
    class Wrong(Words):
        def embed(self, texts: Sequence[str]) -> Any:
            rows = super().embed(texts)
            match shape:
                case "more":
                    return np.concatenate((rows[:1] * 0 + 3, rows))
                case "fewer":
                    return rows[:-1]
                case "flat":
                    return rows.ravel()
                case "nan":
                    return rows * np.float32("nan")
                case "infinite":
                    return np.full_like(rows, np.inf)
                case "other-width":
                    return rows[:, : 5 + len(self.batches)]
                case "none":
                    return None
            return "vectors"

    with mnemic.open("memory://", embedder=Wrong()) as memory:
        space = memory.scope("a")
        space.remember_many(["the winter garden", "the harbour"])
        space.remember("x" * 599 + ". " + "y" * 599 + ". " + "z" * 500)
        assert found(space.recall("garden", k=1)) == ["the winter garden"]
        assert memory.metrics().embedding_failures > 0


def test_a_model_with_a_new_dimension_does_not_break_recall(file_url: str) -> None:
    with mnemic.open(file_url, embedder=Words("m", 32)) as memory:
        memory.scope("a").remember_many(["the winter garden", "the harbour"])
    with mnemic.open(file_url, embedder=Words("m", 48)) as memory:
        space = memory.scope("a")
        space.remember("a piano in the garden")
        assert "garden" in found(space.recall("garden"))[0]
        assert len(space.recall("garden harbour", k=9)) == 3


# ---------------------------------------------------------------- never mixed


def test_two_embedders_are_not_mixed(file_url: str) -> None:
    with mnemic.open(file_url, embedder=Words("one")) as memory:
        memory.scope("a").remember("the winter garden")
    with pytest.raises(mnemic.EmbedderError, match=r"'one'.*'two'.*reembed"):
        mnemic.open(file_url, embedder=Words("two"))
    with mnemic.open(file_url, embedder=Words("one")) as memory:
        assert memory.scope("a").recall("garden")[0].why["dense"] > 0


@pytest.mark.parametrize("embedder", [None, "auto", "none"])
def test_a_store_of_an_unknown_embedder_is_searched_by_words(file_url: str, embedder: str | None) -> None:
    model = Words("one")
    with mnemic.open(file_url, embedder=model) as memory:
        memory.scope("a").remember("the winter garden")
    with mnemic.open(file_url, embedder=embedder) as memory:
        memory.scope("a").remember("a garden gnome")
        hits = memory.scope("a").recall("garden")
        assert len(hits) == 2
        assert all("dense" not in hit.why for hit in hits)
    with mnemic.open(file_url, embedder=model) as memory:
        assert all("dense" in hit.why for hit in memory.scope("a").recall("winter garden"))
    assert sorted(model.texts) == ["a garden gnome", "the winter garden"]


def test_an_empty_store_takes_the_first_embedder_that_writes(file_url: str) -> None:
    with mnemic.open(file_url, embedder=Words("one")) as one, mnemic.open(file_url, embedder=Words("two")) as two:
        assert one.scope("a").recall("garden") == two.scope("a").recall("garden") == []
        one.scope("a").remember("the winter garden")
        with pytest.raises(mnemic.EmbedderError):
            two.scope("a").remember("the harbour")
        with pytest.raises(mnemic.EmbedderError):
            two.scope("a").recall("garden")
        assert [record.text for record in one.scope("a").memories.list()] == ["the winter garden"]


# ---------------------------------------------------------------- moving over


def fill(memory: mnemic.Memory, count: int = 40) -> None:
    for user in ("anna", "bert"):
        space = memory.scope("acme", user)
        space.remember_many(
            [MemoryItem(text=f"note {n} on the {WORDS[n % 10]}", id=f"k{n}") for n in range(count // 4)]
        )
        space.session("s").add_many([Message("user", f"talk {n} of {WORDS[n % 10]}") for n in range(count // 4)])


def names(path: str) -> set[str]:
    """Return the names of all values that are kept beside records."""
    with closing(sqlite3.connect(path)) as file:
        return {name for (name,) in file.execute("SELECT DISTINCT name FROM mnemic_derived")}


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///").partition("?")[0]


def test_reembed_replaces_all_vectors(file_url: str) -> None:
    old, new = Words("old", 32), Words("new", 128)
    with mnemic.open(file_url, embedder=old) as memory:
        fill(memory)
        memory.scope("acme").recall("garden")
        seen: list[tuple[int, int]] = []
        assert memory.reembed(new, progress=lambda done, total: seen.append((done, total))) == 40
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1] >= 40
        assert len(new.texts) == 40
        (hit, *_) = memory.scope("acme").recall("garden")
        assert "garden" in (hit.record.text or "")
        assert hit.why["dense"] > 0
        assert new.queries[-1:] == ["garden"]
        memory.scope("acme", "anna").remember("another garden")
        assert new.texts[-1] == "another garden"
    assert {name for name in names(path_of(file_url)) if name.startswith("recall")} == {entry_name("new")}
    with mnemic.open(file_url, embedder=new) as memory:
        assert memory.reembed(new) == 0
    with pytest.raises(mnemic.EmbedderError):
        mnemic.open(file_url, embedder=old)


def test_recall_works_during_a_reembed(file_url: str) -> None:
    old, new = Words("old"), Words("new")
    with mnemic.open(file_url, embedder=old) as memory, mnemic.open(file_url, embedder=old) as other:
        fill(memory)
        answers: list[float] = []

        def look(done: int, total: int) -> None:
            if done < total:
                handles = (memory, other)
                answers.extend(h.scope("acme").recall("garden")[0].why["dense"] for h in handles)
                other.scope("acme", "anna").remember(f"late garden {done}")

        memory.reembed(new, progress=look)
        assert answers
        assert min(answers) > 0
        assert all("dense" in hit.why for hit in memory.scope("acme").recall("late garden", k=99))
        with pytest.raises(mnemic.EmbedderError, match="'new'"):
            other.scope("acme").recall("garden")
        with pytest.raises(mnemic.EmbedderError, match="'new'"):
            other.scope("acme").remember("lost?")
        other.reembed(new)
        assert other.scope("acme").recall("garden")[0].why["dense"] > 0


def test_a_failed_reembed_changes_nothing_and_resumes(file_url: str) -> None:
    old, new = Words("old"), Words("new")
    with mnemic.open(file_url, embedder=old) as memory:
        fill(memory)
        new.broken = True
        with pytest.raises(mnemic.EmbedderError, match="'new' failed"):
            memory.reembed(new)
        assert memory.scope("acme").recall("garden")[0].why["dense"] > 0
        assert old.queries[-1] == "garden"
        new.broken = False
        assert memory.reembed(new) == 40


def test_an_interrupted_reembed_resumes(file_url: str) -> None:
    class EnoughError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 20:
            raise EnoughError

    with mnemic.open(file_url, embedder=Words("old")) as memory:
        fill(memory)
        first = Words("new")
        with pytest.raises(EnoughError):
            memory.reembed(first, progress=stop)
        assert 0 < len(first.texts) < 40
        second = Words("new")
        seen: list[int] = []
        memory.reembed(second, progress=lambda done, total: seen.append(done))
        assert len(first.texts) + len(second.texts) == 40
        assert seen[0] >= len(first.texts)


def test_old_vectors_are_deleted_after_an_interrupted_last_step(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: store_embedder.StoreEmbedder, name: str) -> None:
        raise KeyboardInterrupt

    with mnemic.open(file_url, embedder=Words("old")) as memory:
        fill(memory)
        with monkeypatch.context() as patch:
            patch.setattr(store_embedder.StoreEmbedder, "_delete_entries", broken)
            with pytest.raises(KeyboardInterrupt):
                memory.reembed(Words("new"))
        memory.reembed(Words("new"))
        assert memory.scope("acme").recall("garden")[0].why["dense"] > 0
    assert {name for name in names(path_of(file_url)) if name.startswith("recall")} == {entry_name("new")}


MOVING = """
import sys, time, zlib
import numpy as np
import mnemic

class Slow:
    id = "new"
    def embed(self, texts):
        time.sleep(0.05)
        return np.stack([self.vector(text) for text in texts])
    def embed_query(self, query):
        return self.vector(query)
    def vector(self, text):
        found = np.full(64, 0.01, dtype=np.float32)
        for word in text.lower().split():
            found[zlib.crc32(word.encode()) % 64] += 1
        return found

with mnemic.open(sys.argv[1], embedder=None) as memory:
    memory.reembed(Slow(), progress=lambda done, total: print(done, flush=True))
"""


def test_a_killed_reembed_resumes(file_url: str) -> None:
    old = Words("old")
    with mnemic.open(file_url, embedder=old) as memory:
        for n in range(30):
            memory.scope("acme", f"user{n}").remember_many([f"note {m} on the {WORDS[m % 10]}" for m in range(5)])
        child = subprocess.Popen([sys.executable, "-c", MOVING, file_url], stdout=subprocess.PIPE, text=True)
        with child:
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= 30:
                    child.kill()
                    break
        assert memory.scope("acme").recall("zebra")[0].why["dense"] > 0
        new = Words("new")
        made = memory.reembed(new)
        assert made == len(new.texts)
        assert 0 < made <= 120
        assert len(memory.scope("acme").recall("zebra", k=99, signals="lexical", diverse=False)) == 30
        assert all("dense" in hit.why for hit in memory.scope("acme").recall("zebra", k=30, diverse=False))


def test_reembed_to_another_dimension_and_back(file_url: str) -> None:
    with mnemic.open(file_url, embedder=Words("narrow", 16)) as memory:
        fill(memory)
        for model in (Words("wide", 512), Words("narrow", 16), Words("wide", 512)):
            assert memory.reembed(model) == 40
            assert "garden" in found(memory.scope("acme").recall("the garden", k=1))[0]


def test_reembed_needs_an_embedder(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        with pytest.raises(mnemic.EmbedderError):
            memory.reembed("none")
        with pytest.raises(mnemic.InvalidValueError):
            memory.reembed("no-such-model")
        assert memory.reembed(Words()) == 0


def test_an_empty_text_is_never_embedded(file_url: str) -> None:
    model = Words()
    with mnemic.open(file_url, embedder=model) as memory:
        memory.scope("a").remember("")
        memory.scope("a").session("s").add("assistant", None)
        memory.scope("a").session("s").add("assistant", "")
        memory.scope("a").recall("tea")
        assert model.texts == []
        assert memory.reembed(Words("new")) == 0


def test_reembed_does_not_block_the_event_loop(file_url: str) -> None:
    class Waiting(Words):
        entered, released = threading.Event(), threading.Event()

        def embed(self, texts: Sequence[str]) -> Any:
            self.entered.set()
            if not self.released.wait(120):
                raise TimeoutError("the event loop was held up")
            return super().embed(texts)

    async def main() -> None:
        async with mnemic.open_async(file_url, embedder=Words("old")) as memory:
            await memory.scope("a").remember_many([f"note on the {word}" for word in WORDS])
            target = Waiting("new")
            moving = asyncio.create_task(memory.reembed(target))
            assert await asyncio.to_thread(target.entered.wait, 60)
            target.released.set()
            assert await moving == 10

    asyncio.run(main())


# ---------------------------------------------------------------- files of earlier versions


def old_file(path: Path, revision: str, count: int) -> None:
    opened = SqliteFile(StoreURL.parse(f"sqlite:///{path}"))
    opened.migrate(revision)
    opened.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute(
            "INSERT INTO mnemic_streams "
            "(id, scope, kind, last_seq, version, count, weight, created, updated) "
            "VALUES (1, 'acme/alice/s', 'message', ?, ?, ?, 5, 0, 0)",
            (count, count, count),
        )
        for n in range(1, count + 1):
            old.execute(
                "INSERT INTO mnemic_records (stream_id, seq, key, version, text, data, weight, pinned, "
                'created, updated) VALUES (1, ?, ?, ?, ?, \'{"role":"user"}\', 1, 0, 0, 0)',
                (n, f"k{n}", n, f"turn {n} on the {WORDS[n % 10]}"),
            )


@pytest.mark.parametrize("revision", revisions())
def test_texts_of_an_old_file_get_their_vectors_once(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "old.db"
    old_file(path, revision, 30)
    model = Words()
    with mnemic.open(f"sqlite:///{path}", embedder=model) as memory:
        hits = memory.scope("acme").recall("garden", k=3)
        assert all("dense" in hit.why for hit in hits)
        assert len(model.texts) == 30
        memory.scope("acme").recall("piano")
        assert len(model.texts) == 30
    again = Words()
    with mnemic.open(f"sqlite:///{path}", embedder=again) as memory:
        assert "dense" in memory.scope("acme").recall("garden", k=3)[0].why
        assert memory.reembed(Words("new")) == 30
    assert again.texts == []


def test_missing_vectors_are_computed_once_by_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    old_file(path, revisions()[0], 40)
    model = Words()
    with mnemic.open(f"sqlite:///{path}", embedder=model) as memory:
        threads = [threading.Thread(target=memory.scope("acme").recall, args=("garden",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all("dense" in hit.why for hit in memory.scope("acme").recall("garden", k=40))
        assert set(model.texts) == {f"turn {n} on the {WORDS[n % 10]}" for n in range(1, 41)}


def test_an_index_layer_takes_any_store() -> None:
    async def main() -> None:
        layer = IndexLayer(MemoryStore(), Words())
        await layer.prepare()
        assert (await layer.metrics()).recalls == 0
        await layer.close()

    asyncio.run(main())


def test_the_reembed_command(file_url: str) -> None:
    with mnemic.open(file_url, embedder=Words()) as memory:
        memory.scope("a").remember_many(["the winter garden", "the harbour"])
    command = [sys.executable, "-m", "mnemic", "reembed", "--store", file_url, "--embedder"]
    ran = subprocess.run([*command, "static"], capture_output=True, text=True, check=True)
    assert ran.stdout == "2 texts embedded with static\n"
    with mnemic.open(file_url) as memory:
        assert "dense" in memory.scope("a").recall("garden")[0].why
    refused = subprocess.run([*command, "luck"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no embedder is named 'luck'" in refused.stderr
