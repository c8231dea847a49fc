"""After each change a recall finds what a memory finds that is opened anew, with the same scores and reasons."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemic
from clock import Steps
from mnemic import Message
from mnemic.layers.index import IndexLayer
from mnemic.recall import turn_line
from mnemic.recall.document_table import NONE
from mnemic.recall.document_view import CONTEXT_KERNEL, DocumentView
from mnemic.recall.scope_index import ScopeIndex
from mnemic.recall.turn_line import GAP

NUMBERS = count()
QUESTIONS = ("Where do they drink tea in the garden?", "What did I say about the zebra last Monday?")
TEXTS = st.sampled_from(
    [
        "green tea",
        "We had tea in the garden on 3 May",
        "Where is the garden, Bert?",
        "the zebra drinks 3 cups, and then it sleeps in the garden of the old house near the station",
        "",
        "Coffee last Monday. " * 40,
    ]
)
ROLES = st.sampled_from(["user", "assistant", "assistant", "user", "system"])
NAMES = st.sampled_from([None, "Anna", "Bert", "Carla", "Dora"])
TURNS = st.lists(st.tuples(ROLES, NAMES, TEXTS), min_size=1, max_size=5)
SESSIONS = st.sampled_from(["s1", "s2", "s3"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
PLACES = st.integers(0, 5)

STEPS = st.one_of(
    st.tuples(st.just("say"), SESSIONS, TURNS),
    st.tuples(st.just("say"), SESSIONS, TURNS),
    st.tuples(st.just("say often"), SESSIONS, TURNS),
    st.tuples(st.just("say and evict"), TURNS),
    st.tuples(st.just("edit"), SESSIONS, PLACES, TEXTS),
    st.tuples(st.just("delete"), SESSIONS, PLACES),
    st.tuples(st.just("clear"), SESSIONS),
    st.tuples(st.just("remember"), KEYS, TEXTS.filter(bool)),
    st.tuples(st.just("remember for an hour"), TEXTS.filter(bool)),
    st.tuples(st.just("forget"), KEYS),
    st.tuples(st.just("fail"), KEYS),
    st.tuples(st.just("note"), KEYS, TEXTS.filter(bool)),
    st.tuples(st.just("fact"), KEYS, KEYS),
    st.tuples(st.just("wait")),
    st.tuples(st.just("erase")),
)


EDGE = 0.02
"""The score of a hit that is hardly one."""


def do(memory: mnemic.Memory, clock: Steps, step: tuple[Any, ...]) -> None:
    alice = memory.scope("acme", "alice")

    def message(role: Any, name: str | None, text: str) -> Message:
        return Message(role, text, name=name, timestamp=clock.move(700))

    match step:
        case "say", session, turns:
            alice.session(session).add_many([message(*turn) for turn in turns])
        case "say often", session, turns:
            alice.session(session).add_many([message(*turn) for turn in turns * 8])
        case "say and evict", turns:
            alice.session("short", max_messages=4, overflow="drop").add_many([message(*turn) for turn in turns])
        case "edit", session, place, text:
            for old in alice.session(session).messages()[place : place + 1]:
                alice.session(session).edit({"id": old.id, "role": old.role, "content": text})
        case "delete", session, place:
            chat = alice.session(session)
            chat.delete(*chat.messages()[place : place + 1])
        case "clear", session:
            alice.session(session).clear()
        case "remember", key, text:
            alice.remember(text, id=key, created=clock.move(50))
        case "remember for an hour", text:
            alice.remember(text, ttl=timedelta(hours=1))
        case "forget", key:
            alice.forget(key)
        case "fail", key:
            with suppress(mnemic.NotFoundError, mnemic.ConflictError):
                alice.memories.update(key, text="never stored: tea with a zebra", if_version=999)
        case "note", key, text:
            alice.notes.write(f"note {key}", text)
        case "fact", subject, object:
            alice.facts.add(subject, "drinks tea with", object)
        case ("wait",):
            clock.move(1900)
        case ("erase",):
            alice.erase()


def told(memory: mnemic.Memory, query: str) -> dict[Any, Any]:
    hits = memory.scope("acme").recall(query, k=999, diverse=False, neighbors=1, uses=False)
    return {
        hit.record.ref: (hit.record.version, hit.score, hit.why, [m.id for m in hit.before], [m.id for m in hit.after])
        for hit in hits
    }


def index_of(memory: mnemic.Memory) -> ScopeIndex:
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)
    return layer._cache._indexes["acme"]


def neighbors(index: ScopeIndex, document: int) -> list[int]:
    """Return the turns beside a turn, as the table links them."""
    table = index.table
    found = []
    for column in (table.before.values, table.after.values):
        at, side = document, []
        for _ in range(GAP):
            at = int(column[at]) if at != NONE else NONE
            side.append(at)
        found.append(side)
    return [*found[0][::-1], document, *found[1]]


def check_view(index: ScopeIndex) -> None:
    """Compare a view that has grown with a new one, and its line with the links of the table."""
    table, view = index.table, index._view
    assert view is not None
    fresh = DocumentView(table)
    for name, value in vars(fresh).items():
        if isinstance(value, np.ndarray | int | float) and not name.startswith("_"):
            assert np.allclose(getattr(view, name), value, atol=1e-6), name
    values = np.linspace(0, 1, len(table), dtype=np.float32)
    assert np.allclose(view.around(values, CONTEXT_KERNEL), fresh.around(values, CONTEXT_KERNEL), atol=1e-6)
    numbers = np.arange(len(table) + 1)
    assert np.allclose(view.norms_of(numbers), fresh.norms_of(numbers), atol=1e-6)
    for document in np.flatnonzero(table.spoken.values & table.alive.values).tolist():
        place = view.line.place[document]
        assert (view.line.documents[place - GAP : place + GAP + 1] - 1).tolist() == neighbors(index, document)
    assert table.gone == np.count_nonzero(~table.alive.values)
    assert [table.count(name) for name in table.streams] == [len(table.documents_in(name)) for name in table.streams]


def play(url: str, steps: list[tuple[bool, tuple[Any, ...]]]) -> None:
    clock = Steps()
    expires = any(step[0] == "remember for an hour" for _, step in steps)
    with mnemic.open(url, clock=clock) as memory, mnemic.open(url, clock=clock) as other:
        memory.scope("acme").recall("tea")
        for elsewhere, step in steps:
            do(other if elsewhere else memory, clock, step)
            with mnemic.open(url, clock=clock) as fresh:
                for query in QUESTIONS:
                    ours, theirs = told(memory, query), told(fresh, query)
                    # Whether a text is just close enough to be a hit can depend on how a mean is rounded.
                    assert all((ours | theirs)[ref][1] < EDGE for ref in ours.keys() ^ theirs.keys()), step
                    for ref, (version, score, why, *beside) in theirs.items():
                        if ref not in ours:
                            continue
                        assert ours[ref][0] == version
                        if expires:
                            # What has expired counts for word statistics until it is removed.
                            continue
                        assert ours[ref][1] == pytest.approx(score, abs=1e-5)
                        assert ours[ref][2] == pytest.approx(why, abs=1e-5)
                        assert list(ours[ref][3:]) == beside
            if len(index_of(memory).table):
                check_view(index_of(memory))


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have conversations move often, and the line be made anew in between."""
    monkeypatch.setattr(turn_line, "ROOM", 1)
    monkeypatch.setattr(turn_line, "FEW_RUNS", 2)


@settings(max_examples=25, report_multiple_bugs=False, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), STEPS), max_size=12))
def test_each_recall_is_that_of_a_new_memory(steps: list[tuple[bool, tuple[Any, ...]]]) -> None:
    play(f"memory://incremental{next(NUMBERS)}", steps)


@pytest.mark.parametrize("removal", [("clear", "s2"), ("erase",)])
@pytest.mark.parametrize("role", ["user", "system"])
def test_removed_messages_change_no_score(role: str, removal: tuple[str, ...]) -> None:
    monday = ("remember", "k3", "Coffee last Monday. ")
    said = ("say", "s2", [(role, "Bert", "green tea"), (role, "Dora", "We had tea in the garden on 3 May")])
    play(f"memory://incremental{next(NUMBERS)}", [(False, monday), (False, said), (False, removal), (True, monday)])


@pytest.mark.usefixtures("little_room")
def test_each_recall_is_that_of_a_new_memory_with_little_room() -> None:
    test_each_recall_is_that_of_a_new_memory()


@settings(max_examples=8, report_multiple_bugs=False, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), STEPS), max_size=8))
def test_each_recall_is_that_of_a_new_memory_in_a_file(steps: list[tuple[bool, tuple[Any, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(f"sqlite:///{Path(folder) / 'memory.db'}?synchronous=normal", steps)


@pytest.mark.usefixtures("little_room")
def test_conversations_that_take_turns_stay_in_line() -> None:
    with mnemic.open("memory://", embedder=None) as memory:
        chats = [memory.scope("acme", name).session("s") for name in "abcd"]
        for n in range(300):
            chats[n * n % 4 if n % 3 else n % 4].add("user", f"tea {n}")
            memory.scope("acme").recall("tea")
        view = index_of(memory)._view
        check_view(index_of(memory))
        assert view is not None
        assert len(view.line.documents) < 3 * view.turns + 4 * (2 + GAP) + 100


def test_an_append_leaves_the_rest_of_a_view_as_it_is() -> None:
    with mnemic.open("memory://") as memory:
        alice = memory.scope("acme", "alice")
        for n in range(5):
            alice.session(f"s{n}").add_many([Message("user", f"tea {m} in the garden") for m in range(50)])
        memory.scope("acme").recall("tea")
        before = index_of(memory)._view
        alice.session("s2").add("user", "more tea")
        memory.scope("acme").recall("tea")
        assert index_of(memory)._view is before
        alice.session("s2").delete(*alice.session("s2").recent(1))
        memory.scope("acme").recall("tea")
        assert index_of(memory)._view is not before


def test_a_view_that_could_not_be_extended_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with mnemic.open("memory://") as memory:
        chat = memory.scope("acme", "alice").session("s")
        chat.add_many([Message("user", f"tea {n} in the garden") for n in range(9)])
        memory.scope("acme").recall("tea")
        chat.add("user", "the zebra drinks tea")
        with monkeypatch.context() as patched:
            patched.setattr(DocumentView, "_mark", fail)
            with pytest.raises(MemoryError):
                memory.scope("acme").recall("tea")
        assert memory.scope("acme").recall("zebra")[0].text == "the zebra drinks tea"
        check_view(index_of(memory))
