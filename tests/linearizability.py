"""Whether a recorded history of concurrent calls could have happened one call at a time.

The search is that of Wing and Gong with Lowe's memoization: of the calls that are not ordered yet, one that began
before any of the others ended is tried next, if the model allows its answer; and no set of ordered calls is tried
twice with the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """One call of a history: when it began and ended, what was asked and what was answered.

    One whose answer was lost may have been done at any time after it began, or never: it ends at `math.inf`.
    """

    began: float
    ended: float
    asked: Any
    answer: Any = None

    @property
    def unanswered(self) -> bool:
        """Whether nobody knows if it was done."""
        return self.ended == math.inf


Model = Callable[[Any, Call], tuple[bool, Hashable]]
"""Takes a state and a call; returns whether the call may have answered so in that state, and the state after it."""


def is_linearizable(history: Sequence[Call], model: Model, state: Hashable) -> bool:
    """Return whether the calls, each done at one moment between its begin and its end, explain all answers."""
    calls = sorted(history, key=lambda call: call.began)
    answered = sum(1 << n for n, call in enumerate(calls) if not call.unanswered)
    tried: set[tuple[int, Hashable]] = set()
    todo: list[tuple[int, Hashable]] = [(0, state)]
    while todo:
        done, state = todo.pop()
        if done & answered == answered:
            return True
        for n in _next(calls, done):
            allowed, after = model(state, calls[n])
            step = (done | 1 << n, after)
            if allowed and step not in tried:
                tried.add(step)
                todo.append(step)
    return False


def _next(calls: Sequence[Call], done: int) -> list[int]:
    """Return the calls that may come next: those that began before any that is left has ended."""
    found: list[int] = []
    first_end = math.inf
    for n, call in enumerate(calls):
        if done >> n & 1:
            continue
        if call.began > first_end:
            break
        found.append(n)
        first_end = min(first_end, call.ended)
    return [n for n in found if calls[n].began <= first_end]


def log(state: Any, call: Call) -> tuple[bool, Hashable]:
    """Model a list that is appended to, `("append", value)`, and read whole, `("read",)`."""
    match call.asked:
        case ("append", value):
            return True, (*state, value)
        case _:
            return call.unanswered or tuple(call.answer) == state, state


def register(state: Any, call: Call) -> tuple[bool, Hashable]:
    """Model a value with a version: `("read",)` answers both, `("set", value, if_version)` the version, or None.

    The state is the value and its version. Versions are the store's, and rise with each change.
    """
    _, version = state
    match call.asked:
        case ("set", new, expected):
            if call.answer is None:
                return expected != version, state
            return expected == version < call.answer, (new, call.answer)
        case _:
            return tuple(call.answer) == state, state
