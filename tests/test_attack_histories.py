"""Histories of concurrent calls by several processes and threads, which must be linearizable."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import history_script
from attack import seeds
from linearizability import Call, Model, is_linearizable, log, register
from servers.stores import empty_store

PROCESSES = 2
CALLS = {"sqlite": 150, "postgresql": 100, "valkey": 100, "dynamodb": 25, "s3": 15, "http": 100}
"""How many calls each thread makes."""


def record(url: str, seed: int, calls: int, at_half: Callable[[], object] = bool) -> dict[str, list[Call]]:
    """Return the history of each thing that the processes wrote and read; `at_half` is called in the middle."""
    running = [
        subprocess.Popen(
            [sys.executable, history_script.__file__, url, f"{seed}.{n}", str(calls)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    for begin in (bool, at_half):
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        begin()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
    found: dict[str, list[Call]] = {}
    for process in running:
        told, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        for call in json.loads(told):
            found.setdefault(call["thing"], []).append(
                Call(call["began"], call["ended"] or math.inf, tuple(call["asked"]), call["answer"])
            )
    return found


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("name", CALLS)
def test_what_several_do_at_once_could_have_been_done_in_turn(name: str, seed: int, tmp_path: Path) -> None:
    with empty_store(name, tmp_path) as url:
        found = record(url, seed, CALLS[name])
    assert set(found) == {*history_script.SESSIONS, *history_script.NOTES}
    for session in history_script.SESSIONS:
        assert is_linearizable(found[session], log)
    for note in history_script.NOTES:
        assert is_linearizable(found[note], register)


# ------------------------------------------------------------ the checker itself


def at(began: float, ended: float, *asked: Any, answer: Any = None) -> Call:
    return Call(began, ended, asked, answer)


SET_A = at(0, 1, "set", "a", 0, answer=1)
READ_A = at(1, 2, "read", answer=["a", 1])


@pytest.mark.parametrize(
    ("model", "good", "history"),
    [
        (log, True, [at(0, 1, "append", 1), at(2, 3, "read", answer=[1])]),
        (log, False, [at(0, 1, "append", 1), at(2, 3, "read", answer=[])]),
        (log, False, [at(0, 1, "append", 1), at(2, 3, "read", answer=[1, 1])]),
        (log, True, [at(0, 3, "append", 1), at(1, 2, "read", answer=[]), at(1, 2, "read", answer=[1])]),
        (log, False, [at(0, 5, "append", 1), at(1, 2, "read", answer=[1]), at(3, 4, "read", answer=[])]),
        (log, False, [at(0, 1, "append", 1), at(2, 3, "append", 2), at(4, 5, "read", answer=[2, 1])]),
        (log, True, [at(0, 3, "append", 1), at(1, 2, "append", 2), at(4, 5, "read", answer=[2, 1])]),
        (log, True, [at(0, math.inf, "append", 1), at(1, 2, "read", answer=[])]),
        (log, True, [at(0, math.inf, "append", 1), at(1, 2, "read", answer=[1])]),
        (log, False, [at(0, math.inf, "append", 1), at(1, 2, "read", answer=[1]), at(3, 4, "read", answer=[])]),
        (register, True, [at(0, 1, "set", "a", 0, answer=1), at(2, 3, "read", answer=["a", 1])]),
        (register, False, [at(0, 1, "set", "a", 0, answer=1), at(2, 3, "set", "b", 0, answer=2)]),
        (register, True, [at(0, 1, "set", "a", 0, answer=1), at(2, 3, "set", "b", 0)]),
        (register, False, [at(0, 1, "set", "b", 0)]),
        (register, False, [at(0, 3, "set", "a", 0, answer=1), at(0, 3, "set", "b", 0, answer=1)]),
        (register, False, [at(0, 1, "set", "a", 0, answer=4), at(2, 3, "set", "b", 4, answer=3)]),
        (register, False, [at(0, 1, "set", "a", 0, answer=1), at(2, 3, "read", answer=["a", 2])]),
        # a stale read, a lost update, and a compare-and-set that two have won
        (register, False, [SET_A, at(2, 3, "set", "b", 1, answer=2), at(4, 5, "read", answer=["a", 1])]),
        (register, False, [SET_A, at(2, 5, "set", "b", 1, answer=2), at(6, 7, "set", "c", 1, answer=3)]),
        (register, False, [SET_A, at(2, 5, "set", "b", 1, answer=2), at(2, 5, "set", "c", 1, answer=3)]),
        # answers that were lost: done later, done never, done and replaced, and not twice
        (register, True, [at(0, math.inf, "set", "a", 0), at(1, 2, "read", answer=[None, 0])]),
        (register, True, [at(0, math.inf, "set", "a", 0), at(1, 2, "read", answer=["a", 4])]),
        (register, True, [at(0, math.inf, "set", "a", 0), at(1, 2, "set", "b", 4, answer=5)]),
        (register, False, [at(0, math.inf, "set", "a", 0), READ_A, at(3, 4, "read", answer=[None, 0])]),
        (register, False, [at(0, math.inf, "set", "a", 0), READ_A, at(3, 4, "read", answer=["a", 2])]),
        (log, False, [at(0, math.inf, "append", 1), at(1, 2, "read", answer=[1, 1])]),
        # a failover loses the newest only, and what was lost stays lost
        (log, True, [at(0, 1, "append", 1), at(2, 3, "failover"), at(4, 5, "read", answer=[])]),
        (
            log,
            False,
            [at(0, 1, "append", 1), at(2, 3, "append", 2), at(4, 5, "failover"), at(6, 7, "read", answer=[2])],
        ),
        (
            log,
            False,
            [at(0, 1, "append", 1), at(2, 3, "failover"), at(4, 5, "read", answer=[]), at(6, 7, "read", answer=[1])],
        ),
        (register, True, [SET_A, at(2, 3, "failover"), at(4, 5, "read", answer=[None, 0])]),
        (register, False, [SET_A, at(2, 3, "failover"), at(4, 5, "read", answer=["a", 2])]),
    ],
)
def test_the_checker_tells_good_histories_from_bad(model: Model, good: bool, history: list[Call]) -> None:
    assert is_linearizable(history, model) is good


spans = st.tuples(st.integers(0, 6), st.integers(1, 4)).map(lambda pair: (pair[0], sum(pair)))
histories = st.lists(
    st.one_of(
        st.builds(lambda span, value: at(*span, "append", value), spans, st.integers(1, 3)),
        st.builds(lambda span, seen: at(*span, "read", answer=seen), spans, st.lists(st.integers(1, 3), max_size=3)),
    ),
    max_size=5,
)


@given(histories)
def test_the_checker_agrees_with_trying_every_order(history: list[Call]) -> None:
    def explains(order: tuple[Call, ...]) -> bool:
        state: Any = ()
        for n, call in enumerate(order):
            states = list(log(state, call))
            if not states or any(later.ended < call.began for later in order[n + 1 :]):
                return False
            (state,) = states
        return True

    assert is_linearizable(history, log) is any(map(explains, itertools.permutations(history)))
