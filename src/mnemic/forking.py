"""Fork safety: running calls finish before a fork, and the child starts with fresh state."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

OURS = "mnemic"
"""Prefix of Mnemic's thread names: these threads serve calls that are already running."""
FORK_PATIENCE = 10.0
"""How many seconds a fork waits for calls in other threads."""


class Forking(Protocol):
    """An object that must react to a fork."""

    def before_fork(self) -> None:
        """Release what two processes must not share."""
        ...

    def after_fork(self) -> None:
        """Reset in the child, where other threads are gone and may have left locks held."""
        ...


class UnderWay:
    """Tracks running calls: a fork waits for them and blocks new ones meanwhile.

    So a child never inherits half of a call, or a lock, of a thread that it does not have.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []
        self._forking = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        # Registered before checking, so that either the fork sees this call or this call sees the fork.
        self._inside.append(me)
        while self._forking and self._inside.count(me) == 1 and not _is_ours():
            self._inside.remove(me)
            time.sleep(0.001)
            self._inside.append(me)

    def __exit__(self, *error: object) -> None:
        self._inside.remove(threading.get_ident())

    def stop(self) -> None:
        """Wait until calls in other threads have finished, at most FORK_PATIENCE seconds."""
        me = threading.get_ident()
        until = time.monotonic() + FORK_PATIENCE
        self._forking = True
        while any(thread != me for thread in self._inside) and time.monotonic() < until:
            time.sleep(0.0005)

    def go_on(self, *, child: bool) -> None:
        """Let calls start again; in a child, forget those of other threads."""
        if child:
            me = threading.get_ident()
            self._inside = [thread for thread in self._inside if thread == me]
        self._forking = False


under_way: UnderWay = UnderWay()
"""Calls during which the process must not fork."""

_forking: WeakSet[Forking] = WeakSet()
_forking_lock = threading.Lock()


def _is_ours() -> bool:
    return threading.current_thread().name.startswith(OURS)


def mind_forks(something: Forking) -> None:
    """Register an object for fork callbacks while it is alive."""
    with _forking_lock:
        _forking.add(something)


_inherited: list[object] = []


def leave_alone(thing: object) -> None:
    """Keep a reference, in a child, to an object of the parent that must not be closed here."""
    _inherited.append(thing)


def _before_fork() -> None:
    under_way.stop()
    with _forking_lock:
        known = list(_forking)
    for something in known:
        something.before_fork()


def _after_fork() -> None:
    global _forking_lock
    _forking_lock = threading.Lock()
    for something in list(_forking):
        something.after_fork()
    under_way.go_on(child=True)


def _after_fork_in_parent() -> None:
    under_way.go_on(child=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork, after_in_parent=_after_fork_in_parent)
