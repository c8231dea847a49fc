"""Back-ends across a network when it fails: deadlines, close, event loops, and only errors of ours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mnemic
from faulty_proxy import Cut, FaultyProxy, Garbage, Mode, Pass, Slow, Stall, proxy_for
from mnemic.errors import ClosedError, EventLoopError, StoreError, StoreUnavailableError
from servers.stores import REMOTE, empty_store

ALL = [*REMOTE, "agentcore"]


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxied(name: str, tmp_path: Path) -> Iterator[tuple[FaultyProxy, str]]:
    """Lend a proxy in front of a server, and the URL of an empty store behind it."""
    with empty_store(name, tmp_path) as url, proxy_for(url) as proxy:
        mnemic.open(with_options(url, "timeout=60")).close()  # making tables may take longer than a test allows
        yield proxy, proxy.url(url)


def with_options(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{options}"


def calls_of(memory: mnemic.Memory) -> list[Callable[[], object]]:
    """Return a write, a write with an id, and two reads."""
    acme = memory.scope("acme")
    chat = acme.session("s")
    return [
        lambda: chat.add("user", "during"),
        lambda: chat.add("user", "during", once="one"),
        lambda: chat.messages(),
        lambda: acme.sessions.list(),
    ]


@pytest.mark.parametrize("requests", [False, True], ids=["answers", "requests"])
def test_every_call_ends_within_the_deadline_when_the_server_stalls(
    proxied: tuple[FaultyProxy, str], name: str, requests: bool
) -> None:
    proxy, url = proxied
    with mnemic.open(with_options(url, "timeout=2")) as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "before")
        for call in calls_of(memory):
            proxy.mode = Stall(requests)
            with pytest.raises(StoreUnavailableError, match=r"no answer.*can safely be retried"):
                call()
            proxy.mode = Pass()
        chat.add("user", "after")
        texts = [message.text for message in chat.messages()]
        assert [text for text in texts if text != "during"] == ["before", "after"]
        # Where appends have no condition, a request that arrives after the deadline is a message all the same.
        late = name == "agentcore" or (requests and name in ("postgresql", "http"))
        assert texts[0] == "before"
        if not late:
            assert texts[-1] == "after"


def test_a_server_that_stalls_at_the_start_is_not_waited_for(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    proxy.mode = Stall()
    with pytest.raises(StoreUnavailableError):
        mnemic.open(with_options(url, "timeout=1"))


@pytest.mark.parametrize("name", ["postgresql"], indirect=True)
def test_async_calls_of_postgresql_end_within_the_deadline_too(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied

    async def main() -> None:
        async with mnemic.open_async(with_options(url, "timeout=2")) as memory:
            chat = memory.scope("acme").session("s")
            await chat.add("user", "before")
            for call in (lambda: chat.add("user", "during"), lambda: chat.messages()):
                proxy.mode = Stall()
                with pytest.raises(StoreUnavailableError, match="no answer"):
                    await call()
                proxy.mode = Pass()
            await chat.add("user", "after")

    asyncio.run(main())


def test_slow_answers_are_answers(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    with mnemic.open(url) as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "before")
        proxy.mode = Slow(piece=64, pause=0.001)
        chat.add("user", "after")
        assert [message.text for message in chat.messages()] == ["before", "after"]


def test_close_breaks_off_what_other_threads_wait_for(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    memory = mnemic.open(with_options(url, "timeout=120"))
    calls = calls_of(memory)
    calls[0]()
    proxy.mode = Stall()
    ended: list[BaseException | None] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    assert proxy.stalled.wait(60)
    assert not ended
    memory.close()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(isinstance(error, ClosedError | StoreUnavailableError) for error in ended), ended
    with pytest.raises(ClosedError):
        calls[0]()
    memory.close()


def test_a_second_event_loop_is_told_why_and_costs_no_connection(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied

    async def opened() -> mnemic.AsyncMemory:
        memory = await mnemic.open_async(url)
        await memory.scope("acme").session("s").add("user", "first")
        return memory

    async def use(memory: mnemic.AsyncMemory) -> None:
        await memory.scope("acme").session("s").messages()

    loop = asyncio.new_event_loop()
    memory = loop.run_until_complete(opened())
    before = proxy.accepted
    for _ in range(3):
        with pytest.raises(EventLoopError, match=r"another event loop: open one with mnemic\.open_async"):
            asyncio.run(use(memory))
    assert proxy.accepted == before
    loop.run_until_complete(use(memory))
    loop.run_until_complete(memory.close())
    loop.close()


def test_a_memory_is_closed_from_another_loop_than_its_own(proxied: tuple[FaultyProxy, str]) -> None:
    _, url = proxied
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def opened() -> mnemic.AsyncMemory:
        return await mnemic.open_async(url)

    try:
        memory = asyncio.run_coroutine_threadsafe(opened(), loop).result()
        asyncio.run(memory.close())
        with pytest.raises(ClosedError):
            asyncio.run_coroutine_threadsafe(memory.scope("a").memories.list(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


BROKEN: list[Mode] = [
    *(Cut(after) for after in (0, 7, 200)),
    *(Garbage(after=after) for after in (0, 60, 300)),
    Garbage(b"$5\r\n\xff\xfe\xfd\xfc\xfb\r\n"),
    Garbage(b"E\x00\x00\x00\x10S\xff\xfe\xfd\x00M\xff\xff\x00\x00\x00"),
]
BROKEN_HTTP: list[Mode] = [
    Cut(200),
    Garbage(),
    Garbage(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n\xff\xfe\x00{<!\xff"),
    Garbage(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
]


def test_whatever_a_server_says_only_our_errors_come_out(name: str, proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    with mnemic.open(with_options(url, "timeout=2")) as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "x" * 200)
        for mode in BROKEN if name in ("valkey", "postgresql") else BROKEN_HTTP:
            for call in (lambda: chat.add("user", "during"), lambda: chat.messages()):
                proxy.mode = mode
                try:
                    call()
                except StoreError:
                    pass
                except Exception as error:
                    raise AssertionError(f"{mode} makes {error!r} escape") from error
                proxy.mode = Pass()
                proxy.drop()
        eventually(lambda: chat.add("user", "after"))
        assert chat.messages()[-1].text == "after"


def eventually(call: Callable[[], object]) -> None:
    """Call until connections that were broken have been replaced."""
    for _ in range(20):
        try:
            call()
            return
        except StoreUnavailableError:
            time.sleep(0.05)
    call()


@pytest.mark.parametrize("after", [0, 20, 200, 700])
def test_a_read_whose_answer_is_cut_off_is_read_again(proxied: tuple[FaultyProxy, str], after: int) -> None:
    proxy, url = proxied
    with mnemic.open(url) as memory:
        chat = memory.scope("acme").session("s")
        chat.add("user", "x" * 1000)
        proxy.mode = Cut(after, times=1)
        assert [message.text for message in chat.messages()] == ["x" * 1000]


@pytest.mark.parametrize("name", ["postgresql"], indirect=True)
def test_a_pipeline_that_has_lost_the_server_ends(proxied: tuple[FaultyProxy, str]) -> None:
    proxy, url = proxied
    with mnemic.open(with_options(url, "timeout=2")) as memory:
        memory.scope("acme").remember("before", once="1")
        proxy.mode = Garbage(b"1\x7f\xff\xff\xff" + bytes(20), stay=True)  # a message of 2 GB begins
        with pytest.raises(StoreUnavailableError):
            memory.scope("a new one").remember("during", once="2")
        proxy.mode = Pass()
        proxy.drop()
        eventually(lambda: memory.scope("a new one").remember("during", once="2"))
        assert [item.text for item in memory.scope("a new one").memories.list()] == ["during"]
