"""Forked children, as web servers make them: a memory that was opened before works in parent and children."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import mnemic
from mnemic.event_loop import running_calls
from servers.stores import REMOTE, empty_store

PATIENCE = 120.0


def in_child(work: Callable[[], object]) -> int:
    """Fork, do `work` in the child, and return the child's pid; its exit status tells how that went."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:
        os.write(2, f"the child failed: {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def await_children(children: list[int]) -> None:
    """Fail unless every child ends well, in time."""
    until = time.monotonic() + PATIENCE
    left = set(children)
    codes: list[int] = []
    while left and time.monotonic() < until:
        for child in list(left):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                left.discard(child)
                codes.append(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not left, "a child still waits"
    assert not any(codes)


@pytest.mark.parametrize("name", ["memory", "sqlite", *REMOTE, "agentcore"])
def test_children_forked_while_threads_write_read_and_write(name: str, tmp_path: Path) -> None:
    """A server that loads its application first, then forks workers, while a thread of its own writes."""
    with empty_store(name, tmp_path) as url, mnemic.open(url) as memory:
        acme = memory.scope("acme")
        acme.session("before").add("user", "hello")
        stop = threading.Event()
        written = [0, 0]

        def write(thread: int) -> None:
            while not stop.is_set():
                acme.session(f"parent-{thread}").add("user", f"{written[thread]}")
                written[thread] += 1

        def serve(number: int) -> None:
            chat = acme.session(f"child-{number}")
            for n in range(3):
                chat.add("user", f"{number}-{n}")
            assert [message.text for message in chat.messages()] == [f"{number}-{n}" for n in range(3)]
            assert [message.text for message in acme.session("before").messages()] == ["hello"]

        threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            children = []
            for number in range(4):
                time.sleep(0.02)
                children.append(in_child(partial(serve, number)))
            await_children(children)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for thread_number in range(2):
            texts = [message.text for message in acme.session(f"parent-{thread_number}").messages()]
            assert texts == [str(n) for n in range(written[thread_number])]
        for number in range(4):
            found = acme.session(f"child-{number}").messages()
            assert len(found) == (0 if name == "memory" else 3)


@pytest.mark.parametrize("name", [*REMOTE, "agentcore"])
def test_a_child_that_closes_leaves_the_parents_connections_alone(name: str, tmp_path: Path) -> None:
    with empty_store(name, tmp_path) as url, mnemic.open(url) as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "first")
        await_children([in_child(memory.close)])
        chat.add("user", "second")

        def write_and_close() -> None:
            chat.add("user", "child")
            memory.close()

        await_children([in_child(write_and_close)])
        assert [message.text for message in chat.messages()] == ["first", "second", "child"]


def test_a_fork_waits_for_calls_under_way_and_holds_others_back() -> None:
    events: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def under() -> None:
        with running_calls:
            inside.set()
            leave.wait()
            with running_calls:  # what a call under way begins itself is part of it
                events.append("first call ends")

    def later() -> None:
        with running_calls:
            events.append("second call")

    first = threading.Thread(target=under)
    first.start()
    inside.wait()
    forking = threading.Thread(target=running_calls.drain)
    forking.start()
    while not running_calls._forking:
        time.sleep(0.001)
    second = threading.Thread(target=later)
    second.start()
    assert forking.is_alive()
    leave.set()
    forking.join(PATIENCE)
    first.join(PATIENCE)
    events.append("forked")
    running_calls.resume(child=False)
    second.join(PATIENCE)
    assert events == ["first call ends", "forked", "second call"]
