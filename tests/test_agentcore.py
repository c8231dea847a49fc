"""AgentCore Memory: what lies where, what several writers do, what goes wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import mnemic
from mnemic.backends import aws
from mnemic.backends.agentcore import codec, scope_state
from mnemic.backends.agentcore import store as store_module
from mnemic.backends.agentcore.client import OURS, Item, MemoryClient
from mnemic.backends.agentcore.codec import ActorSession
from mnemic.backends.agentcore.store import AgentCoreStore, open_store
from mnemic.errors import (
    ConflictError,
    InvalidValueError,
    MnemicError,
    NewerSchemaError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Capability, Store, scan_all
from mnemic.store.query import Condition, Delete, Derive, Expect, Limit, Op, Purge, Put, Scan, StreamScan, Touch, Write
from mnemic.store.registry import StoreURL
from servers import aws as servers

Result = TypeVar("Result")
SCOPE = ScopePath("acme/alice/monday")
PLACE = ActorSession("acme/alice", "monday")
OPTIONS: dict[str, str] = {}


class Bench:
    """A memory, the stores that are open on it, and the service itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self.memory = parts.netloc
        self.client = servers.client("bedrock-agentcore", dict(parse_qsl(parts.query)))
        self.runner = asyncio.Runner()
        self.stores: list[AgentCoreStore] = []

    def open(self, **options: str) -> AgentCoreStore:
        url = "&".join([self.url, *(f"{name}={value}" for name, value in options.items())])
        store = self.runner.run(open_store(StoreURL.parse(url)))
        self.stores.append(store)
        return store

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(coroutine)

    def put(self, store: Store, key: str, if_version: int | None = None, **fields: Any) -> int:
        return self.run(store.write(Write((Put(record(key, **fields), if_version),))))[0].seq

    def found(self, store: Store, scope: ScopePath = SCOPE, kind: str = "message") -> list[Record]:
        async def collect() -> list[Record]:
            return [one async for one in scan_all(store, Scan(scope=scope, kinds=(kind,)))]

        return self.run(collect())

    def keys(self, store: Store, scope: ScopePath = SCOPE, kind: str = "message") -> list[str]:
        return [one.key for one in self.found(store, scope, kind)]

    def events(self, place: ActorSession = PLACE) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("list_events").paginate(
            memoryId=self.memory, actorId=place.actor, sessionId=place.session, includePayloads=True
        )
        return [event for page in pages for event in page["events"]][::-1]

    def foreign(self, payload: list[dict[str, Any]], **more: Any) -> None:
        """Make an event as others do."""
        self.client.create_event(
            memoryId=self.memory,
            actorId=PLACE.actor,
            sessionId=PLACE.session,
            eventTimestamp=datetime.now(UTC),
            payload=payload,
            **more,
        )

    def texts(self) -> str:
        """Return all that the service holds, as one text."""
        records = self.client.list_memory_records(memoryId=self.memory, namespacePath="/mnemic/")[
            "memoryRecordSummaries"
        ]
        actors = self.client.list_actors(memoryId=self.memory)["actorSummaries"]
        held: list[Any] = [*records]
        for actor in actors:
            found = self.client.list_sessions(memoryId=self.memory, actorId=actor["actorId"])
            for session in found["sessionSummaries"]:
                held += self.events(ActorSession(actor["actorId"], session["sessionId"]))
        return repr(held)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with servers.empty_memory() as url:
        bench = Bench(url)
        with bench.runner:
            yield bench
            for store in bench.stores:
                bench.run(store.close())


def record(key: str, *, scope: ScopePath = SCOPE, kind: str = "message", **fields: Any) -> Record:
    return Record(scope=scope, kind=kind, key=key, **fields)


def said(role: str, text: str) -> dict[str, Any]:
    return {"text": text, "data": {"role": role}}


# names


segments = st.text(st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1, max_size=200)
awkward = st.sampled_from(["_-", "-", "_", "0_-x", "0_-root", "0_-h", "_-5f", "é", "a.b", "名前", "x" * 200, "A", "a"])


@given(st.lists(segments | awkward, max_size=16))
def test_ids_are_valid(path: list[str]) -> None:
    place = ActorSession.of("/".join(path))
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9-_/]*(?::[a-zA-Z0-9-_/]+)*[a-zA-Z0-9-_/]*", place.actor)
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9-_]*", place.session)
    assert len(place.actor) <= 255
    assert len(place.session) <= 100


@given(st.lists(segments | awkward, min_size=1, max_size=4), st.lists(segments | awkward, min_size=1, max_size=4))
def test_two_scopes_never_share_a_place(one: list[str], other: list[str]) -> None:
    same = ActorSession.of("/".join(one)) == ActorSession.of("/".join(other))
    assert same == (one == other)


def test_plain_names_stay_as_they_are() -> None:
    assert ActorSession.of("agent_123/session_456") == ("agent_123", "session_456")
    assert ActorSession.of("acme/alice/2026-11-15_a") == ("acme/alice", "2026-11-15_a")


@pytest.mark.parametrize(
    "path", ["a", "", "-/_", "名前/日/曜", "x" * 200 + "/" + "é" * 200, "/".join(["long" * 40] * 5), "a b/c:d/{e}"]
)
def test_every_scope_is_listed_by_its_own_name(bench: Bench, path: str) -> None:
    store, scope = bench.open(), ScopePath(path)
    bench.put(store, "k", scope=scope)
    again = bench.open()
    page = bench.run(again.streams(StreamScan(scope=ScopePath())))
    assert [stream.scope for stream in page.items] == [scope]
    page = bench.run(again.streams(StreamScan(scope=scope)))
    assert [stream.scope for stream in page.items] == [scope]
    assert bench.keys(again, scope) == ["k"]


# what lies where


def test_a_message_is_a_turn_of_the_conversation(bench: Bench) -> None:
    store = bench.open()
    for key, (role, text) in enumerate(
        [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("tool", "42"), ("user", "")]
    ):
        bench.put(store, str(key), **said(role, text), meta={"n": key}, labels={"role": role})
    turns = [
        (part["conversational"]["role"], part["conversational"]["content"]["text"])
        for event in bench.events()
        for part in event["payload"]
        if "conversational" in part
    ]
    assert turns == [("OTHER", "Be kind."), ("USER", "Hi"), ("ASSISTANT", "Hello"), ("TOOL", "42")]
    assert [one.text for one in bench.found(bench.open())] == ["Be kind.", "Hi", "Hello", "42", ""]


def test_a_write_to_one_scope_is_one_event(bench: Bench) -> None:
    store = bench.open()
    ops = [*(Put(record(f"k{n}", **said("user", str(n)))) for n in range(40)), Put(record("e", kind="summary"))]
    bench.run(store.write(Write(tuple(ops), id="w")))
    (event,) = bench.events()
    assert len(event["payload"]) == 41
    bench.run(store.write(Write((Put(record("k40")), Limit(SCOPE, "message", 5, None, (("k40",),), False)))))
    assert len(bench.events()) == 2


def test_a_long_conversation_is_read_to_its_end(bench: Bench) -> None:
    store = bench.open()
    for n in range(230):
        bench.put(store, f"k{n}", 0, **said("user", str(n)))
    assert len(bench.events()) == 230
    assert bench.keys(bench.open()) == [f"k{n}" for n in range(230)]


def test_a_long_text_is_several_turns_and_comes_back_whole(bench: Bench) -> None:
    store = bench.open()
    for key, text in (("ascii", "x y" * 70_000), ("other", "é😀\n" * 20_000)):
        bench.put(store, key, **said("user", text))
    for event in bench.events():
        for part in event["payload"]:
            if "conversational" in part:
                assert len(part["conversational"]["content"]["text"].encode()) <= 100_000
    assert [one.text for one in bench.found(bench.open())] == ["x y" * 70_000, "é😀\n" * 20_000]


def test_what_is_too_large_is_refused_before_anything_is_sent(bench: Bench) -> None:
    store = bench.open()
    large = record("large", text="é" * 2_000_000)
    with pytest.raises(TooLargeError, match="large"):
        bench.run(store.write(Write((Put(record("small")), Put(large)))))
    with pytest.raises(TooLargeError, match="16,000"):
        bench.put(store, "k", kind="memory", text="x" * 16_001)
    with pytest.raises(TooLargeError, match="18,000"):
        bench.put(store, "k", kind="memory", text="x", meta={"x": "y" * 20_000})
    deep = ScopePath("/".join("long" * 20 for _ in range(15)))
    with pytest.raises(InvalidValueError, match="path is too long"):
        bench.put(store, "k", kind="memory", text="x", scope=deep)
    assert bench.events() == []
    assert bench.keys(store) == []


def test_events_of_others_are_left_alone(bench: Bench) -> None:
    turn = {"conversational": {"role": "USER", "content": {"text": "not ours"}}}
    theirs = {"blob": '{"mnemic_like": 1}'}
    for payload in ([turn], [theirs], [{"blob": {"a": 1}}]):
        bench.foreign(payload)
        bench.foreign(payload, metadata={OURS: {"stringValue": "9"}})
    store = bench.open()
    assert bench.keys(store) == []
    bench.put(store, "k")
    assert bench.keys(store) == ["k"]
    bench.run(store.write(Write((Purge(SCOPE, "message", drop=True),))))
    assert len(bench.events()) == 6


def test_what_a_newer_version_wrote_is_not_misread(bench: Bench) -> None:
    bench.foreign([{"blob": '{"mnemic":3,"news":1}'}], metadata={OURS: {"stringValue": "1"}})
    with pytest.raises(NewerSchemaError):
        bench.keys(bench.open())


def test_a_damaged_event_is_named(bench: Bench) -> None:
    store = bench.open()
    bench.put(store, "k", **said("user", "hello"))
    (event,) = bench.events()
    with pytest.raises(UnreadableStoreError, match="is damaged"):
        codec.decode_event({**event, "payload": event["payload"][1:]}, "agentcore://x")
    with pytest.raises(UnreadableStoreError, match=re.escape(event["eventId"])):
        codec.decode_event({**event, "payload": [{"blob": '{"mnemic":2,"n":"x"}'}]}, "agentcore://x")


# deleting


def test_what_is_deleted_or_changed_is_gone_from_the_service(bench: Bench) -> None:
    store = bench.open()
    secrets = [Put(record(f"m{n}", **said("user", f"secret-{n}"))) for n in range(5)]
    notes = [Put(record(f"n{n}", kind="memory", text=f"secret-{n} note", title="t")) for n in range(5)]
    bench.run(store.write(Write((*secrets, *notes))))
    assert bench.texts().count("secret-1") == 2
    bench.run(store.write(Write((Delete(Ref(SCOPE, "message", "m1")), Delete(Ref(SCOPE, "memory", "n1"))))))
    assert "secret-1" not in bench.texts()
    assert bench.texts().count("secret-2") == 2
    bench.put(store, "m2", text="changed")
    bench.put(store, "n2", kind="memory", text="changed")
    assert "secret-2" not in bench.texts()
    assert bench.keys(bench.open()) == ["m0", "m2", "m3", "m4"]
    assert [one.text for one in bench.found(bench.open(), kind="memory")][1] == "changed"


def test_an_erasure_has_a_certificate_without_a_signature(bench: Bench) -> None:
    with mnemic.open(bench.url, embedder=None) as memory:
        memory.scope("acme", "alice").remember("tea")
        done = memory.scope("acme", "alice").erase()
        assert (done.records, done.signature) == (1, None)  # no key can be kept here
        assert memory.scope("acme", "alice").memories.list() == []


def test_a_limit_deletes_what_it_removes(bench: Bench) -> None:
    store = bench.open()
    for n in range(12):
        limit = Limit(SCOPE, "message", 3, None, ((f"k{n - 3}",),))
        bench.run(store.write(Write((Put(record(f"k{n}", **said("user", str(n)))), limit))))
        assert len(bench.events()) <= 4
    assert bench.keys(bench.open()) == ["k9", "k10", "k11"]


def test_nothing_tells_of_a_dropped_stream(bench: Bench) -> None:
    store = bench.open()
    bench.put(store, "k", kind="memory", text="a note")
    bench.put(store, "m", **said("user", "hello"))
    bench.run(store.write(Write((Purge(SCOPE, "memory", drop=True),))))
    assert "a note" not in bench.texts()
    assert bench.keys(bench.open()) == ["m"]
    bench.run(store.write(Write((Purge(SCOPE, "message", drop=True),))))
    assert bench.texts() == "[]"
    assert bench.put(store, "m") == 1


def test_what_could_not_be_deleted_is_deleted_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    bench.put(store, "k", **said("user", "secret"))

    async def broken(*_: Any) -> None:
        raise StoreUnavailableError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryClient, "delete_event", broken)
        bench.run(store.write(Write((Delete(Ref(SCOPE, "message", "k")),))))
        assert bench.keys(store) == []
        assert bench.keys(bench.open()) == []
    assert "secret" in bench.texts()
    other = bench.open()
    bench.put(other, "l")
    assert "secret" not in bench.texts()


def test_what_is_left_at_the_end_is_deleted_when_the_store_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    bench.put(store, "k", **said("user", "secret"))

    async def broken(*_: Any) -> None:
        raise StoreUnavailableError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryClient, "delete_event", broken)
        bench.run(store.write(Write((Delete(Ref(SCOPE, "message", "k")),))))
    bench.run(store.close())
    assert "secret" not in bench.texts()


# writes that break


class Breaking:
    """Makes one of the next events fail, before or after it is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, *, made: bool) -> None:
        self.left = after
        self.made = made
        self.create = MemoryClient.create_event
        monkeypatch.setattr(MemoryClient, "create_event", self.patched())

    def patched(self) -> Callable[..., Any]:
        async def create_event(client: MemoryClient, *args: Any, **settings: Any) -> str:
            self.left -= 1
            if self.left != -1:
                return await self.create(client, *args, **settings)
            if self.made:
                await self.create(client, *args, **settings)
            raise StoreUnavailableError("the connection broke")

        return create_event


def test_a_write_whose_answer_was_lost_is_done_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    write = Write((Put(record("k", **said("user", "hello")), 0),), id="once")
    with monkeypatch.context() as patched:
        Breaking(patched, 0, made=True)
        with pytest.raises(StoreUnavailableError):
            bench.run(store.write(write))
    assert bench.run(store.write(write))[0].seq == 1
    assert bench.run(bench.open().write(write))[0].seq == 1
    assert bench.keys(store) == ["k"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_large_write_that_fails_is_not_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    store = bench.open()
    bench.put(store, "before", text="before")
    ops = tuple(Put(record(f"k{n}", **said("user", f"{n}" * 100))) for n in range(250))
    with monkeypatch.context() as patched:
        Breaking(patched, at, made=False)
        with pytest.raises(StoreUnavailableError):
            bench.run(store.write(Write(ops)))
    assert bench.keys(store) == ["before"]
    assert bench.keys(bench.open()) == ["before"]
    bench.run(store.write(Write(ops)))
    assert len(bench.keys(bench.open())) == 251


# several writers


def test_each_handle_sees_what_the_others_did(bench: Bench) -> None:
    one, other = bench.open(), bench.open()
    for n in range(8):
        bench.put(one, f"a{n}")
        bench.put(other, f"b{n}")
        assert bench.keys(one) == bench.keys(other)
    assert [found.seq for found in bench.found(one)] == list(range(1, 17))
    bench.run(one.write(Write((Delete(Ref(SCOPE, "message", "b0")),))))
    bench.put(one, "a1", text="changed")
    assert bench.keys(other) == [key for key in bench.keys(one) if key != "b0"]
    assert bench.found(other)[1].text == "changed"
    bench.run(other.write(Write((Purge(SCOPE, "message", keep=("a3",)),))))
    assert bench.keys(one) == bench.keys(other) == ["a3"]
    bench.run(one.write(Write((Purge(SCOPE, "message", drop=True),))))
    assert bench.keys(other) == []
    assert bench.put(other, "new") == 1
    assert bench.keys(one) == ["new"]


def test_nothing_is_lost_when_several_handles_write_at_once(bench: Bench) -> None:
    stores = [bench.open() for _ in range(3)]
    for store in stores:
        bench.keys(store)

    async def burst(store: Store, writer: int) -> None:
        for n in range(10):
            put = Put(record(f"{writer}-{n}", weight=1, **said("user", f"{writer}-{n}")), 0)
            await store.write(Write((put,)))

    async def all_at_once() -> None:
        await asyncio.gather(*(burst(store, writer) for writer, store in enumerate(stores)))

    bench.run(all_at_once())
    for store in (*stores, bench.open()):
        found = bench.found(store)
        assert len(found) == len({one.seq for one in found}) == 30
        for writer in range(3):
            own = [one.key for one in found if one.key.startswith(f"{writer}-")]
            assert own == [f"{writer}-{n}" for n in range(10)]
    bench.put(stores[0], "last", weight=1)
    for store in (*stores, bench.open()):
        assert bench.keys(store)[-1] == "last"
        (stream,) = bench.run(store.streams(StreamScan(scope=SCOPE, below=False))).items
        assert (stream.count, stream.weight) == (31, 31)


def test_a_guarded_write_sees_what_others_did_before_it(bench: Bench) -> None:
    one, other = bench.open(), bench.open()
    version = bench.run(one.write(Write((Put(record("k")),))))[0].version
    bench.put(other, "k", text="theirs")
    with pytest.raises(ConflictError):
        bench.run(one.write(Write((Put(record("k"), version),))))
    with pytest.raises(ConflictError):
        bench.run(one.write(Write((Expect(SCOPE, "message", version), Put(record("l"))))))


def test_an_event_that_is_not_listed_yet_is_not_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    bench.put(store, "a")
    bench.put(store, "b")
    hidden = bench.events()[-1]["eventId"]
    listed = MemoryClient.events

    async def late(client: MemoryClient, place: ActorSession, first: int = 100) -> AsyncGenerator[list[Item], None]:
        async for page in listed(client, place, first):
            yield [event for event in page if event["eventId"] != hidden]

    with monkeypatch.context() as patched:
        patched.setattr(MemoryClient, "events", late)
        assert bench.keys(store) == ["a", "b"]
        assert bench.put(store, "c") == 3
        assert bench.keys(store) == ["a", "b", "c"]
        assert bench.keys(bench.open()) == ["a", "c"]
    assert bench.keys(bench.open()) == ["a", "b", "c"]


def test_many_events_of_others_are_taken_in(bench: Bench) -> None:
    one, other = bench.open(), bench.open()
    bench.put(one, "first")
    for n in range(20):
        bench.put(other, f"k{n}")
    assert bench.keys(one) == ["first", *(f"k{n}" for n in range(20))]
    bench.run(other.write(Write(tuple(Put(record(f"m{n}", **said("user", "x"))) for n in range(250)))))
    assert len(bench.keys(one)) == 271


def test_it_does_not_say_that_writes_hold_between_processes(bench: Bench) -> None:
    assert bench.open().capabilities == {Capability.DURABLE, Capability.SHARED}


def test_sessions_that_do_not_fit_are_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_CACHED", 2)
    store = bench.open()
    for n in range(6):
        bench.put(store, "k", scope=ScopePath(f"u/s{n}"), text="x" * 300)
        bench.put(store, "l", scope=ScopePath(f"u/s{n % 3}"), text="y" * 300)
    page = bench.run(store.scan(Scan(scope=ScopePath("u"), below=True)))
    assert [(one.scope.name, one.key, one.seq) for one in page.items] == [
        *((f"s{n}", key, seq) for n in range(3) for seq, key in ((1, "k"), (2, "l"))),
        *((f"s{n}", "k", 1) for n in range(3, 6)),
    ]


# memory records


def test_memories_are_memory_records(bench: Bench) -> None:
    store = bench.open()
    fields: dict[str, Any] = {
        "data": {"n": [1, 2.5]},
        "meta": {"ü": "x" * 3000},
        "labels": {"a": "b"},
        "importance": 0.5,
    }
    bench.put(store, "boat", kind="memory", text="a red boat in the harbour", **fields)
    bench.put(store, "none", kind="memory", text=None)
    assert bench.events() == []
    for one in (store, bench.open()):
        boat, none = bench.found(one, kind="memory")
        assert (boat.key, boat.text, none.text) == ("boat", "a red boat in the harbour", None)
        assert {name: getattr(boat, name) for name in fields} == fields
    namespace = {"memoryId": bench.memory, "namespacePath": "/mnemic/acme/alice/monday/"}
    found = bench.client.retrieve_memory_records(searchCriteria={"searchQuery": "red boat"}, **namespace)
    assert [one["content"]["text"] for one in found["memoryRecordSummaries"]] == ["a red boat in the harbour"]
    bench.put(store, "boat", kind="memory", text="a green ship")
    assert "harbour" not in bench.texts()
    assert bench.run(store.read([Ref(SCOPE, "memory", "boat")]))[0] == bench.found(bench.open(), kind="memory")[0]
    bench.run(store.write(Write((Purge(SCOPE, "memory"),))))
    assert bench.texts() == "[]"
    assert bench.found(store, kind="memory") == []


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("kind", ["memory", "message"])
def test_a_scan_of_what_is_new_finds_a_changed_record(bench: Bench, kind: str, below: bool) -> None:
    store = bench.open()
    for key in ("a", "b", "c"):
        bench.put(store, key, kind=kind, text=key)
    (stream,) = bench.run(store.streams(StreamScan(scope=SCOPE, kinds=(kind,)))).items
    bench.put(store, "a", kind=kind, text="changed")
    for one in (store, bench.open()):
        new = Scan(scope=SCOPE, kinds=(kind,), below=below, after_version=stream.version)
        assert [found.text for found in bench.run(one.scan(new)).items] == ["changed"]


def test_many_memories_are_written_at_once_and_listed_below(bench: Bench) -> None:
    store = bench.open()
    bench.run(store.write(Write(tuple(Put(record(f"k{n}", kind="memory", text=f"note {n}")) for n in range(230)))))
    bench.put(store, "other", kind="memory", text="elsewhere", scope=ScopePath("acme/bob"))
    bench.put(store, "m", **said("user", "hello"))
    for one in (store, bench.open()):
        page = bench.run(one.streams(StreamScan(scope=ScopePath("acme"))))
        assert [(stream.scope.path, stream.kind, stream.count) for stream in page.items] == [
            ("acme/alice/monday", "memory", 230), ("acme/alice/monday", "message", 1), ("acme/bob", "memory", 1)
        ]  # fmt: skip
        assert bench.keys(one, kind="memory") == [f"k{n}" for n in range(230)]


def test_a_process_sees_its_memories_before_the_service_lists_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    bench.put(store, "old", kind="memory", text="old")
    before = bench.run(store._engine.client.records(SCOPE.path))

    async def stale(*_: Any) -> list[Item]:
        return before

    with monkeypatch.context() as patched:
        patched.setattr(MemoryClient, "records", stale)
        bench.put(store, "new", kind="memory", text="new")
        assert bench.keys(store, kind="memory") == ["old", "new"]
        bench.run(store.write(Write((Delete(Ref(SCOPE, "memory", "old")),))))
        assert bench.keys(store, kind="memory") == ["new"]
        patched.setattr(scope_state, "SETTLING", -1.0)
        assert bench.keys(store, kind="memory") == ["old"]


# what the service cannot store


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (Put(record("k", kind="note")), "not records of the kind 'note'"),
        (Put(record("k", kind="fact")), "not records of the kind 'fact'"),
        (Touch(SCOPE, "memory", timedelta(days=1)), "no time to live"),
        (Touch(SCOPE, "memory", settings="{}"), "no settings"),
        (Expect(SCOPE, "memory", 7), "cannot compare the version"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_back_ends_that_can(bench: Bench, op: Op, told: str) -> None:
    store = bench.open()
    with pytest.raises(InvalidValueError, match=f"{told}.*; SQLite, PostgreSQL, Redis, DynamoDB and S3 do"):
        bench.run(store.write(Write((Put(record("a")), op))))
    assert bench.keys(store) == []


def test_derived_values_are_not_stored(bench: Bench) -> None:
    store = bench.open()
    bench.put(store, "a", derived={"x": b"1"})
    assert bench.run(store.write(Write((Derive(Ref(SCOPE, "message", "a"), "x", b"1"),))))[0].count == 0
    page = bench.run(store.scan(Scan(scope=SCOPE, kinds=("message",), derived=("x",))))
    assert [one.derived for one in page.items] == [{}]


def test_the_api_works_for_conversations_and_memories(bench: Bench) -> None:
    with mnemic.open(bench.url) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday", max_messages=3)
        chat.set_system("Be kind.")
        for n in range(5):
            chat.add("user", f"message {n}")
        alice.remember("Alice lives in Oslo")
        assert [message.text for message in chat.recent(2)] == ["message 3", "message 4"]
        with pytest.raises(InvalidValueError, match="'note'"):
            alice.notes.write("k", 1)
        with pytest.raises(InvalidValueError, match="of the kind 'fact"):
            alice.facts.add("Alice", "lives in", "Oslo")
    with mnemic.open(bench.url) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday")
        assert [message.text for message in chat.messages()] == ["Be kind.", "message 3", "message 4"]
        assert chat.system() is not None
        assert [hit.text for hit in alice.recall("Where does Alice live?", k=1)] == ["Alice lives in Oslo"]
        chat.clear(keep_system=True)
        assert [message.text for message in chat.messages()] == ["Be kind."]
        certificate = alice.erase()
        assert (certificate.records > 0, certificate.signature) == (True, None)  # it keeps no signing key


# the newest records


def test_the_newest_are_read_without_all_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    for n in range(230):
        bench.put(store, f"k{n}", 0, **said("user", str(n)))
    bench.put(store, "k228", text="changed")
    bench.run(store.write(Write((Delete(Ref(SCOPE, "message", "k227")),))))
    pages = 0
    listed = MemoryClient.events

    async def counted(client: MemoryClient, place: ActorSession, first: int = 100) -> AsyncGenerator[list[Item], None]:
        nonlocal pages
        async for page in listed(client, place, first):
            pages += 1
            yield page

    monkeypatch.setattr(MemoryClient, "events", counted)
    for skip, expected in ((0, ["k229", "k228", "k226"]), (2, ["k226", "k225", "k224"])):
        newest = Scan(scope=SCOPE, kinds=("message",), reverse=True, limit=3, skip=skip)
        page = bench.run(bench.open().scan(newest))
        assert [one.key for one in page.items] == expected
        assert page.cursor is not None
    assert pages == 2
    rest = bench.run(bench.open().scan(replace(newest, cursor=page.cursor, skip=0, limit=1000)))
    assert [one.key for one in rest.items] == [f"k{n}" for n in reversed(range(224))]
    only = bench.run(bench.open().scan(replace(newest, where=(Condition("key", "eq", "k0"),), skip=0)))
    assert [one.key for one in only.items] == ["k0"]


# what goes wrong


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, bench: Bench, error: Exception) -> Iterator[AgentCoreStore]:
    """Lend a store each of whose requests fails."""
    store = bench.open()
    client = store._engine.client.requests.calls.client

    async def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(client, "_make_api_call", fail)
        yield store


def test_every_error_of_the_service_is_one_of_ours(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        "AccessDeniedException": StorePermissionError,
        "InvalidInputException": InvalidValueError,
        "ResourceNotFoundException": UnreadableStoreError,
        "RetryableConflictException": StoreBusyError,
        "ServiceException": StoreUnavailableError,
        "ServiceQuotaExceededException": StoreFullError,
        "ThrottledException": StoreBusyError,
        "ValidationException": InvalidValueError,
    }
    model = bench.client.meta.service_model
    operations = ("CreateEvent", "ListEvents", "ListActors", "ListSessions", "ListMemoryRecords")
    declared = {shape.name for name in operations for shape in model.operation_model(name).error_shapes}
    assert declared == set(expected)
    more = {
        "ExpiredTokenException": StorePermissionError,
        "UnrecognizedClientException": StorePermissionError,
        "413": TooLargeError,
        "Odd": StoreError,
    }
    for code, kind in {**expected, **more}.items():
        status = 500 if code == "ServiceException" else 400
        answer: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        with failing(monkeypatch, bench, ClientError(answer, "CreateEvent")) as store:
            for call in (
                lambda: bench.put(store, "k"),
                lambda: bench.keys(store),
                lambda: bench.run(store.streams(StreamScan(scope=ScopePath()))),
                lambda: bench.keys(store, kind="memory"),
            ):
                with pytest.raises(kind, match=re.escape(bench.memory)) as caught:
                    call()
                assert type(caught.value) is kind


def test_a_lost_connection_is_told_as_such(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (EndpointConnectionError(endpoint_url="x"), ReadTimeoutError(endpoint_url="x")):
        with failing(monkeypatch, bench, error) as store, pytest.raises(StoreUnavailableError):
            bench.put(store, "k")
        bench.put(store, "k")
        assert bench.keys(store) == ["k"]


def test_a_memory_that_is_not_there_says_so(bench: Bench) -> None:
    url = bench.url.replace(bench.memory, "nothing-abcdef1234")
    with pytest.raises(UnreadableStoreError, match=r"nothing-abcdef1234.*create_memory"):
        bench.run(open_store(StoreURL.parse(url)))


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("", ""),
        ("short", ""),
        ("x-abcdef1234/more", ""),
        ("good-abcdef1234", "what=1"),
        ("good-abcdef1234", "endpoint=nowhere"),
    ],
)
def test_a_bad_url_is_refused(place: str, options: str) -> None:
    with pytest.raises(InvalidValueError):
        asyncio.run(open_store(StoreURL.parse(f"agentcore://{place}?region=us-east-1&{options}")))


def test_without_credentials_it_says_what_to_set(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    with pytest.raises(StorePermissionError, match="AWS_ACCESS_KEY_ID"):
        bench.run(open_store(StoreURL.parse(bench.url)))


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = aws.connect

    async def once(service: str, url: StoreURL) -> Any:
        return await connect(service, url, attempts=1)

    monkeypatch.setattr(aws, "connect", once)
    url = "agentcore://good-abcdef1234?region=us-east-1&endpoint=http://127.0.0.1:9"
    with pytest.raises(StoreUnavailableError):
        asyncio.run(open_store(StoreURL.parse(url)))


def test_an_arn_names_a_memory_too(bench: Bench) -> None:
    arn = f"arn:aws:bedrock-agentcore:us-east-1:000000000000:memory/{bench.memory}"
    store = bench.run(open_store(StoreURL.parse(bench.url.replace(bench.memory, arn))))
    bench.stores.append(store)
    bench.put(store, "k", scope=ScopePath("a/b"))
    assert bench.keys(bench.open(), ScopePath("a/b")) == ["k"]
    with pytest.raises(MnemicError):
        bench.run(open_store(StoreURL.parse("agentcore://arn:aws:s3:::bucket/x")))
