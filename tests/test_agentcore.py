"""AgentCore Memory: what lies where, what several writers do, what goes wrong."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from mnemic.backends import aws
from mnemic.backends.agentcore import events, names, sessions
from mnemic.backends.agentcore.names import Place
from mnemic.backends.agentcore.service import OURS, Answer, Service
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
from mnemic.store.query import Delete, Derive, Expect, Limit, Purge, Put, Scan, StreamScan, Write
from mnemic.store.registry import StoreURL
from servers import aws as servers

Result = TypeVar("Result")
HOME = ScopePath("acme/alice/monday")
PLACE = Place("acme/alice", "monday")
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

    def found(self, store: Store, scope: ScopePath = HOME, kind: str = "message") -> list[Record]:
        async def collect() -> list[Record]:
            return [one async for one in scan_all(store, Scan(scope=scope, kinds=(kind,)))]

        return self.run(collect())

    def keys(self, store: Store, scope: ScopePath = HOME, kind: str = "message") -> list[str]:
        return [one.key for one in self.found(store, scope, kind)]

    def events(self, place: Place = PLACE) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("list_events").paginate(
            memoryId=self.memory, actorId=place.actor, sessionId=place.session, includePayloads=True
        )
        return [event for page in pages for event in page["events"]]

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
        records = self.client.list_memory_records(memoryId=self.memory, namespace="*")["memoryRecordSummaries"]
        actors = self.client.list_actors(memoryId=self.memory)["actorSummaries"]
        held: list[Any] = [*records]
        for actor in actors:
            found = self.client.list_sessions(memoryId=self.memory, actorId=actor["actorId"])
            for session in found["sessionSummaries"]:
                held += self.events(Place(actor["actorId"], session["sessionId"]))
        return repr(held)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with servers.empty_memory() as url:
        bench = Bench(url)
        with bench.runner:
            yield bench
            for store in bench.stores:
                bench.run(store.close())


def record(key: str, *, scope: ScopePath = HOME, kind: str = "message", **fields: Any) -> Record:
    return Record(scope=scope, kind=kind, key=key, **fields)


def said(role: str, text: str) -> dict[str, Any]:
    return {"text": text, "data": {"role": role}}


# names


segments = st.text(st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1, max_size=200)
awkward = st.sampled_from(["_-", "-", "_", "0_-x", "0_-root", "0_-h", "_-5f", "é", "a.b", "名前", "x" * 200, "A", "a"])


@given(st.lists(segments | awkward, max_size=16))
def test_ids_are_what_the_service_takes_and_lead_back_to_their_scopes(path: list[str]) -> None:
    scope = "/".join(path)
    place = names.place(scope)
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9-_/]*(?::[a-zA-Z0-9-_/]+)*[a-zA-Z0-9-_/]*", place.actor)
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9-_]*", place.session)
    assert len(place.actor) <= 255
    assert len(place.session) <= 100
    assert names.path_of(place) in (scope, None)
    if all(len(segment.encode()) < 10 for segment in path) and len(path) < 4:
        assert names.path_of(place) == scope


@given(st.lists(segments | awkward, min_size=1, max_size=4), st.lists(segments | awkward, min_size=1, max_size=4))
def test_two_scopes_never_share_a_place(one: list[str], other: list[str]) -> None:
    same = names.place("/".join(one)) == names.place("/".join(other))
    assert same == (one == other)


def test_plain_names_stay_as_they_are() -> None:
    assert names.place("agent_123/session_456") == ("agent_123", "session_456")
    assert names.place("acme/alice/2026-11-15_a") == ("acme/alice", "2026-11-15_a")


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
    ops = [*(Put(record(f"k{n}", **said("user", str(n)))) for n in range(40)), Put(record("e", kind="note"))]
    bench.run(store.write(Write(tuple(ops), id="w")))
    (event,) = bench.events()
    assert len(event["payload"]) == 41
    bench.run(store.write(Write((Put(record("k40")), Limit(HOME, "message", 5, None, (("k40",),), False)))))
    assert len(bench.events()) == 2


def test_a_long_conversation_is_read_to_its_end(bench: Bench) -> None:
    store = bench.open(recall="0")
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
    with pytest.raises(TooLargeError):
        bench.run(
            store.write(Write((Put(record("small")), Derive(Ref(HOME, "message", "small"), "x", bytes(8_000_000)))))
        )
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
    bench.run(store.write(Write((Purge(HOME, "message", drop=True),))))
    assert len(bench.events()) == 6


def test_what_a_newer_version_wrote_is_not_misread(bench: Bench) -> None:
    bench.foreign([{"blob": '{"mnemic":2,"news":1}'}], metadata={OURS: {"stringValue": "1"}})
    with pytest.raises(NewerSchemaError):
        bench.keys(bench.open())


def test_a_damaged_event_is_named(bench: Bench) -> None:
    store = bench.open()
    bench.put(store, "k", **said("user", "hello"))
    (event,) = bench.events()
    with pytest.raises(UnreadableStoreError, match="has lost the text"):
        events.parse({**event, "payload": event["payload"][1:]}, "agentcore://x")
    with pytest.raises(UnreadableStoreError, match=re.escape(event["eventId"])):
        events.parse({**event, "payload": [{"blob": '{"mnemic":1,"n":"x"}'}]}, "agentcore://x")


# deleting


def test_what_is_deleted_or_changed_is_gone_from_the_service(bench: Bench) -> None:
    store = bench.open()
    secrets = [Put(record(f"m{n}", **said("user", f"secret-{n}"))) for n in range(5)]
    notes = [Put(record(f"n{n}", kind="note", text=f"secret-{n} note", title="t")) for n in range(5)]
    bench.run(store.write(Write((*secrets, *notes))))
    bench.run(store.write(Write((Derive(Ref(HOME, "note", "n1"), "x", b"secret-1 vector"),))))
    assert bench.texts().count("secret-1") == 3
    bench.run(store.write(Write((Delete(Ref(HOME, "message", "m1")), Delete(Ref(HOME, "note", "n1"))))))
    assert "secret-1" not in bench.texts()
    assert bench.texts().count("secret-2") == 3
    bench.put(store, "m2", text="changed")
    bench.put(store, "n2", kind="note", text="changed")
    assert "secret-2" not in bench.texts()
    assert bench.keys(bench.open()) == ["m0", "m2", "m3", "m4"]
    assert [one.text for one in bench.found(bench.open(), kind="note")][1] == "changed"


def test_a_limit_deletes_what_it_removes(bench: Bench) -> None:
    store = bench.open()
    for n in range(12):
        limit = Limit(HOME, "message", 3, None, ((f"k{n - 3}",),))
        bench.run(store.write(Write((Put(record(f"k{n}", **said("user", str(n)))), limit))))
        assert len(bench.events()) <= 4
    assert bench.keys(bench.open()) == ["k9", "k10", "k11"]


def test_nothing_tells_of_a_dropped_stream(bench: Bench) -> None:
    store = bench.open()
    bench.put(store, "k", kind="note", text="a note")
    bench.put(store, "m", **said("user", "hello"))
    bench.run(store.write(Write((Purge(HOME, "note", drop=True),))))
    assert "a note" not in bench.texts()
    assert bench.keys(bench.open()) == ["m"]
    bench.run(store.write(Write((Purge(HOME, "message", drop=True),))))
    assert bench.texts() == "[]"
    assert bench.put(store, "m") == 1


def test_what_could_not_be_deleted_is_deleted_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    bench.put(store, "k", text="secret", kind="note")

    async def broken(*_: Any) -> None:
        raise StoreUnavailableError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(Service, "delete_event", broken)
        patched.setattr(Service, "delete_records", broken)
        bench.run(store.write(Write((Delete(Ref(HOME, "note", "k")),))))
        assert bench.keys(store, kind="note") == []
        assert bench.keys(bench.open(), kind="note") == []
    assert "secret" in bench.texts()
    other = bench.open()
    bench.put(other, "l", kind="note")
    assert "secret" not in bench.texts()


def test_what_is_left_at_the_end_is_deleted_when_the_store_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    bench.put(store, "k", text="secret", kind="note")

    async def broken(*_: Any) -> None:
        raise StoreUnavailableError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(Service, "delete_event", broken)
        bench.run(store.write(Write((Delete(Ref(HOME, "note", "k")),))))
    bench.run(store.close())
    assert "secret" not in bench.texts()


# writes that break


class Breaking:
    """Makes one of the next events fail, before or after it is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, *, made: bool) -> None:
        self.left = after
        self.made = made
        self.create = Service.create_event
        monkeypatch.setattr(Service, "create_event", self.patched())

    def patched(self) -> Callable[..., Any]:
        async def create_event(service: Service, *args: Any, **settings: Any) -> str:
            self.left -= 1
            if self.left != -1:
                return await self.create(service, *args, **settings)
            if self.made:
                await self.create(service, *args, **settings)
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


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_large_write_that_breaks_off_is_not_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: int, made: bool
) -> None:
    store = bench.open()
    bench.put(store, "before", text="before")
    ops = tuple(Put(record(f"k{n}", **said("user", f"{n}" * 100))) for n in range(250))
    with monkeypatch.context() as patched:
        Breaking(patched, at, made=made)
        with pytest.raises(StoreUnavailableError):
            bench.run(store.write(Write(ops)))
    done = at == 2 and made
    expected = ["before", *(f"k{n}" for n in range(250))] if done else ["before"]
    assert bench.keys(store) == expected
    assert bench.keys(bench.open()) == expected
    if not done:
        bench.run(store.write(Write(ops)))
    assert len(bench.keys(bench.open())) == 251


def test_what_a_broken_write_has_left_is_deleted_one_day(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise StoreUnavailableError("the connection broke")

    store = bench.open()
    ops = tuple(Put(record(f"k{n}", **said("user", f"secret {n}"))) for n in range(250))
    with monkeypatch.context() as patched:
        Breaking(patched, 2, made=False)
        patched.setattr(Service, "delete_event", broken)
        with pytest.raises(StoreUnavailableError):
            bench.run(store.write(Write(ops)))
    assert len(bench.events()) == 2
    bench.put(bench.open(), "k")
    assert len(bench.events()) == 3
    monkeypatch.setattr(sessions, "ABANDONED", -10)
    bench.put(bench.open(), "l")
    assert "secret" not in bench.texts()


def test_a_write_to_several_scopes_that_breaks_is_taken_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    scopes = [ScopePath(f"acme/u{n}") for n in range(4)]
    bench.put(store, "old", scope=scopes[0], kind="note", text="old")
    ops = tuple(Put(record("k", scope=scope, kind="note", text="new")) for scope in scopes)
    with monkeypatch.context() as patched:
        Breaking(patched, 2, made=False)
        with pytest.raises(StoreUnavailableError):
            bench.run(store.write(Write(ops, id="several")))
    assert [bench.keys(store, scope, "note") for scope in scopes] == [["old"], [], [], []]
    assert "new" not in bench.texts()
    first = bench.run(store.write(Write(ops, id="several")))
    assert bench.run(bench.open().write(Write(ops, id="several"))) == first
    assert [bench.keys(bench.open(), scope, "note") for scope in scopes] == [["old", "k"], ["k"], ["k"], ["k"]]


# several writers


def newest_first(monkeypatch: pytest.MonkeyPatch, size: int = 3) -> None:
    """List events as AWS does, and as the emulator does not."""
    oldest_first = Service.events

    async def listed(service: Service, place: Place, *, payloads: bool) -> AsyncGenerator[list[Answer], None]:
        found = [event async for page in oldest_first(service, place, payloads=payloads) for event in page]
        found.reverse()
        for at in range(0, len(found), size):
            yield found[at : at + size]

    monkeypatch.setattr(Service, "events", listed)


@pytest.fixture(params=["oldest first", "newest first"])
def any_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "newest first":
        newest_first(monkeypatch)


@pytest.mark.usefixtures("any_order")
def test_each_handle_sees_what_the_others_did(bench: Bench) -> None:
    one, other = bench.open(), bench.open()
    for n in range(8):
        bench.put(one, f"a{n}")
        bench.put(other, f"b{n}")
        assert bench.keys(one) == bench.keys(other)
    assert [found.seq for found in bench.found(one)] == list(range(1, 17))
    bench.run(one.write(Write((Delete(Ref(HOME, "message", "b0")),))))
    bench.put(one, "a1", text="changed")
    assert bench.keys(other) == [key for key in bench.keys(one) if key != "b0"]
    assert bench.found(other)[1].text == "changed"
    bench.run(other.write(Write((Purge(HOME, "message", keep=("a3",)),))))
    assert bench.keys(one) == bench.keys(other) == ["a3"]
    bench.run(one.write(Write((Purge(HOME, "message", drop=True),))))
    assert bench.keys(other) == []
    assert bench.put(other, "new") == 1
    assert bench.keys(one) == ["new"]


@pytest.mark.usefixtures("any_order")
def test_what_two_wrote_at_the_same_moment_is_all_there_in_one_order(bench: Bench) -> None:
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
    seen = [bench.found(store) for store in (*stores, bench.open())]
    for found in seen:
        assert [(one.key, one.seq, one.version) for one in found] == [(o.key, o.seq, o.version) for o in seen[0]]
        for writer in range(3):
            own = [one.key for one in found if one.key.startswith(f"{writer}-")]
            assert own == [f"{writer}-{n}" for n in range(10)]
    bench.put(stores[0], "last", weight=1)
    for store in (*stores, bench.open()):
        found = bench.found(store)
        assert len(found) == len({one.seq for one in found}) == len({one.version for one in found}) == 31
        assert found[-1].key == "last"
        (stream,) = bench.run(store.streams(StreamScan(scope=HOME, below=False))).items
        assert (stream.count, stream.weight, stream.last_seq) == (31, 31, found[-1].seq)


def test_a_guarded_write_sees_what_others_did_before_it(bench: Bench) -> None:
    one, other = bench.open(), bench.open()
    version = bench.run(one.write(Write((Put(record("k")),))))[0].version
    bench.put(other, "k", text="theirs")
    with pytest.raises(ConflictError):
        bench.run(one.write(Write((Put(record("k"), version),))))
    with pytest.raises(ConflictError):
        bench.run(one.write(Write((Expect(HOME, "message", version), Put(record("l"))))))


def test_an_event_that_is_not_listed_yet_is_not_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    bench.put(store, "a")
    bench.put(store, "b")
    hidden = bench.events()[-1]["eventId"]
    listed = Service.events

    async def late(service: Service, place: Place, *, payloads: bool) -> AsyncGenerator[list[Answer], None]:
        async for page in listed(service, place, payloads=payloads):
            yield [event for event in page if event["eventId"] != hidden]

    with monkeypatch.context() as patched:
        patched.setattr(Service, "events", late)
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
    monkeypatch.setattr(sessions, "MOST_CACHED", 1000)
    store = bench.open()
    for n in range(6):
        bench.put(store, "k", scope=ScopePath(f"u/s{n}"), text="x" * 300)
        bench.put(store, "l", scope=ScopePath(f"u/s{n % 3}"), text="y" * 300)
    page = bench.run(store.scan(Scan(scope=ScopePath("u"), below=True)))
    assert [(one.scope.name, one.key, one.seq) for one in page.items] == [
        *((f"s{n}", key, seq) for n in range(3) for seq, key in ((1, "k"), (2, "l"))),
        *((f"s{n}", "k", 1) for n in range(3, 6)),
    ]


# branches


def test_a_branch_begins_as_the_main_one_and_goes_its_own_way(bench: Bench) -> None:
    main = bench.open()
    for n in range(3):
        bench.put(main, f"k{n}", **said("user", f"turn {n}"))
    newest = bench.events()[-1]["eventId"]
    branch = bench.open(branch="other-way")
    assert bench.keys(branch) == ["k0", "k1", "k2"]
    assert bench.put(branch, "b3", **said("user", "another turn")) == 4
    assert bench.put(main, "k3") == 4
    bench.run(branch.write(Write((Delete(Ref(HOME, "message", "k1")),))))
    bench.run(main.write(Write((Delete(Ref(HOME, "message", "k0")),))))
    for store, keys in (
        (main, ["k1", "k2", "k3"]),
        (branch, ["k0", "k2", "b3"]),
        (bench.open(), ["k1", "k2", "k3"]),
        (bench.open(branch="main"), ["k1", "k2", "k3"]),
        (bench.open(branch="other-way"), ["k0", "k2", "b3"]),
        (bench.open(branch="third"), ["k1", "k2", "k3"]),
    ):
        assert bench.keys(store) == keys
    of_branch = [event["branch"] for event in bench.events() if "branch" in event]
    assert {one["name"] for one in of_branch} == {"other-way"}
    assert {one.get("rootEventId", newest) for one in of_branch} == {newest}
    bench.run(branch.write(Write((Purge(HOME, "message", drop=True),))))
    assert bench.keys(bench.open(branch="other-way")) == []
    assert bench.keys(main) == ["k1", "k2", "k3"]


def test_a_branch_of_nothing_has_an_event_to_begin_at(bench: Bench) -> None:
    branch = bench.open(branch="b")
    bench.put(branch, "k", kind="note", text="a note")
    root, first = bench.events()
    assert first["branch"] == {"name": "b", "rootEventId": root["eventId"]}
    assert "branch" not in root
    main = bench.open()
    assert bench.keys(main, kind="note") == []
    bench.put(main, "m", kind="note")
    assert bench.keys(bench.open(branch="b"), kind="note") == ["k"]
    assert bench.keys(bench.open(), kind="note") == ["m"]


def test_a_branch_leaves_the_memory_records_of_the_main_one_alone(bench: Bench) -> None:
    main = bench.open()
    bench.put(main, "k", kind="note", text="the harbour at night")
    branch = bench.open(branch="b")
    bench.put(branch, "l", kind="note", text="the harbour by day")
    assert [hit.key for hit, _ in bench.run(branch.retrieve(HOME, "harbour"))] == ["k"]
    bench.run(branch.write(Write((Delete(Ref(HOME, "note", "k")),))))
    assert bench.run(branch.retrieve(HOME, "harbour")) == []
    assert [hit.key for hit, _ in bench.run(main.retrieve(HOME, "harbour"))] == ["k"]


# memory records


def test_the_search_of_the_service_finds_what_is_remembered(bench: Bench) -> None:
    store = bench.open()
    texts = {"boat": "a red boat in the harbour", "cat": "a cat asleep on the sofa", "sea": "boat and sea"}
    for key, text in texts.items():
        bench.put(store, key, kind="note", text=text, data={"n": [1, 2.5]}, labels={"a": "b"})
    bench.put(store, "m", **said("user", "a red boat"))
    hits = bench.run(store.retrieve(HOME, "red boat", 5))
    assert [(hit.key, score) for hit, score in hits] == [("boat", 1.0), ("sea", 0.5)]
    assert hits[0][0] == bench.run(store.read([Ref(HOME, "note", "boat")]))[0]
    assert [hit.key for hit, _ in bench.run(bench.open().retrieve(HOME, "red boat", 1))] == ["boat"]
    bench.put(store, "boat", kind="note", text="a green ship")
    bench.put(store, "sea", kind="note", text=None)
    assert bench.run(store.retrieve(HOME, "red boat")) == []
    assert [hit.key for hit, _ in bench.run(store.retrieve(HOME, "green ship"))] == ["boat"]
    expires = datetime.now(UTC) - timedelta(seconds=1)
    bench.put(store, "cat", kind="note", text="a cat asleep on the sofa", expires=expires)
    assert bench.run(store.retrieve(HOME, "cat")) == []
    assert bench.run(store.retrieve(HOME, " ")) == bench.run(store.retrieve(HOME, "cat", 0)) == []
    assert bench.run(store.retrieve(ScopePath("acme/bob"), "green ship")) == []


def test_without_recall_no_memory_records_are_made(bench: Bench) -> None:
    bench.put(bench.open(), "k", kind="note", text="one")
    store = bench.open(recall="0")
    bench.put(store, "l", kind="note", text="two")
    assert bench.texts().count("'content'") == 1
    bench.put(store, "k", kind="note", text="other")
    assert bench.texts().count("'content'") == 0
    assert bench.run(store.retrieve(HOME, "other")) == []


def test_many_memory_records_are_made_at_once(bench: Bench) -> None:
    store = bench.open()
    ops = tuple(Put(record(f"k{n}", kind="note", text=f"note number{n} of many")) for n in range(230))
    bench.run(store.write(Write(ops)))
    assert len(bench.run(store.retrieve(HOME, "many notes", 500))) == 100
    assert [hit.key for hit, _ in bench.run(store.retrieve(HOME, "number229", 500))] == ["k229"]
    bench.run(store.write(Write((Purge(HOME, "note"),))))
    assert "'content'" not in bench.texts()


def test_what_is_to_last_is_held_anew_before_the_service_deletes_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open(renew="3")
    bench.put(store, "n", kind="note", text="a note")
    bench.put(store, "m", **said("user", "hello"))
    before = {event["eventId"] for event in bench.events()}
    later = time.time() + 5 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    bench.put(store, "o", kind="note", text="another")
    kept = {event["eventId"] for event in bench.events()} & before
    assert len(kept) == 1
    again = bench.open()
    assert (bench.keys(again, kind="note"), bench.keys(again)) == (["n", "o"], ["m"])


# what goes wrong


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, bench: Bench, error: Exception) -> Iterator[AgentCoreStore]:
    """Lend a store each of whose requests fails."""
    store = bench.open()
    client = store._engine.service._requests.calls.client

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
    operations = ("CreateEvent", "ListEvents", "ListActors", "ListSessions", "RetrieveMemoryRecords")
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
                lambda: bench.run(store.retrieve(HOME, "x")),
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
        ("good-abcdef1234", "branch=a.b"),
        ("good-abcdef1234", "recall=maybe"),
        ("good-abcdef1234", "renew=-1"),
        ("good-abcdef1234", "renew=x"),
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


def test_a_client_that_knows_less_will_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "_takes", lambda *_: False)
    store = bench.open()
    bench.run(store.write(Write(tuple(Put(record(f"k{n}", **said("user", "x"))) for n in range(3)))))
    bench.run(store.write(Write((Delete(Ref(HOME, "message", "k1")),))))
    bench.put(store, "n", kind="note", text="a note")
    page = bench.run(bench.open().streams(StreamScan(scope=ScopePath())))
    assert [(stream.kind, stream.count) for stream in page.items] == [("message", 2), ("note", 1)]
    assert [hit.key for hit, _ in bench.run(store.retrieve(HOME, "note"))] == ["n"]
