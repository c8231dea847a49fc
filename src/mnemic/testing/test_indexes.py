"""Contract tests for companion indexes: see `mnemic.store.protocol.Companion`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from ..errors import ClosedError, InvalidValueError
from ..recall.index_entry import hashed, pack
from ..recall.text_analysis import terms as terms_of
from ..records import Record, ScopePath, StreamName
from ..store import registry
from ..store.protocol import Companion, Mark, Near
from .harness import KIND, SCOPE, Target, moment

Result = TypeVar("Result")
Vectors = NDArray[np.int8]

NOTE = "recall1:0badcafe"
WIDTH = 32
STREAM: StreamName = (SCOPE.path, KIND)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "index_target" in metafunc.fixturenames:
        targets = [target for some in metafunc.config.hook.pytest_mnemic_indexes() for target in some]
        metafunc.parametrize("index_target", targets, ids=lambda target: target.name)


class IndexHarness:
    """An empty index at a URL, and a runner of its coroutines."""

    def __init__(self, url: str, *, searches_words: bool) -> None:
        self.url = url
        self.searches_words = searches_words
        self._runner = asyncio.Runner()
        self._open: list[Companion] = []
        self.index: Companion = self.open()

    def open(self) -> Companion:
        url, maker = registry.found_in(registry.INDEX_GROUP, self.url)
        companion: Companion = self.run(maker.open(url))
        self._open.append(companion)
        return companion

    def reopen(self) -> None:
        """Close the index and open it again, as another process would."""
        self._open.remove(self.index)
        self.run(self.index.close())
        self.index = self.open()

    def close(self) -> None:
        for companion in self._open:
            self.run(companion.close())
        self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(coroutine)

    def put(self, *records: Record, name: str = NOTE) -> None:
        self.run(self.index.put(name, records))

    def remove(self, keys: Sequence[str] | None, stream: StreamName = STREAM) -> None:
        self.run(self.index.remove(stream, keys))

    def keys(self, stream: StreamName = STREAM, name: str = NOTE) -> list[str]:
        return sorted(self.run(self.index.keys(name, stream)))

    def mark(self, mark: Mark, stream: StreamName = STREAM, name: str = NOTE) -> None:
        self.run(self.index.mark(name, stream, mark))

    def marks(self, scope: ScopePath = SCOPE, name: str = NOTE) -> dict[StreamName, Mark]:
        return self.run(self.index.marks(name, scope))

    def by_words(self, text: str, *, name: str = NOTE, limit: int = 10) -> list[str]:
        """Return the keys of the records found by words alone, sorted."""
        return sorted(keys_of(self.near(None, name=name, terms=words(text), limit=limit)))

    def near(self, vector: Vectors | None = None, **asked: Any) -> list[Record]:
        given = {"scope": ScopePath(), "name": NOTE, **asked}
        return self.run(self.index.near(Near(vector=None if vector is None else vector.tobytes(), **given)))


@pytest.fixture
def harness(index_target: Target, tmp_path: Path) -> Iterator[IndexHarness]:
    """Provide an empty index."""
    words = index_target.searches_words
    with index_target.empty(tmp_path) as url, closing(IndexHarness(url, searches_words=words)) as opened:
        yield opened


def pointing(*weights: float, width: int = WIDTH) -> Vectors:
    """Return a vector with these weights along the first axes."""
    vector = np.zeros(width, dtype=np.int8)
    vector[: len(weights)] = weights
    return vector


def entered(
    key: str,
    vectors: Sequence[Vectors] | None = (),
    text: str = "",
    *,
    name: str = NOTE,
    scope: ScopePath | str = SCOPE,
    kind: str = KIND,
    **fields: Any,
) -> Record:
    """Return a record as an index receives it: without text, with its entry."""
    place = scope if isinstance(scope, ScopePath) else ScopePath(scope)
    record = Record(place, kind, key, text=text or "text", **{"seq": 1, "version": 1, **fields})
    rows = None if not vectors else np.stack(vectors)
    return replace(record, text=None, derived={name: pack(record, rows)})


def keys_of(records: list[Record]) -> list[str]:
    return [record.key for record in records]


def words(text: str) -> tuple[int, ...]:
    return tuple(hashed(term) for term in terms_of(text))


EAST, NORTH, UP = pointing(100), pointing(0, 100), pointing(0, 0, 100)


def test_a_record_comes_back_as_it_was_put(harness: IndexHarness) -> None:
    given = entered(
        "a 'b' \"c\" \\ % é",
        [EAST],
        "The cat sat on the mat",
        seq=7,
        version=9,
        title="Über 'cats'",
        meta={"n": 1, "big": 2**70, "deep": {"x": [None, "ü"]}},
        labels={"source": "o'hara"},
        importance=0.5,
        weight=12,
        pinned=True,
        created=moment("2024-05-01T12:00:00.123456"),
        updated=moment("2024-05-02T12:00:00"),
        expires=moment("2999-01-01T00:00:00"),
        valid_from=moment("2020-01-01T00:00:00"),
    )
    given = replace(given, derived={**given.derived, "use": b"\0\xff"})
    harness.put(given)
    assert harness.near(EAST) == [given]


def test_the_nearest_by_vector_come_first_found_or_not_by_words(harness: IndexHarness) -> None:
    harness.put(
        entered("near", [pointing(100, 10)]), entered("far", [pointing(-100)]), entered("between", [pointing(100, 100)])
    )
    assert keys_of(harness.near(EAST, limit=2)) == ["near", "between"]
    assert keys_of(harness.near(EAST, limit=10)) == ["near", "between", "far"]
    assert harness.near(EAST, limit=0) == []
    assert harness.near(None) == []


def test_where_words_are_searched_the_rare_ones_tell_most(harness: IndexHarness) -> None:
    common = [entered(f"c{n}", [NORTH], f"we talked about dinner {n}") for n in range(20)]
    harness.put(
        *common,
        entered("one", [NORTH], "a zeppelin over the lake"),
        entered("both", [NORTH], "dinner aboard the zeppelin"),
    )
    expected = ["both", "one"] if harness.searches_words else []
    assert harness.by_words("dinner zeppelin", limit=2) == expected


def test_a_record_found_both_ways_is_there_once(harness: IndexHarness) -> None:
    harness.put(entered("a", [EAST], "zeppelin"), entered("b", [NORTH], "zeppelin"))
    found = keys_of(harness.near(EAST, terms=words("zeppelin"), limit=5))
    assert sorted(found) == ["a", "b"]


def test_a_record_without_vectors_is_found_by_its_words_if_at_all(harness: IndexHarness) -> None:
    harness.put(entered("plain", None, "zeppelin"))
    assert keys_of(harness.near(EAST)) == []
    expected = ["plain"] if harness.searches_words else []
    assert keys_of(harness.near(EAST, terms=words("zeppelin"))) == expected
    harness.mark(Mark(1, 1, 1))
    harness.put(entered("with", [EAST], "airship"))
    assert keys_of(harness.near(EAST)) == ["with"]
    assert harness.by_words("zeppelin") == expected
    assert harness.keys() == ["plain", "with"]
    assert harness.marks() == {STREAM: Mark(1, 1, 1)}


def test_a_newer_version_takes_the_place_of_an_older_one(harness: IndexHarness) -> None:
    harness.put(entered("a", [EAST, NORTH, UP], "zeppelin", version=1), entered("b", [NORTH, UP]))
    newer = entered("a", [-EAST], "airship", version=2)
    harness.put(newer)
    found = harness.near(NORTH, limit=10)
    assert keys_of(found) == ["b", "a"]
    assert found[1] == newer
    assert keys_of(harness.near(None, terms=words("zeppelin"))) == []
    assert harness.keys() == ["a", "b"]


def test_a_long_text_is_one_record_and_does_not_take_the_place_of_others(harness: IndexHarness) -> None:
    long = [entered(f"long{n}", [pointing(100, n, m) for m in range(30)], "zeppelin") for n in range(4)]
    harness.put(*long, entered("short", [pointing(100, 90)]), entered("last", [pointing(0, 0, 100)]))
    found = harness.near(EAST, limit=5)
    assert set(keys_of(found)) == {"long0", "long1", "long2", "long3", "short"}
    assert len(found) == 5
    # Found by its last vector, it is returned whole.
    assert harness.near(pointing(100, 3, 29), limit=1) == [long[3]]


def test_kinds_and_scopes_hold_and_scopes_by_whole_segments(harness: IndexHarness) -> None:
    places = ["", "acme", "acme/alice", "acme/alice/s1", "acme/alice/s10", "acme/alice0", "acmex/alice"]
    for place in places:
        harness.put(entered("m", [EAST], scope=place), entered("f", [EAST], scope=place, kind="fact"))

    def found(scope: str, **asked: Any) -> list[str]:
        records = harness.near(EAST, scope=ScopePath(scope), limit=50, **asked)
        return sorted(f"{record.scope.path}:{record.key}" for record in records)

    assert found("acme/alice/s1") == ["acme/alice/s1:f", "acme/alice/s1:m"]
    assert found("acme/alice", kinds=(KIND,)) == ["acme/alice/s10:m", "acme/alice/s1:m", "acme/alice:m"]
    assert found("acme/alice", kinds=("fact",), below=False) == ["acme/alice:f"]
    assert found("", kinds=(KIND,), below=False) == [":m"]
    assert len(found("", kinds=("fact", KIND))) == 2 * len(places)
    assert found("acme", kinds=("note",)) == []
    assert found("acme/ali") == []


def test_names_may_hold_anything(harness: IndexHarness) -> None:
    odd = ["it's", 'say "x"', "back\\slash", "%_*?[a-z]", "a b", "né 中文", "{x}", "' OR '1'='1", "a\\'", "-- x"]
    for name in odd:
        harness.put(entered(name, [EAST], scope=ScopePath("acme") / name))
        harness.mark(Mark(1, 1, 1), (f"acme/{name}", KIND))
    assert len(harness.near(EAST, scope=ScopePath("acme"), limit=100)) == len(odd)
    for name in odd:
        scope = ScopePath("acme") / name
        assert keys_of(harness.near(EAST, scope=scope)) == [name]
        assert harness.marks(scope) == {(scope.path, KIND): Mark(1, 1, 1)}
        harness.remove([name, *odd], (scope.path, KIND))
        assert harness.keys((scope.path, KIND)) == []
        harness.remove(None, (scope.path, KIND))
    assert harness.near(EAST, scope=ScopePath("acme"), limit=100) == []
    assert harness.marks(ScopePath()) == {}


def test_what_is_removed_is_gone_for_every_embedder_and_nothing_else(harness: IndexHarness) -> None:
    other = "recall1:00000002"
    for name in (NOTE, other):
        for scope in (SCOPE, SCOPE / "deeper"):
            for kind in (KIND, "fact"):
                long = entered("a", [EAST, NORTH], "zeppelin", name=name, scope=scope, kind=kind)
                harness.put(long, entered("b", [EAST], name=name, scope=scope, kind=kind), name=name)
    harness.remove(["a", "nobody"])
    for name in (NOTE, other):
        assert harness.keys(name=name) == ["b"]
        assert harness.keys((SCOPE.path, "fact"), name) == ["a", "b"]
        assert harness.keys(((SCOPE / "deeper").path, KIND), name) == ["a", "b"]
        assert keys_of(harness.near(NORTH, scope=SCOPE, kinds=(KIND,), below=False, name=name)) == ["b"]
    harness.remove([])
    assert harness.keys() == ["b"]


def test_a_stream_goes_with_its_marks(harness: IndexHarness) -> None:
    fact = (SCOPE.path, "fact")
    harness.put(entered("a", [EAST, NORTH]), entered("a", [EAST], kind="fact"))
    harness.mark(Mark(5, 4, 3))
    harness.mark(Mark(2, 2, 2), fact)
    harness.remove(["a"])
    assert harness.marks() == {STREAM: Mark(5, 4, 3), fact: Mark(2, 2, 2)}
    harness.remove(None)
    assert harness.marks() == {fact: Mark(2, 2, 2)}
    assert harness.keys() == []
    assert harness.keys(fact) == ["a"]
    harness.remove(None, ("no/where", KIND))


def test_marks_are_those_of_a_scope_and_below_it_each_the_last_that_was_given(harness: IndexHarness) -> None:
    assert harness.marks() == {}
    for place in ("acme", "acme/s1", "acme/s1/x", "acme/s10"):
        harness.mark(Mark(1, 1, 1), (place, KIND))
    harness.mark(Mark(2**40, 2**41, 3), ("acme/s1", KIND))
    assert harness.marks(ScopePath("acme/s1")) == {
        ("acme/s1", KIND): Mark(2**40, 2**41, 3),
        ("acme/s1/x", KIND): Mark(1, 1, 1),
    }
    assert len(harness.marks(ScopePath())) == 4
    assert harness.marks(ScopePath(), "recall1:00000002") == {}
    # A mark is never a search result.
    assert harness.near(EAST, terms=words("zeppelin")) == []
    assert harness.keys(("acme", KIND)) == []


def test_embedders_lie_apart_whatever_their_dimensions(harness: IndexHarness) -> None:
    other, plain = "recall1:00000002", "a name: 'of' anything/else"
    harness.put(entered("a", [EAST]))
    harness.put(entered("b", [pointing(100, width=8)], name=other), name=other)
    harness.put(entered("c", None, "zeppelin", name=plain), name=plain)
    assert keys_of(harness.near(EAST)) == ["a"]
    assert keys_of(harness.near(pointing(100, width=8), name=other)) == ["b"]
    assert harness.by_words("zeppelin", name=plain) == (["c"] if harness.searches_words else [])
    # A vector of another dimension finds nothing and breaks nothing.
    assert harness.near(EAST, name=other) == []
    assert (harness.keys(), harness.keys(name=other), harness.keys(name=plain)) == (["a"], ["b"], ["c"])


def test_what_nobody_has_put_is_empty(harness: IndexHarness) -> None:
    assert harness.near(EAST, terms=words("zeppelin")) == []
    assert harness.keys() == []
    assert harness.marks() == {}
    harness.remove(["a"])
    harness.remove(None)
    harness.put()


def test_reset_forgets_everything_and_all_can_begin_anew(harness: IndexHarness) -> None:
    other = "recall1:00000002"
    harness.put(entered("a", [EAST], "zeppelin"))
    harness.put(entered("b", [pointing(100, width=8)], name=other), name=other)
    harness.mark(Mark(1, 1, 1))
    harness.run(harness.index.reset())
    assert harness.near(EAST, terms=words("zeppelin")) == []
    assert (harness.keys(), harness.keys(name=other), harness.marks()) == ([], [], {})
    harness.put(entered("c", [EAST]))
    harness.mark(Mark(2, 2, 1))
    assert keys_of(harness.near(EAST)) == ["c"]
    assert harness.marks() == {STREAM: Mark(2, 2, 1)}


def test_all_is_there_when_it_is_opened_again(harness: IndexHarness) -> None:
    if "//" not in harness.url or harness.url.partition("//")[2][:1] != "/":
        pytest.skip("it is not in a folder")
    harness.put(entered("a", [EAST, NORTH], "zeppelin"), entered("b", None, "airship"))
    harness.mark(Mark(3, 2, 2))
    harness.reopen()
    assert harness.marks() == {STREAM: Mark(3, 2, 2)}
    assert harness.keys() == ["a", "b"]
    assert keys_of(harness.near(NORTH)) == ["a"]
    harness.put(entered("c", [NORTH]))
    harness.remove(["a"])
    harness.reopen()
    assert keys_of(harness.near(NORTH)) == ["c"]


def test_many_records_come_in_at_once_and_all_are_found(harness: IndexHarness) -> None:
    generator = np.random.default_rng(7)
    vectors = generator.integers(-127, 128, (1_200, WIDTH)).astype(np.int8)
    records = [entered(f"k{n:04}", [vectors[n]], seq=n + 1) for n in range(1_200)]
    harness.put(*records)
    assert harness.keys() == [record.key for record in records]
    assert len(harness.near(vectors[0], limit=1_000)) == 1_000
    harness.remove([record.key for record in records[:1_100]])
    assert harness.keys() == [record.key for record in records[1_100:]]


def test_many_may_write_and_ask_at_the_same_time(harness: IndexHarness) -> None:
    async def at_once() -> None:
        near = Near(scope=ScopePath(), name=NOTE, vector=EAST.tobytes())

        async def one(n: int) -> None:
            await harness.index.put(NOTE, [entered(f"{n}-{m}", [EAST], scope=f"s{n}") for m in range(3)])
            await harness.index.mark(NOTE, (f"s{n}", KIND), Mark(n, 3, 3))
            await harness.index.near(near)
            await harness.index.remove((f"s{n}", KIND), [f"{n}-0"])

        await asyncio.gather(*(one(n) for n in range(12)))

    harness.run(at_once())
    assert harness.marks(ScopePath()) == {(f"s{n}", KIND): Mark(n, 3, 3) for n in range(12)}
    assert sorted(keys_of(harness.near(EAST))) == sorted(f"{n}-{m}" for n in range(12) for m in (1, 2))


def test_filters_cost_no_recall(harness: IndexHarness) -> None:
    generator = np.random.default_rng(11)
    vectors = generator.integers(-127, 128, (2_000, WIDTH)).astype(np.int8)
    scopes = [f"acme/u{n % 50}" for n in range(2_000)]
    kinds = [KIND if n % 3 else "fact" for n in range(2_000)]
    records = [entered(f"k{n}", [vectors[n]], scope=scopes[n], kind=kinds[n], seq=n + 1) for n in range(2_000)]
    for scope, kind in sorted(set(zip(scopes, kinds, strict=True))):
        harness.put(*(record for record in records if (record.scope.path, record.kind) == (scope, kind)))
    whole = vectors.astype(np.float64)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    agreed = asked = 0
    for n in range(40):
        question = generator.integers(-127, 128, WIDTH).astype(np.int8)
        place, only = f"acme/u{n}", (KIND, "fact", None)[n % 3]
        passing = [m for m in range(2_000) if scopes[m] == place and only in (None, kinds[m])]
        best = sorted(passing, key=lambda m: -float(whole[m] @ question))[:10]
        found = harness.near(question, scope=ScopePath(place), kinds=(only,) if only else (), limit=10)
        assert all(record.scope.path == place and only in (None, record.kind) for record in found)
        assert len(found) == len(best)
        agreed += len({records[m].key for m in best} & set(keys_of(found)))
        asked += len(best)
    assert agreed / asked >= 0.99


def test_the_event_loop_goes_on_meanwhile(harness: IndexHarness) -> None:
    generator = np.random.default_rng(3)
    vectors = generator.integers(-127, 128, (600, WIDTH)).astype(np.int8)
    records = [entered(f"k{n}", [vectors[n]], "some words", seq=n + 1) for n in range(600)]

    async def ticks(work: Coroutine[Any, Any, Any]) -> int:
        task = asyncio.ensure_future(work)
        count = 0
        while not task.done():
            await asyncio.sleep(0.001)
            count += 1
        await task
        return count

    assert harness.run(ticks(harness.index.put(NOTE, records))) >= 3


def test_after_close_it_says_so(harness: IndexHarness) -> None:
    harness.put(entered("a", [EAST]))
    other = harness.index
    harness.reopen()
    near = Near(scope=ScopePath(), name=NOTE, vector=EAST.tobytes())
    for call in (
        other.near(near),
        other.put(NOTE, [entered("b", [EAST])]),
        other.marks(NOTE, SCOPE),
        other.remove(STREAM, ["a"]),
        other.reset(),
    ):
        with pytest.raises(ClosedError, match="closed"):
            harness.run(call)
    assert harness.keys() == ["a"]


def test_an_option_that_nobody_knows_is_refused(harness: IndexHarness) -> None:
    url, maker = registry.found_in(registry.INDEX_GROUP, f"{harness.url}?colour=blue")
    with pytest.raises(InvalidValueError, match="colour"):
        harness.run(maker.open(url))
