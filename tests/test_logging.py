"""What the library logs: lost servers, retries and missing embedders, under documented names and never content."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import mnemic
from faulty_proxy import Cut, Pass, proxy_for
from mnemic import telemetry
from mnemic.agents import Agent
from mnemic.errors import StoreUnavailableError
from mnemic.features.notes import AsyncNotes
from mnemic.records import Record
from mnemic.store.availability import cause_name
from servers import postgres, valkey
from servers.keyserver import KeyServer
from servers.stores import empty_store

ROOT = Path(__file__).parent.parent
SECRET = "xyzzy-the-secret-of-Alice"
SCOPE = "tenant-under-wraps"

Switch = Callable[[], None]


@contextmanager
def killed_valkey(_: Path) -> Iterator[tuple[str, Switch, Switch]]:
    server = KeyServer(valkey.program())
    try:
        yield server.url, server.process.kill, server.process.start
    finally:
        server.process.kill()


@contextmanager
def killed_postgres(_: Path) -> Iterator[tuple[str, Switch, Switch]]:
    server = postgres.Postgres()
    try:
        yield server.url(), server.process.kill, server.process.start
    finally:
        server.process.kill()


def cut_off(name: str) -> Callable[[Path], AbstractContextManager[tuple[str, Switch, Switch]]]:
    @contextmanager
    def lend(folder: Path) -> Iterator[tuple[str, Switch, Switch]]:
        with empty_store(name, folder) as url, proxy_for(url) as proxy:
            mnemic.open(f"{url}{'&' if '?' in url else '?'}timeout=60").close()  # making a table may take long

            def cut() -> None:
                proxy.mode = Cut()
                proxy.drop()

            def restore() -> None:
                proxy.mode = Pass()

            yield proxy.url(url), cut, restore

    return lend


SERVERS = {
    "valkey": killed_valkey,
    "postgresql": killed_postgres,
    "dynamodb": cut_off("dynamodb"),
    "s3": cut_off("s3"),
    "http": cut_off("http"),
}


def logged(caplog: pytest.LogCaptureFixture, least: int = logging.INFO) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "mnemic.store" and record.levelno >= least
    ]


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", SERVERS)
def test_a_lost_server_is_logged_once_and_so_is_its_return(
    name: str, on_loop: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SERVERS[name](tmp_path) as (url, lose, restore):
        url += f"{'&' if '?' in url else '?'}timeout=3"

        async def calls(memory: mnemic.AsyncMemory) -> None:
            chat = memory.scope(SCOPE).session("s")
            await chat.add("user", SECRET)
            assert logged(caplog) == []
            lose()
            for _ in range(2):
                with pytest.raises(StoreUnavailableError):
                    await chat.messages()
                with pytest.raises(StoreUnavailableError):
                    await chat.add("user", SECRET)
            ((level, text),) = logged(caplog)
            assert level == "WARNING"
            assert re.fullmatch(r"\S+://\S+ is unavailable \(\w+\)", text)
            restore()
            caplog.clear()
            for _ in range(3):
                await chat.messages()
            ((level, text),) = logged(caplog)
            assert level == "INFO"
            assert re.fullmatch(r"\S+://\S+ is available again, after \d+\.\d s", text)

        with caplog.at_level(logging.DEBUG, "mnemic"):
            if on_loop:

                async def main() -> None:
                    async with mnemic.open_async(url) as memory:
                        caplog.clear()
                        await calls(memory)

                asyncio.run(main())
            else:
                with mnemic.open(url) as memory:
                    caplog.clear()
                    memory._driver.run(calls(memory._async))


def test_a_server_that_is_not_there_is_logged_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    for url in (
        f"postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"redis://:{SECRET}@127.0.0.1:1/0?timeout=1",
        f"http://:{SECRET}@127.0.0.1:1",
    ):
        with pytest.raises(StoreUnavailableError):
            mnemic.open(url)
    told = logged(caplog)
    assert [level for level, _ in told] == ["WARNING"] * 3
    assert all("***@127.0.0.1:1" in text and SECRET not in text for _, text in told)


class Quoting:
    """An embedder that quotes what it was given when it fails."""

    id = "quoting"

    def __init__(self) -> None:
        self.fails = True

    def embed(self, texts: Sequence[str]) -> Any:
        if self.fails:
            self.embed_query(texts[0])
        return np.ones((len(texts), 4), dtype=np.float32)

    def embed_query(self, query: str) -> Any:
        if self.fails:
            raise ValueError(f"cannot embed {query!r}")
        return np.ones(4, dtype=np.float32)


def test_no_log_of_a_session_shows_what_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(messages: list[mnemic.Message]) -> NoReturn:
        raise RuntimeError(f"the model failed on {messages[-1].text}")

    with caplog.at_level(logging.DEBUG):
        with mnemic.open(f"sqlite:///{tmp_path}/a.db", embedder=Quoting()) as memory:
            scope = memory.scope(SCOPE)
            scope.remember(SECRET, id=SECRET, metadata={SECRET: SECRET}, source=SECRET)
            scope.session("s", max_messages=2).add("user", SECRET)
            for n in range(4):
                scope.session("s").add("user", f"{SECRET} {n}")
            scope.facts.add(SECRET, "knows", SECRET)
            scope.recall(SECRET)
            scope.context(SECRET)
            lose_a_race(monkeypatch)
            scope.notes.write("count", SECRET)
            agent = Agent("Bot", model=lambda _: "Noted.", memory=scope, learn=["extract"], learn_with=broken)
            with agent:
                agent.run_sync(SECRET)
                assert agent.learner is not None
                agent.drive(agent.learner.drain())
                assert SECRET in str(agent.learner.errors[0])
            scope.forget(SECRET)
            scope.erase()
    names = {record.name for record in caplog.records}
    assert {"mnemic.recall", "mnemic.agents", "mnemic.store"} <= names
    assert any("retry" in record.getMessage() for record in caplog.records)
    for record in caplog.records:
        told = f"{record.getMessage()} {record.exc_info}"
        assert SECRET not in told, record
        if record.levelno > logging.DEBUG:
            assert SCOPE not in told, record


def lose_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another write come between the read and the write of the next note, which has to retry."""
    find = AsyncNotes._find
    rivals = ["rival"]

    async def raced(self: AsyncNotes, key: str) -> Record | None:
        found = await find(self, key)
        if rivals:
            await self.write(key, f"{SECRET} {rivals.pop()}")
        return found

    monkeypatch.setattr(AsyncNotes, "_find", raced)


def test_a_missing_embedder_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    model = Quoting()
    model.fails = False
    with mnemic.open(url, embedder=model) as memory:
        memory.scope("a").remember("tea")
    assert [record for record in caplog.records if record.name.startswith("mnemic")] == []
    with mnemic.open(url) as memory:
        for _ in range(2):
            assert memory.scope("a").recall("tea")
    (record,) = [record for record in caplog.records if record.name.startswith("mnemic")]
    assert (record.name, record.levelname) == ("mnemic.recall", "WARNING")
    assert record.getMessage().startswith("recall compares words alone: ")
    assert "'quoting'" in record.getMessage()


def test_an_error_that_is_its_own_cause_is_named() -> None:
    error = ConnectionError(SECRET)
    error.__cause__ = error
    assert cause_name(error) == "ConnectionError"
    outer = StoreUnavailableError(SECRET)
    outer.__cause__ = error
    assert cause_name(outer) == "ConnectionError"


def test_every_logger_is_documented() -> None:
    page = (ROOT / "docs" / "logging.md").read_text()
    sources = (ROOT / "src" / "mnemic").rglob("*.py")
    names = {name for file in sources for name in re.findall(r"getLogger\((.*?)\)", file.read_text())}
    names.discard("name")  # in the server's setup of logging, which sets handlers and logs nothing
    assert names == {f'"{name}"' for name in re.findall(r"^\| `(mnemic\.[\w.]+)` \|", page, re.M)}


def everything(memory: mnemic.Memory) -> None:
    alice = memory.scope(SCOPE)
    alice.session("monday").add("user", SECRET)
    alice.remember(SECRET)
    alice.notes.write("plan", SECRET)
    alice.facts.add("Alice", "told", SECRET)
    alice.recall(SECRET)
    with pytest.raises(mnemic.NotFoundError):
        alice.get(SECRET)


def test_calls_are_logged_as_json_with_ids_and_without_content(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(telemetry.JSONFormatter())
    logger = logging.getLogger("mnemic")
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    try:
        with mnemic.open("memory://") as memory:
            everything(memory)
    finally:
        logger.removeHandler(handler)
        logger.manager._clear_cache()  # type: ignore[attr-defined]
    text = stream.getvalue()
    assert SECRET not in text
    assert SCOPE not in text
    found = [line for line in map(json.loads, text.splitlines()) if line["logger"] == "mnemic.calls"]
    assert [(line["call"], line["operation"], line["outcome"]) for line in found] == [
        ("session.add", "create_memory", "ok"),
        ("scope.remember", "create_memory", "ok"),
        ("notes.write", "upsert_memory", "ok"),
        ("facts.add", "create_memory", "ok"),
        ("scope.recall", "search_memory", "ok"),
        ("scope.get", "search_memory", "NotFoundError"),
    ]
    assert len({line["operation_id"] for line in found}) == len(found)
    assert len({line["scope"] for line in found[1:]}) == 1
    assert {line["store"] for line in found} == {"memory://"}
    assert all(line["ms"] >= 0 for line in found)


def test_a_line_of_json_has_the_fields_of_its_record_and_not_the_message_of_an_error() -> None:
    record = logging.makeLogRecord(
        {"name": "mnemic.store", "levelname": "WARNING", "msg": "%s is lost", "args": ("x",)}
    )
    record.store, record.strange = "redis://host", {"a set": {1}}
    record.exc_info = (ValueError, ValueError(SECRET), None)
    line = json.loads(telemetry.JSONFormatter().format(record))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "mnemic.store",
        "message": "x is lost",
        "error": "ValueError",
        "store": "redis://host",
        "strange": {"a set": [1]},
    }
