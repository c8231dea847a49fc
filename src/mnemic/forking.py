"""Forks of the process: what must be quiet before one, and begins anew in the child."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

OURS = "mnemic"
"""How the names of our threads begin: they work for calls that are under way already."""
FORK_PATIENCE = 10.0
"""How many seconds a fork waits for the calls that other threads have under way."""


class Forking(Protocol):
    """Something that a fork of the process concerns."""

    def before_fork(self) -> None:
        """Let go of what must not be held by two processes."""
        ...

    def after_fork(self) -> None:
        """Begin anew in the child, whose other threads are gone and whose locks may be held by them."""
        ...


class UnderWay:
    """Knows the calls that are under way: a fork waits for them, and lets no other begin meanwhile.

    So a child never has half of a call, nor a lock, of a thread that it does not have.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []
        self._forking = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        # Noted before it is looked: so either this call is seen, or the fork.
        self._inside.append(me)
        while self._forking and self._inside.count(me) == 1 and not _is_ours():
            self._inside.remove(me)
            time.sleep(0.001)
            self._inside.append(me)

    def __exit__(self, *error: object) -> None:
        self._inside.remove(threading.get_ident())

    def stop(self) -> None:
        """Wait until the calls of other threads have ended, for FORK_PATIENCE seconds at the most."""
        me = threading.get_ident()
        until = time.monotonic() + FORK_PATIENCE
        self._forking = True
        while any(thread != me for thread in self._inside) and time.monotonic() < until:
            time.sleep(0.0005)

    def go_on(self, *, child: bool) -> None:
        """Let calls begin again; in a child, those of other threads are gone."""
        if child:
            me = threading.get_ident()
            self._inside = [thread for thread in self._inside if thread == me]
        self._forking = False


under_way = UnderWay()
"""Calls during which the process is not to be forked."""

_forking: WeakSet[Forking] = WeakSet()
_forking_lock = threading.Lock()


def _is_ours() -> bool:
    return threading.current_thread().name.startswith(OURS)


def mind_forks(something: Forking) -> None:
    """Let something know of forks, for as long as it lives."""
    with _forking_lock:
        _forking.add(something)


_inherited: list[object] = []


def leave_alone(thing: object) -> None:
    """Keep, in a child, a thing of the parent's that must never be closed here: the parent still uses it."""
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
    os.register_at_fork(
        before=_before_fork, after_in_child=_after_fork, after_in_parent=_after_fork_in_parent
    )
