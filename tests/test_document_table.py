"""The index in memory: whatever happens to it, it says what one that is built anew says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from mnemic import Message
from mnemic.backends.memory import MemoryStore
from mnemic.layers.index import IndexLayer
from mnemic.layers.layer import Layer
from mnemic.recall import columns
from mnemic.recall.columns import Column, Keys, Postings, Vectors
from mnemic.recall.index_entry import CHUNK, LINE, MAX_CHUNKS, chunks, pack, quantized, unpack, unpack_all
from mnemic.recall.text_analysis import terms
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Page
from mnemic.store.query import Delete, Put, Scan, Search, Write

NUMBERS = count()


class Words:
    """A vector with a place for each word."""

    id = "words"

    def embed(self, texts: Sequence[str]) -> Any:
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, query: str) -> Any:
        found = np.full(32, 0.01, dtype=np.float32)
        for term in terms(query):
            found[crc32(term.encode()) % 32] += 1
        return found


# ---------------------------------------------------------------- an index that has a past

TEXTS = st.sampled_from(
    [
        "green tea",
        "tea in the garden",
        "Where is the garden?",
        "black coffee last Monday",
        "the zebra drinks 3 cups",
        "",
        "🎉",
        "The zebra lives in the garden. " * 40,
    ]
)
PLAIN_TEXTS = TEXTS.filter(bool)
USERS = st.sampled_from(["anna", "bert"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
ENTITIES = st.sampled_from(["Anna", "tea", "garden", "zebra"])

SIMPLE = (
    st.tuples(st.just("say"), USERS, PLAIN_TEXTS)
    | st.tuples(st.just("remember"), USERS, KEYS, PLAIN_TEXTS)
    | st.tuples(st.just("forget"), USERS, KEYS)
    | st.tuples(st.just("pop"), USERS)
    | st.tuples(st.just("system"), USERS, PLAIN_TEXTS)
    | st.tuples(st.just("clear"), USERS)
    | st.tuples(st.just("recall"))
)
ANY = (
    SIMPLE
    | st.tuples(st.just("say"), USERS, TEXTS)
    | st.tuples(st.just("remember"), USERS, KEYS, TEXTS)
    | st.tuples(st.just("erase"), USERS)
    | st.tuples(st.just("fact"), USERS, ENTITIES, ENTITIES)
    | st.tuples(st.just("unlink"), USERS, ENTITIES)
)


def do(memory: mnemic.Memory, step: tuple[str, ...]) -> None:
    name, *given = step
    if name == "recall":
        memory.scope("acme").recall("tea in the garden")
        return
    space = memory.scope("acme", given[0])
    chat = space.session("s", max_messages=6)
    match name, given[1:]:
        case "say", [text]:
            chat.add(Message("user", text, name=given[0]))
        case "remember", [key, text]:
            space.remember(text, id=key)
        case "forget", [key]:
            space.forget(key)
        case "pop", _:
            chat.delete(*chat.recent(1))
        case "system", [text]:
            chat.set_system(text)
        case "clear", _:
            chat.clear()
        case "erase", _:
            space.erase()
        case "fact", [subject, object]:
            space.facts.add(subject, "knows", object)
        case "unlink", [subject]:
            space.facts.delete(subject, "knows")


def told(memory: mnemic.Memory, query: str) -> dict[Any, Any]:
    hits = memory.scope("acme").recall(query, k=999, diverse=False, neighbors=2)
    return {
        hit.record.ref: (
            hit.score,
            hit.why,
            [message.id for message in hit.before],
            [message.id for message in hit.after],
        )
        for hit in hits
    }


def same(steps: list[tuple[str, ...]]) -> None:
    url = f"memory://past{next(NUMBERS)}"
    with mnemic.open(url, embedder=Words()) as memory:
        memory.scope("acme").recall("tea")
        for step in steps:
            do(memory, step)
        with mnemic.open(url, embedder=Words()) as fresh:
            for query in ("tea in the garden", "Where does Anna see the zebra?", "coffee last Monday"):
                ours, theirs = told(memory, query), told(fresh, query)
                assert ours.keys() == theirs.keys()
                for ref, (score, why, before, after) in theirs.items():
                    assert ours[ref][0] == pytest.approx(score, abs=2e-3)
                    assert ours[ref][1] == pytest.approx(why, abs=2e-3)
                    assert ours[ref][2:] == (before, after)


@settings(max_examples=40, report_multiple_bugs=False)
@given(st.lists(SIMPLE, max_size=25))
def test_an_index_follows_its_store(steps: list[tuple[str, ...]]) -> None:
    same(steps)


@settings(max_examples=80, report_multiple_bugs=False)
@given(st.lists(ANY, max_size=25))
def test_an_index_follows_any_history(steps: list[tuple[str, ...]]) -> None:
    same(steps)


# ---------------------------------------------------------------- searches that overlap


class Interrupted(Layer):
    """Lets something happen after a scan of all that a stream holds, before its answer is used."""

    then: Callable[[], Awaitable[None]] | None = None

    async def scan(self, scan: Scan) -> Page[Record]:
        page = await super().scan(scan)
        if self.then is not None and scan.after_version is None and not scan.bodies:
            then, self.then = self.then, None
            await then()
        return page


def test_a_late_search_drops_no_newer_record() -> None:
    home = ScopePath("a")

    async def main() -> None:
        below = Interrupted(MemoryStore())
        layer = IndexLayer(below, None)

        async def put(key: str) -> None:
            await layer.write(Write((Put(Record(home, "memory", key, text=f"tea {key}")),)))

        async def tea() -> list[str]:
            return sorted(hit.record.key for hit in await layer.search(Search(scope=home, query="tea", limit=9)))

        for key in "abc":
            await put(key)
        assert await tea() == ["a", "b", "c"]
        # As another process would, of whose deletions this one is not told.
        await below.write(Write((Delete(Ref(home, "memory", "a")),)))

        others: list[asyncio.Task[list[str]]] = []

        async def meanwhile() -> None:
            await put("d")
            others.append(asyncio.create_task(tea()))
            await asyncio.sleep(0.05)

        below.then = meanwhile
        await tea()
        assert "d" in await others[0]
        assert await tea() == ["b", "c", "d"]
        await layer.close()

    asyncio.run(asyncio.wait_for(main(), 60))


# ---------------------------------------------------------------- columns and postings


@given(st.lists(st.lists(st.integers(-9, 9), max_size=200), max_size=8))
def test_a_column_grows(parts: list[list[int]]) -> None:
    column = Column(np.int32)
    for part in parts:
        column.extend(part)
    assert column.values.tolist() == [value for part in parts for value in part]


@pytest.mark.parametrize("value", [7.0, np.nan])
def test_a_column_of_equal_values_takes_no_memory_until_one_differs(value: float) -> None:
    column = Column(np.float32)
    for _ in range(5):
        column.extend([value] * 1000)
    assert column.nbytes == 4
    with pytest.raises(ValueError, match="read-only"):
        column.values[3] = 8
    column.writable()[3] = 8
    column.extend([value, 9])
    assert column.nbytes >= 4 * 5002
    assert np.array_equal(column.values, [*[value] * 3, 8, *[value] * 4997, 9], equal_nan=True)


@pytest.mark.parametrize("first", [[], [1, 2], [1, 1]])
def test_a_column_widens_for_a_large_value(first: list[int]) -> None:
    column = Column(np.int16, widens=True)
    for part in (first, [2**20], [-1], [2**40], [3]):
        column.extend(part)
    assert column.values.tolist() == [*first, 2**20, -1, 2**40, 3]


GENERATED = st.integers(0, 2**128 - 1).map("{:032x}".format)


@given(parts=st.lists(st.lists(GENERATED | st.sampled_from(["k1", "F" * 32, "é" * 32, "0" * 64])), max_size=5))
def test_keys_are_returned_and_found_as_given(parts: list[list[str]]) -> None:
    keys = Keys()
    for part in parts:
        keys.extend(part)
    known = [key for part in parts for key in part]
    assert [keys[n] for n in range(len(keys))] == known
    everything = np.arange(len(known))
    for wanted in ({"k1"}, {"0" * 64, *known[:2]}, set(known), {"f" * 32, "no key"}):
        assert keys.find(everything, wanted) == [n for n, key in enumerate(known) if key in wanted]
        assert keys.find(everything[1:], wanted) == [n for n, key in enumerate(known) if n and key in wanted]


TERMS = st.sampled_from([0, 1, 2, 7, 2**31, 2**32 - 2, 2**32 - 1])


@pytest.mark.parametrize("pending", [0, 3, 20_000])
@given(texts=st.lists(st.lists(TERMS, max_size=8), max_size=30), every=st.integers(1, 5))
def test_postings_return_documents_and_frequencies(pending: int, texts: list[list[int]], every: int) -> None:
    postings = Postings()
    before = columns.PENDING
    columns.PENDING = pending
    try:
        for number, text in enumerate(texts):
            held = np.array(text, dtype=np.uint32)
            postings.add(held, np.full(len(text), number, dtype=np.int32))
            if number % every == 0:
                postings.merge_buffer()
        for term in (0, 1, 2, 3, 7, 2**31, 2**32 - 2, 2**32 - 1):
            documents, times = postings.of(term)
            expected = {n: text.count(term) for n, text in enumerate(texts) if term in text}
            assert dict(zip(documents.tolist(), times.tolist(), strict=True)) == expected
        for number, text in enumerate(texts):
            assert set(postings.terms_of(number).tolist()) == set(text)
    finally:
        columns.PENDING = before


def test_merging_postings_changes_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "PENDING", 0)
    postings = Postings()
    postings.add(np.full(300, 5, dtype=np.uint32), np.zeros(300, dtype=np.int32))
    before = postings.of(5)[1].tolist()
    postings.merge_buffer()
    assert postings.of(5)[1].tolist() == pytest.approx(before, rel=0.2)


def test_merging_empty_postings_changes_nothing() -> None:
    postings = Postings()
    postings.merge_buffer()
    assert [len(part) for part in postings.of(5)] == [0, 0]
    assert len(postings.terms_of(0)) == 0


# ---------------------------------------------------------------- entries


@given(
    text=st.text(max_size=300),
    name=st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
    rows=st.integers(0, 3),
)
def test_an_entry_is_unpacked_as_it_was_packed(text: str, name: str | None, rows: int) -> None:
    record = Record(ScopePath("a"), "message", "k", text=text, data={"role": "user", "name": name})
    vectors = np.arange(rows * 8, dtype=np.int8).reshape(rows, 8) if rows else None
    entry = unpack(pack(record, vectors))
    assert (entry.role, entry.speaker) == (2, name or "")
    assert len(entry.terms) == len(terms(text))
    if vectors is None:
        assert entry.vectors is None
    else:
        assert entry.vectors is not None
        assert np.array_equal(entry.vectors, vectors)


@given(st.lists(st.tuples(st.text(max_size=40), st.sampled_from(["", "Ana", "Zoë"]), st.integers(0, 3)), min_size=1))
def test_entries_are_unpacked_together_as_each_alone(given: list[tuple[str, str, int]]) -> None:
    packed = []
    for n, (text, name, rows) in enumerate(given):
        record = Record(ScopePath("a"), "message", f"{n}", text=text, data={"role": "user", "name": name})
        packed.append(pack(record, np.full((rows, 8), n, dtype=np.int8) if rows else None))
    alone = [unpack(value) for value in packed]
    for width in (0, 8, 16):
        entries = unpack_all(packed, width)
        assert entries.flags.tolist() == [entry.flags for entry in alone]
        assert entries.roles.tolist() == [entry.role for entry in alone]
        assert entries.speakers == [entry.speaker for entry in alone]
        assert entries.sizes.tolist() == [len(entry.terms) for entry in alone]
        assert entries.terms.tolist() == [term for entry in alone for term in entry.terms.tolist()]
        rows_of = [[] if entry.vectors is None or width == 16 else entry.vectors.tolist() for entry in alone]
        assert entries.rows.tolist() == [len(rows) for rows in rows_of]
        assert entries.vectors.tolist() == [row for rows in rows_of for row in rows]


@given(st.text(st.sampled_from("ab .!\n。"), max_size=2000), st.sampled_from((CHUNK, LINE)))
def test_chunks_are_short_and_leave_nothing_out(text: str, size: int) -> None:
    found = chunks(text, size)
    assert found
    assert all(len(chunk) <= CHUNK for chunk in found)
    assert Counter("".join(found).replace(" ", "").replace("\n", "")) == Counter(
        text.replace(" ", "").replace("\n", "")
    )


def test_a_text_of_any_length_has_few_chunks() -> None:
    for text in ("a sentence of words. " * 50_000, "x" * 1_000_000, "\n" * 5000, " " * 5000):
        found = chunks(text)
        assert 1 <= len(found) <= MAX_CHUNKS
        assert all(len(chunk) <= CHUNK for chunk in found)


def test_quantization_keeps_the_direction() -> None:
    random = np.random.default_rng(1)
    given = random.normal(size=(50, 64)).astype(np.float32) * 1e3
    given[7] = 0
    whole = quantized(given).astype(np.float32)
    assert np.abs(whole).max() == 127
    lengths = np.linalg.norm(given, axis=1) * np.linalg.norm(whole, axis=1)
    cosines = (given * whole).sum(axis=1)[lengths > 0] / lengths[lengths > 0]
    assert cosines.min() > 0.999
    assert not whole[7].any()


# ---------------------------------------------------------------- vectors


def cosines(rows: Any, query: Any) -> Any:
    rows, query = rows.astype(np.float64), query.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    return np.divide(rows @ query, lengths, out=np.zeros(len(rows)), where=lengths > 0)


@pytest.mark.parametrize("parts", [[1], [8], [3, 5, 8, 1], [30, 1, 1, 40], [1] * 20])
def test_vectors_in_blocks_are_compared_as_one(parts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 8)
    random = np.random.default_rng(len(parts))
    rows = random.integers(-127, 128, size=(sum(parts), 24), dtype=np.int8)
    rows[0] = 0
    owners = np.arange(len(rows), dtype=np.int32)[::-1].copy()
    vectors = Vectors()
    start = 0
    for size in parts:
        vectors.extend(rows[start : start + size], owners[start : start + size])
        start += size
    query = random.integers(-127, 128, size=24, dtype=np.int8)
    found, whose, exact = vectors.compare(query)
    assert exact
    assert np.array_equal(np.arange(len(rows))[whose], owners)
    assert found == pytest.approx(cosines(rows, query), abs=1e-4)
    some = np.array([0, len(rows) - 1, len(rows) // 2])
    assert np.array_equal(vectors.of(some), rows[some])
    assert not vectors.compare(np.zeros(24, dtype=np.int8))[0].any()


def test_the_nearest_are_found_where_not_all_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "EXACT", 1000)
    monkeypatch.setattr(columns, "RESCORED", 400)
    monkeypatch.setattr(columns, "BLOCK", 1024)
    random = np.random.default_rng(7)
    centres = random.normal(size=(60, 256))
    rows = quantized((centres[random.integers(60, size=5000)] + random.normal(size=(5000, 256))).astype(np.float32))
    vectors = Vectors()
    for start in range(0, 5000, 700):
        part = rows[start : start + 700]
        vectors.extend(part, np.arange(start, start + len(part), dtype=np.int32))
        vectors.compare(rows[0])
    right = 0
    for number in range(40):
        query = quantized((centres[number] + random.normal(size=256)).astype(np.float32)[None])[0]
        found, whose, exact = vectors.compare(query)
        assert not exact
        assert len(found) == 400
        assert found == pytest.approx(cosines(rows[whose], query), abs=1e-4)
        truly = set(np.argsort(-cosines(rows, query))[:10].tolist())
        right += len(truly & set(whose[np.argsort(-found)[:10]].tolist()))
    assert right / 400 >= 0.9


class Given:
    """The vectors of texts that are numbers."""

    id = "given"

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        centres = random.normal(size=(30, 128))
        self.rows = (centres[np.arange(1500) % 30] + random.normal(size=(1500, 128))).astype(np.float32)

    def embed(self, texts: Sequence[str]) -> Any:
        return self.rows[[int(text.removeprefix("n")) for text in texts]]

    def embed_query(self, query: str) -> Any:
        return self.rows[int(query)]


def test_recall_says_that_it_did_not_compare_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Given()
    with mnemic.open("memory://", embedder=model) as memory:
        space = memory.scope("a")
        space.remember_many([f"n{n}" for n in range(1500)])
        right = 0
        for query in range(20):
            with monkeypatch.context() as patch:
                patch.setattr(columns, "EXACT", 500)
                patch.setattr(columns, "RESCORED", 200)
                rough = space.recall(str(query), k=10, signals="dense")
                for hit in rough:
                    assert hit.why == pytest.approx({"dense (approximate)": hit.score}, abs=1e-5)
            exact = space.recall(str(query), k=10, signals="dense")
            assert all(set(hit.why) == {"dense"} for hit in exact)
            right += len({hit.record.key for hit in rough} & {hit.record.key for hit in exact})
        assert right / 200 >= 0.9
