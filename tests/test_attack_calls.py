"""Every public method of the sync API, called with hostile values: it succeeds or raises an error of ours, and ends."""

from __future__ import annotations

import inspect
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

import mnemic
from attack import ROUNDS
from layered import KEY
from mnemic import Hit, MemoryItem, Message, MnemicError, Record, Ref, ScopePath, ToolCall

LONGEST_CALL = 60
"""Seconds after which a call counts as hanging."""
OWNERS: dict[str, Callable[[mnemic.Memory], Any]] = {
    "memory": lambda memory: memory,
    "scope": lambda memory: memory.scope("acme", "alice"),
    "session": lambda memory: memory.scope("acme", "alice").session("monday"),
    "limited session": lambda memory: memory.scope("acme", "alice").session("short", max_messages=2),
    "sessions": lambda memory: memory.scope("acme", "alice").sessions,
    "notes": lambda memory: memory.scope("acme", "alice").notes,
    "memories": lambda memory: memory.scope("acme", "alice").memories,
    "facts": lambda memory: memory.scope("acme", "alice").facts,
}


class Deep(list[Any]):
    """A list that is nested more deeply than it can be printed."""

    def __repr__(self) -> str:
        return "<deep>"


_deep: Any = []
for _ in range(3000):
    _deep = Deep([_deep])
_loop: dict[str, Any] = {}
_loop["self"] = _loop


class Odd:
    """An object that nothing fits."""

    def __repr__(self) -> str:
        return "<odd>"


# ------------------------------------------------------------ values

texts = st.one_of(
    st.sampled_from(
        [
            "", " ", "a", "b", "user", "tool", "monday", "likes tea", "a/b", "..", "*", "%", "' OR 1=1 --", "{}",
            "x" * 201, "x" * 501, "\x00", "\ud800", "\udfff", "\U0010ffff", "\x1b[0m", "e\u0301", "\u202e", "memory",
            "message", "archive", "drop", "keep", "merge", "1", "-1", "NaN", "2026-01-01", "x" * 100_000,
        ]
    ),
    st.text(max_size=8),
)  # fmt: skip
numbers = st.sampled_from(
    [0, 1, 2, 5, -1, 0.5, -0.5, 1e308, math.nan, math.inf, -math.inf, 2**31, 2**53, 2**63, 10**400, True, False]
)
times = st.sampled_from(
    [
        *(datetime(*date, tzinfo=zone) for date in ((1, 1, 1), (9999, 12, 31)) for zone in (None, UTC)),
        datetime(2026, 1, 1, tzinfo=UTC),
    ]
)
spans = st.sampled_from([timedelta(0), timedelta(1), -timedelta(1), timedelta.max, timedelta.min, timedelta(0, 0, 1)])
jsons = st.recursive(
    st.none() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
odds = st.sampled_from(
    [
        None, b"a", b"\xff", [], (), {}, set(), [None], ["a"], [5], {"a": 1}, {1: 2}, {"a": {"b"}}, Odd(), _deep,
        _loop, UNSET, 1j, range(3), Path("a"), ValueError("a"), [Odd()], [_deep], ScopePath("acme"),
        Message("user", "a"),
    ]
)  # fmt: skip
functions = st.sampled_from([lambda *given: None, lambda *given: 5, lambda *given: list(given)])
calls_of_tools = st.builds(ToolCall, st.sampled_from(["c1", "c2"]), st.just("f"), st.just('{"a": 1}'))
messages = st.one_of(
    st.builds(Message, st.sampled_from(["user", "assistant", "system"]), st.sampled_from(["a", "b", None]),
              st.sampled_from(["m1", "m2", "m3"])),
    st.builds(lambda call: Message("assistant", None, tool_calls=[call]), calls_of_tools),
    st.builds(lambda call: Message("tool", "done", tool_call_id=call), st.sampled_from(["c1", "c2", "c3"])),
)  # fmt: skip
references = st.one_of(
    st.sampled_from(
        [
            "m1", "kept", Ref(ScopePath("acme/alice"), "memory", "kept"),
            Ref(ScopePath("acme/alice/monday"), "message", "m1"),
            Ref(ScopePath("other"), "memory", "kept"), MemoryItem("kept", id="kept"),
            Record(scope=ScopePath("acme/alice"), kind="nonsense", key="k"),
            Hit(score=0.5, why={}, record=Record(scope=ScopePath("acme/alice"), kind="memory", key="kept")),
        ]
    ),
    texts,
)  # fmt: skip
paths = st.sampled_from(
    ["saved", "sub/saved", ".", "saved\x00", "x" * 300, "", b"saved", Path("saved"), 5, None, UNSET]
)
stores = st.sampled_from(
    ["memory://", "sqlite:///archive.db", "sqlite:///sub/archive.db", "nonsense", "x://", "", 5, None, True]
)
FITTING = {
    "timedelta": spans,
    "datetime": times,
    "Message": messages | st.lists(messages, max_size=3),
    "MemoryItem": st.lists(references, max_size=3),
    "Reference": references,
    "Callable": functions,
    "Mapping": st.dictionaries(texts, jsons, max_size=2),
    "Sequence": st.lists(texts, max_size=3),
    "Iterable": st.lists(texts, max_size=3),
    "JSON": jsons,
    "Any": jsons | texts,
    "int": numbers,
    "float": numbers,
    "bool": st.booleans(),
    "str": texts,
}
"""What fits a parameter, by the first of these words that its annotation has."""
NEVER_OPEN = {"path": paths, "archive": stores, "archives": st.lists(stores, max_size=2), "embedder": odds | texts}
"""What parameters take that name files, stores and models: nothing outside the test's own folder."""
FIELDS = [*inspect.signature(Message).parameters]


@cache
def fitting(name: str, annotation: str) -> st.SearchStrategy[Any]:
    """Return values for a parameter: mostly some of its type, with anything else among them."""
    if name in NEVER_OPEN:
        return NEVER_OPEN[name]
    own = next((values for word, values in FITTING.items() if word in annotation), texts)
    return st.one_of(own, own, own, odds, jsons)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str, list[Any], dict[str, Any]]:
    """Return the name of an object, of a method of it, and arguments that its signature takes."""
    owner = draw(st.sampled_from(sorted(OWNERS)))
    method = draw(st.sampled_from(METHODS[owner]))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in list(inspect.signature(getattr(TYPES[owner], method)).parameters.values())[1:]:
        values = fitting(parameter.name, str(parameter.annotation))
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += draw(st.lists(values, max_size=3))
        elif parameter.kind is parameter.VAR_KEYWORD:
            given = st.dictionaries(
                st.sampled_from([*FIELDS[2:], "nonsense"]), jsons | texts | odds | times, max_size=2
            )
            named |= draw(given)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(draw(values))
        elif parameter.default is parameter.empty or draw(st.integers(0, 3)) == 0:
            named[parameter.name] = draw(values)
    return owner, method, positional, named


with mnemic.open("memory://", embedder=None) as _memory:
    TYPES = {name: type(make(_memory)) for name, make in OWNERS.items()}
METHODS = {
    owner: sorted(
        name for name, member in vars(kind).items() if name[0] != "_" and callable(member) and name != "close"
    )
    for owner, kind in TYPES.items()
}


# ------------------------------------------------------------ calls


def perform(memory: mnemic.Memory, owner: str, method: str, positional: list[Any], named: dict[str, Any]) -> None:
    """Make a call; raises AssertionError if it raises what is not an error of ours, or does not end."""
    with ending():
        try:
            answer = getattr(OWNERS[owner](memory), method)(*positional, **named)
            if isinstance(answer, AbstractContextManager) and not isinstance(answer, mnemic.Session):
                with answer:
                    pass
            said = repr(answer)
        except MnemicError as error:
            said = str(error)
        except Exception as error:
            given = f"{owner}.{method}(*{positional!r:.300}, **{named!r:.300})"
            raise AssertionError(f"{given} lets {type(error).__name__} escape: {error}") from error
        assert said, "the error says nothing"


@contextmanager
def ending() -> Iterator[None]:
    """Raise AssertionError in what takes too long."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it did not end within {LONGEST_CALL} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_CALL)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fill(memory: mnemic.Memory) -> None:
    alice = memory.scope("acme", "alice")
    alice.remember("kept", id="kept")
    alice.session("monday").add(Message("user", "hello", "m1"))
    alice.notes.write("a", {"b": 1})
    alice.facts.add("a", "likes", "b")


@pytest.mark.parametrize("layers", ["plain", "sqlite", "layered"])
def test_hostile_values_get_an_answer_or_an_error_of_ours(
    layers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"encryption_key": KEY, "audit": True} if layers == "layered" else {}
    count = 0

    @settings(
        max_examples=30 * ROUNDS,
        derandomize=ROUNDS == 1,  # a soak tries others each time
        deadline=None,
        phases=[Phase.generate],  # the error names the call
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(calls(), min_size=15, max_size=25))
    def play(several: list[tuple[str, str, list[Any], dict[str, Any]]]) -> None:
        nonlocal count
        count += 1
        url = f"sqlite:///fuzzed-{count}.db?synchronous=normal" if layers == "sqlite" else "memory://"
        with mnemic.open(url, embedder=None, **options) as memory:
            fill(memory)
            for call in several:
                perform(memory, *call)
            kept = memory.scope("still", "works").session("s")
            kept.add("user", "kept")
            assert [message.text for message in kept.messages()] == ["kept"]

    play()


def test_every_method_is_called() -> None:
    """A part of a scope that is added later is attacked, too."""
    parts = {name for name, member in vars(mnemic.Scope).items() if isinstance(member, property)} - {"path", "now"}
    assert parts <= set(OWNERS)
    assert all(len(METHODS[owner]) >= 3 for owner in OWNERS)
