"""The sync API drives the async one, in place, and both behave the same."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic import AsyncMemory, Message, memory_access
from mnemic.event_loop import Inline, Portal, call, step
from mnemic.memory_access import MemoryAccess
from mnemic.store.query import Outcome, Write
from mnemic.store.registry import Backend, StoreURL
from servers.stores import empty_store

WRAPPED = ["Memory", "Scope", "Session", "Notes", "Facts"]


def test_the_async_api_does_what_the_sync_one_does(file_url: str) -> None:
    async def talk() -> list[str | None]:
        async with mnemic.open_async(file_url) as memory:
            alice = memory.scope("alice")
            async with alice.session("s", retention="persistent", max_messages=4) as chat:
                async with chat.run():
                    await chat.add("user", "I like tea")
                    await chat.add_many([Message("assistant", "noted")])
            await alice.notes.write("k", {"a": 1})
            await alice.facts.add("alice", "likes", "tea")
            await alice.remember("tea with milk")
            assert [entry.key for entry in await alice.notes.list()] == ["k"]
            return [hit.record.text for hit in await alice.recall("tea", k=9)]

    found = asyncio.run(talk())
    with mnemic.open(file_url) as memory:
        assert [hit.record.text for hit in memory.scope("alice").recall("tea", k=9)] == found
    assert {"I like tea", "alice likes tea", "tea with milk"} <= set(map(str, found[:4]))


def test_opening_may_be_awaited(file_url: str) -> None:
    async def opened() -> AsyncMemory:
        memory = await mnemic.open_async(file_url)
        await memory.scope("a").remember("x")
        await memory.close()
        return memory

    assert asyncio.run(opened()).url == file_url


@pytest.mark.parametrize("scheme", ["memory", "sqlite", "valkey", "postgresql", "dynamodb"])
def test_a_sync_call_on_a_running_loop_simply_works(scheme: str, tmp_path: Path) -> None:
    """As in the cell of a notebook: opening, writing, recalling, closing."""

    async def cell(url: str) -> None:
        with mnemic.open(url) as memory:
            alice = memory.scope("alice")
            alice.remember("tea with milk")
            assert [hit.record.text for hit in alice.recall("tea")] == ["tea with milk"]
            with alice.session("s") as chat:
                chat.add("user", "hello")
        assert asyncio.get_running_loop().is_running()
        await asyncio.sleep(0)

    with empty_store(scheme, tmp_path) as url:
        asyncio.run(cell(url))


def test_in_place_on_a_running_loop_a_users_coroutine_has_a_loop_of_its_own() -> None:
    async def ask(question: str) -> str:
        await asyncio.sleep(0.001)
        return f"{question}!"

    async def cell() -> str:
        answer: str = Inline().run(call(ask, "why"))
        await asyncio.sleep(0)
        return answer

    assert asyncio.run(cell()) == "why!"


def test_a_sync_call_makes_no_thread(file_url: str) -> None:
    before = set(threading.enumerate())
    with mnemic.open(file_url) as memory:
        space = memory.scope("a")
        space.remember("x")
        space.recall("x")
        space.session("s").add("user", "hi")
        assert set(threading.enumerate()) <= before


def test_async_calls_do_not_block_the_loop(file_url: str) -> None:
    """While another process holds the write lock, the loop must go on."""

    async def main() -> int:
        import sqlite3

        async with mnemic.open_async(file_url) as memory:
            space = memory.scope("a")
            await space.remember("first")
            holder = sqlite3.connect(StoreURL.parse(file_url).split.path[1:], isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            write = asyncio.create_task(space.remember("second"))
            ticks = 0
            for _ in range(10):
                await asyncio.sleep(0.01)
                ticks += 1
                assert len(await space.memories.list()) == 1
            assert not write.done()
            holder.execute("ROLLBACK")
            holder.close()
            await write
            assert len(await space.memories.list()) == 2
            return ticks

    assert asyncio.run(main()) == 10


def test_a_cancelled_caller_does_not_hurt_the_others(file_url: str) -> None:
    async def main() -> None:
        async with mnemic.open_async(file_url) as memory:
            space = memory.scope("a")
            tasks = [asyncio.create_task(space.remember(f"fact {n}")) for n in range(30)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            kept = {record.text for record in await space.memories.list()}
            done = {f"fact {n}" for n, result in enumerate(results) if not isinstance(result, asyncio.CancelledError)}
            assert done <= kept

    asyncio.run(main())


def test_concurrent_writers_share_commits(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty writers who wait for one commit take far fewer transactions than fifty."""
    from mnemic.backends.sqlite import store as module

    begun = arrived = 0
    transact, write = module.SqliteStore._transact, module.CommitQueue.write
    all_there = threading.Event()

    def counted(self: module.SqliteStore, *arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        assert all_there.wait(60)
        return transact(self, *arguments)

    async def arriving(self: module.CommitQueue, given: Write) -> list[Outcome]:
        nonlocal arrived
        arrived += 1
        if arrived == 50:
            all_there.set()
        return await write(self, given)

    async def main() -> None:
        async with mnemic.open_async(file_url) as memory:
            space = memory.scope("a")
            await space.remember("the first, with which the store learns its embedder")
            monkeypatch.setattr(module.SqliteStore, "_transact", counted)
            monkeypatch.setattr(module.CommitQueue, "write", arriving)
            await asyncio.gather(*(space.remember(f"fact {n}") for n in range(50)))
            assert len(await space.memories.list()) == 51

    asyncio.run(main())
    assert begun <= 3


@pytest.mark.parametrize("name", WRAPPED)
def test_the_sync_classes_have_the_methods_of_the_async_ones(name: str) -> None:
    sync, wrapped = getattr(mnemic, name), getattr(mnemic, f"Async{name}")
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
    for method, value in inspect.getmembers(wrapped, inspect.isfunction):
        if method.startswith("_") and method not in renamed:
            continue
        own = getattr(sync, renamed.get(method, method))
        assert not inspect.iscoroutinefunction(own)
        assert list(inspect.signature(own).parameters) == list(inspect.signature(value).parameters), method
        if method not in renamed:
            assert own.__doc__, method


def test_the_sync_api_is_what_the_generator_writes() -> None:
    script = Path(__file__).parent.parent / "tools" / "generate_sync.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)


def test_a_portal_runs_what_waits() -> None:
    async def work() -> str:
        await asyncio.sleep(0.01)
        return threading.current_thread().name

    before = set(threading.enumerate())
    portal = Portal()
    assert portal.run(work()) == "mnemic-loop"

    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        portal.run(fails())

    async def nested() -> str:
        return portal.run(work())

    assert asyncio.run(nested()) == "mnemic-loop"
    with pytest.raises(mnemic.EventLoopError, match=r"await .*work\(\)"):
        portal.run(nested())
    portal.close()
    portal.close()
    with pytest.raises(mnemic.ClosedError):
        portal.run(work())
    assert set(threading.enumerate()) <= before


def test_in_place_nothing_may_wait() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    with pytest.raises(mnemic.EventLoopError, match="work"):
        Inline().run(work())


def test_a_store_that_waits_is_driven_by_a_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemic.backends.memory import MemoryStore

    class Slow(MemoryStore):
        async def write(self, write: Write) -> list[Outcome]:
            await asyncio.sleep(0.001)
            return await super().write(write)

    async def opened(_: StoreURL) -> Slow:
        return Slow()

    def load(_: object) -> Backend:
        return Backend(open=opened)

    entry = importlib.metadata.EntryPoint("slow", "x:y", "mnemic.backends")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", load)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda **asked: importlib.metadata.EntryPoints([entry]).select(**asked)
    )
    before = set(threading.enumerate())
    with mnemic.open("slow://") as memory:
        memory.scope("a").remember("tea")
        assert [hit.record.text for hit in memory.scope("a").recall("tea")] == ["tea"]
        # One for the loop, and one for what would hold the loop up.
        assert len(set(threading.enumerate()) - before) <= 2
    assert set(threading.enumerate()) <= before


def test_a_forked_child_embeds_and_recalls(tmp_path: Path) -> None:
    """What a model's threads were doing in the parent is no concern of the child's."""
    with mnemic.open(f"sqlite:///{tmp_path / 'a.db'}") as memory:
        space = memory.scope("a")
        space.remember_many([f"tea number {n}" for n in range(500)])
        assert space.recall("tea")
        child = os.fork()
        if child == 0:
            try:
                space.remember_many([f"coffee number {n}" for n in range(500)])
                os._exit(0 if "coffee" in str(space.recall("coffee")[0].record.text) else 2)
            except BaseException:
                os._exit(1)
        until = time.monotonic() + 120
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.05)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child still waits")
        assert os.waitstatus_to_exitcode(ended[1]) == 0
        assert "coffee" in str(space.recall("coffee")[0].record.text)


def test_parent_and_child_of_a_fork_lose_nothing(tmp_path: Path) -> None:
    """Whoever closes first, what the other one writes is there."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with mnemic.open(url) as memory:
        space = memory.scope("a")
        space.remember("before")
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                space.remember("child")
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                space.remember("child after the parent closed")
                os._exit(0)
            except BaseException:
                os._exit(1)
        os.read(ready[0], 1)
        space.remember("parent")
    with mnemic.open(url) as memory:
        memory.scope("a").remember("parent opened again")
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for pipe in (*ready, *go):
        os.close(pipe)
    with mnemic.open(url) as memory:
        assert sorted(str(record.text) for record in memory.scope("a").memories.list()) == [
            "before", "child", "child after the parent closed", "parent", "parent opened again",
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["valkey", "dynamodb"])
def test_a_memory_dropped_without_close_leaves_no_thread_and_no_handle(name: str, tmp_path: Path) -> None:
    def use(url: str) -> None:
        mnemic.open(url).scope("a").remember("tea")

    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    others = set(threading.enumerate())  # of tests before this one
    with empty_store(name, tmp_path) as url:
        use(url)  # what a process needs only once is there now
        settle(others)
        before = held()
        for _ in range(3):
            use(url)
        settle(others)
        eventually(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def settle(others: Collection[threading.Thread] = ()) -> None:
    """Collect garbage until the threads of dropped memories have ended, but for the others."""

    def ended() -> bool:
        gc.collect()
        ours = (thread for thread in threading.enumerate() if thread not in others)
        return not any(thread.name.startswith("mnemic") for thread in ours)

    eventually(ended)


def test_a_function_that_raises_stop_iteration_does_not_hang() -> None:
    empty: Iterator[str] = iter(())

    async def run() -> None:
        await asyncio.wait_for(call(lambda: next(empty)), 60)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(run())
    with pytest.raises(RuntimeError, match="StopIteration"):
        step(call(lambda: next(empty)))


def test_a_call_that_was_cancelled_before_its_thread_began_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Callable[[], Any]] = []

    async def never(work: Callable[[], Any]) -> None:
        begun.append(work)
        await asyncio.Event().wait()

    async def main() -> None:
        access = MemoryAccess(mnemic.open("memory://").scope("a"))
        monkeypatch.setattr(memory_access, "off_loop", never)
        task = asyncio.create_task(access.call(lambda scope: scope.remember("Too late.")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(CancelledError):
            begun[0]()
        assert await access.scope.memories.list() == []

    asyncio.run(main())
