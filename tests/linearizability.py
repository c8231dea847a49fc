"""Whether a recorded history of concurrent calls could have happened one call at a time.

The search is that of Wing and Gong with Lowe's memoization: of the calls that are not ordered yet, one that began
before any of the others ended is tried next, if the model allows its answer; and no set of ordered calls is tried
twice with the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
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


Model = Callable[[Any, Call], Iterable[Hashable]]
"""Takes a state and a call; returns the states that may follow, none if the call cannot have answered so."""


def is_linearizable(history: Sequence[Call], model: Model, state: Hashable = ()) -> bool:
    """Return whether the calls, each done at one moment between its begin and its end, explain all answers."""
    calls = sorted(history, key=lambda call: call.began)
    answered = sum(1 << n for n, call in enumerate(calls) if not call.unanswered)
    tried: set[tuple[int, Hashable]] = set()
    todo: list[tuple[int, Hashable]] = [(0, state)]
    while todo:
        done, state = todo.pop()
        if done & answered == answered:
            return True
        for n in reversed(_next(calls, done)):  # that which ended first is tried first
            for after in model(state, calls[n]):
                step = (done | 1 << n, after)
                if step not in tried:
                    tried.add(step)
                    todo.append(step)
    return False


def _next(calls: Sequence[Call], done: int) -> list[int]:
    """Return the calls that may come next, by their ends: those that began before any that is left has ended."""
    found: list[int] = []
    first_end = math.inf
    for n, call in enumerate(calls):
        if done >> n & 1:
            continue
        if call.began > first_end:
            break
        found.append(n)
        first_end = min(first_end, call.ended)
    return sorted((n for n in found if calls[n].began <= first_end), key=lambda n: calls[n].ended)


def log(state: Any, call: Call) -> Iterable[Hashable]:
    """Model a list that is appended to, `("append", value)`, and read whole, `("read",)`.

    A `("failover",)` may lose the newest entries, as one to a replica does that had not received them yet.
    """
    match call.asked:
        case ("append", value):
            return ((*state, value),)
        case ("failover",):
            return [state[:length] for length in range(len(state) + 1)]
        case _:
            return (state,) if call.unanswered or tuple(call.answer) == state else ()


def register(state: Any, call: Call) -> Iterable[Hashable]:
    """Model a value with a version: `("read",)` answers both, `("set", value, if_version)` the version, or None.

    The state is all values that it had, each with its version. Versions are the store's, and rise with each change. A
    `("failover",)` may lose the newest values.
    """
    if call.asked == ("failover",):
        return [state[:length] for length in range(len(state) + 1)]
    value, version = state[-1] if state else (None, 0)
    if call.asked[0] == "set" and call.unanswered:
        # Which version it got is not known; the next answer shows it.
        return ((*state, (call.asked[1], None)),) if version in (None, call.asked[2]) else ()
    match call.asked:
        case ("set", _, expected) if call.answer is None:
            return (state,) if version is None or expected != version else ()
        case ("set", new, expected):
            known = _learned(state, value, expected)
            return ((*known, (new, call.answer)),) if known is not None and expected < call.answer else ()
        case _:
            known = _learned(state, *call.answer)
            return () if known is None else (known,)


def _learned(state: Any, value: Any, version: int) -> Any:
    """Return the state, in which the newest value has this version; None if it cannot have."""
    if not state or state[-1][1] is not None:
        return state if (state[-1] if state else (None, 0)) == (value, version) else None
    before = max((known for _, known in state[:-1] if known is not None), default=0)
    return (*state[:-1], (value, version)) if state[-1][0] == value and version > before else None
