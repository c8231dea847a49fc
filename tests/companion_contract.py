"""What recall through any index beside a store must do: it finds what the store holds, and holds nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import mnemic
from clock import Clock
from mnemic import MemoryItem, Message
from mnemic.errors import StoreUnavailableError
from mnemic.indexes.companion_index import MARK, Point
from mnemic.layers import store_embedder
from mnemic.layers.index import IndexLayer
from mnemic.recall.text_analysis import terms
from mnemic.store.protocol import Companion, Indexing, Mark


class Words:
    """An embedder whose vectors have a place for each word."""

    def __init__(self, id: str = "words", width: int = 64) -> None:
        self.id = id
        self.width = width
        self.broken = False

    def embed(self, texts: Sequence[str]) -> Any:
        if self.broken:
            raise ConnectionError("no model there")
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, query: str) -> Any:
        found = np.full(self.width, 0.01, dtype=np.float32)
        for term in terms(query):
            found[crc32(term.encode()) % self.width] += 1
        return found


def texts(hits: list[mnemic.Hit]) -> list[str]:
    return [hit.record.text or "" for hit in hits]


def companion_of(memory: mnemic.Memory) -> Companion:
    index = memory._async._index
    assert isinstance(index, IndexLayer)
    assert index._companion is not None
    return index._companion


PEOPLE = ["Anna", "Bert", "Cleo", "Dora", "Emil", "Frida", "Gustav", "Hanna"]
THINGS = [
    ("keeps bees behind the greenhouse", "who has bee hives"),
    ("is learning the cello with a teacher from Prague", "who takes music lessons"),
    ("drives an old yellow delivery van to work", "what vehicle gets {} to the office"),
    ("cannot eat anything with lactose", "which food makes {} ill"),
    ("wrote a thesis about medieval shipwrecks", "what did {} study"),
    ("collects stamps that show lighthouses", "what does {} collect"),
    ("swims in the lake before breakfast", "how does {} start the day"),
    ("moved from Tromsø to Lisbon in 2019", "where did {} live before Lisbon"),
]


class IndexTests:
    """The tests; a subclass says what an index holds, and a fixture `index` provides an empty one."""

    def held(self, memory: mnemic.Memory) -> list[Point]:
        """Return every point that the index holds, of whatever kind."""
        raise NotImplementedError

    def records_held(self, memory: mnemic.Memory) -> set[str]:
        return {point.key for point in self.held(memory) if point.chunk >= 0}

    @pytest.fixture
    def beside(self, file_url: str, index: Indexing, clock: Clock) -> Iterator[mnemic.Memory]:
        """A memory in a file, with an index beside it."""
        with mnemic.open(file_url, index=index, clock=clock) as memory:
            yield memory

    @pytest.fixture(autouse=True)
    def _looked_up_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_embedder, "CHECK_SECONDS", 0.0)

    # ---------------------------------------------------------------- finding

    def test_recall_finds_memories_and_messages(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("acme", "alice")
        alice.remember("Alice is allergic to peanuts", importance=0.9)
        alice.session("monday").add("user", "my sister Tilda moved to Bergen last winter")
        alice.session("monday").add("assistant", "how nice, does she like the rain there?")
        alice.facts.add("Tilda", "works_at", "Globex")
        assert texts(alice.recall("what is Alice allergic to"))[0] == "Alice is allergic to peanuts"
        assert "Tilda" in texts(alice.recall("where did Tilda move to"))[0]
        assert "Globex" in texts(alice.recall("who employs Tilda"))[0]
        hit = alice.recall("where did Tilda move", kinds="message", neighbors=1)[0]
        assert [record.text for record in hit.after] == ["how nice, does she like the rain there?"]
        assert beside.scope("acme", "ali").recall("peanuts") == []

    def test_a_changed_text_is_found_in_its_current_version(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("alice")
        key = alice.remember("the office is in Oslo").id
        assert texts(alice.recall("where is the office")) == ["the office is in Oslo"]
        alice.memories.update(key, text="the office is in Bergen")
        assert texts(alice.recall("where is the office")) == ["the office is in Bergen"]
        assert len(self.records_held(beside)) == 1

    def test_a_long_text_is_found_by_its_end_and_once(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("alice")
        filler = " ".join(f"Sentence {n} tells of the weather in the mountains." for n in range(120))
        alice.remember(f"{filler} Finally, the safe opens with the number forty-two.")
        alice.remember("a short note on something else")
        hits = alice.recall("which number opens the safe")
        assert "forty-two" in texts(hits)[0]
        assert len(hits) == len({hit.record.key for hit in hits})

    def test_writes_of_another_memory_are_found(self, file_url: str, beside: mnemic.Memory) -> None:
        here = beside.scope("alice")
        here.remember("the first note is about zebras")
        assert texts(here.recall("zebras")) == ["the first note is about zebras"]
        # Another process need not have the index at all.
        with mnemic.open(file_url) as other:
            there = other.scope("alice")
            key = there.remember("the second note is about harbours").id
            there.session("s").add("user", "and this was said of pianos")
            assert texts(here.recall("harbours"))[0] == "the second note is about harbours"
            assert texts(here.recall("pianos"))[0] == "and this was said of pianos"
            there.forget(key)
            there.session("s").clear()
        assert "harbours" not in " ".join(texts(here.recall("harbours")))
        assert len(self.records_held(beside)) == 1

    def test_keyword_search_without_an_embedder(self, file_url: str, index: Indexing) -> None:
        with mnemic.open(file_url, index=index, embedder=None) as memory:
            alice = memory.scope("alice")
            alice.remember_many([f"note {n} about dinner" for n in range(30)])
            alice.remember("a zeppelin over the lake")
            assert texts(alice.recall("zeppelin"))[0] == "a zeppelin over the lake"
            assert len(alice.recall("dinner", k=30)) == 30

    def test_filters_fetch_more_candidates_until_enough_match(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("alice")
        alice.remember_many(
            [MemoryItem(text=f"dinner number {n} was good", metadata={"rare": n == 7}) for n in range(500)]
        )
        assert texts(alice.recall("dinner was good", k=3, metadata={"rare": True})) == ["dinner number 7 was good"]

    # ---------------------------------------------------------------- nothing is left behind

    def test_deleted_records_leave_no_points(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("acme", "alice")
        chat = alice.session("s", max_messages=4)
        messages = chat.add_many([Message("user", f"message {n} about tea") for n in range(4)])
        notes = alice.remember_many(["tea is green", "tea is black"])
        keep = beside.scope("acme", "bert").remember("tea is white")
        alice.recall("tea")
        beside.scope("acme").recall("tea")
        assert len(self.records_held(beside)) == 7
        chat.add("user", "message 4 about tea")
        assert messages[0].id not in self.records_held(beside)
        chat.delete(messages[1].id)
        alice.forget(notes[0].id)
        assert not {messages[1].id, notes[0].id} & self.records_held(beside)
        chat.clear()
        assert not {message.id for message in messages} & self.records_held(beside)
        alice.recall("tea")
        alice.erase()
        left = self.held(beside)
        assert {point.scope for point in left} <= {"", "acme/bert"}
        assert {point.key for point in left if point.chunk >= 0} == {keep.id}
        beside.scope().erase()
        assert self.held(beside) == []

    def test_an_erased_scope_leaves_no_points(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("alice")
        alice.forget(alice.remember("a secret").id)
        alice.recall("secret")
        assert {point.scope for point in self.held(beside)} >= {"alice"}
        alice.erase()
        assert "alice" not in {point.scope for point in self.held(beside)}

    def test_expired_records_are_not_found_and_compacted_away(self, beside: mnemic.Memory, clock: Clock) -> None:
        alice = beside.scope("alice")
        kept = alice.remember("the code is a number")
        alice.recall("code")
        alice.remember("the code is zebra", ttl=timedelta(minutes=1))
        assert len(alice.recall("code")) == 2
        clock.advance(seconds=61)
        assert texts(alice.recall("code")) == ["the code is a number"]
        beside.compact()
        assert texts(alice.recall("code")) == ["the code is a number"]
        assert self.records_held(beside) == {kept.id}

    # ---------------------------------------------------------------- what goes wrong

    def test_a_crash_before_the_mark_only_repeats_work(
        self, beside: mnemic.Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alice = beside.scope("alice")
        alice.remember_many([f"note {n} about rivers" for n in range(5)])
        marked = type(companion_of(beside)).mark

        async def broken(companion: Companion, name: str, stream: Any, mark: Mark) -> None:
            monkeypatch.setattr(type(companion_of(beside)), "mark", marked)
            raise StoreUnavailableError("gone")

        monkeypatch.setattr(type(companion_of(beside)), "mark", broken)
        with pytest.raises(StoreUnavailableError):
            alice.recall("rivers")
        hits = alice.recall("rivers", k=20)
        assert len(hits) == len({hit.record.key for hit in hits}) == 5
        assert len([point for point in self.held(beside) if point.chunk >= 0]) == 5

    def test_a_lost_index_is_rebuilt(self, beside: mnemic.Memory) -> None:
        alice = beside.scope("alice")
        alice.remember_many([f"note {n} about rivers" for n in range(5)])
        alice.session("s").add("user", "a message about lakes")
        assert len(alice.recall("rivers", kinds="memory")) == 5
        beside._driver.run(companion_of(beside).reset())
        assert texts(alice.recall("lakes"))[0] == "a message about lakes"
        told: list[tuple[int, int]] = []
        assert beside.reindex(progress=lambda done, total: told.append((done, total))) == 6
        assert told[-1][0] == told[-1][1] > 0
        assert len(self.records_held(beside)) == 6
        assert len(alice.recall("rivers", kinds="memory")) == 5

    def test_the_index_follows_a_change_of_embedder(self, file_url: str, index: Indexing) -> None:
        with mnemic.open(file_url, index=index, embedder=Words("old", 64)) as memory:
            alice = memory.scope("alice")
            alice.remember_many(["tea in the garden", "a piano in winter"])
            assert texts(alice.recall("piano"))[0] == "a piano in winter"
            assert memory.reembed(Words("new", 128)) == 2
            assert texts(alice.recall("piano"))[0] == "a piano in winter"
            assert len([point for point in self.held(memory) if point.chunk >= 0]) == 2
        with mnemic.open(file_url, index=index, embedder=Words("new", 128)) as memory:
            assert texts(memory.scope("alice").recall("tea"))[0] == "tea in the garden"

    def test_texts_that_failed_to_embed_are_found_once_the_embedder_works(self, file_url: str, index: Indexing) -> None:
        model = Words()
        with mnemic.open(file_url, index=index, embedder=model) as memory:
            alice = memory.scope("alice")
            alice.remember("tea in the garden")
            assert len(alice.recall("tea")) == 1
            model.broken = True
            alice.remember("a piano in winter")
            alice.session("s").add("user", "the harbour at night")
            assert texts(alice.recall("tea"))[0] == "tea in the garden"
            model.broken = False
            assert texts(alice.recall("piano"))[0] == "a piano in winter"
            assert texts(alice.recall("harbour"))[0] == "the harbour at night"
            marks = [point for point in self.held(memory) if point.chunk == MARK]
            assert len(self.records_held(memory)) == 3
            alice.recall("piano")
            assert [point for point in self.held(memory) if point.chunk == MARK] == marks

    def test_concurrent_searches_index_records_once(
        self, beside: mnemic.Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alice = beside.scope("alice")
        alice.remember_many([f"note {n} about rivers" for n in range(50)])
        given: list[str] = []
        put = type(companion_of(beside)).put

        async def counted(companion: Companion, name: str, records: Sequence[mnemic.Record]) -> None:
            given.extend(record.key for record in records)
            await put(companion, name, records)

        monkeypatch.setattr(type(companion_of(beside)), "put", counted)
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: len(alice.recall("rivers", k=50)), range(8)))
        assert found == [50] * 8
        assert len(given) == 50

    def test_the_best_hit_is_that_of_the_index_in_memory(self, file_url: str, index: Indexing) -> None:
        facts = [f"{who} {what}" for who in PEOPLE for what, _ in THINGS]
        chatter = [f"{who} talked about the meeting on day {n}" for n, who in enumerate(PEOPLE * 6)]
        questions = [ask.format(who) if "{}" in ask else f"{ask}, {who}?" for who in PEOPLE for _, ask in THINGS]
        with mnemic.open(file_url) as memory:
            alice = memory.scope("alice")
            alice.remember_many(facts)
            alice.session("s").add_many([Message("user", text) for text in chatter])
            wanted = [alice.recall(question, k=1)[0].record.key for question in questions]
        with mnemic.open(file_url, index=index) as memory:
            alice = memory.scope("alice")
            given = [alice.recall(question, k=1)[0].record.key for question in questions]
        same = sum(one == other for one, other in zip(wanted, given, strict=True))
        assert same >= 0.95 * len(questions)
