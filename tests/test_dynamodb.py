"""DynamoDB: large values and writes, numbers, expiry, throttling, broken connections, concurrent writers."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import pytest
from botocore import exceptions as boto
from hypothesis import given
from hypothesis import strategies as st

from mnemic.backends.dynamodb import BACKEND, codec, hash_layout, large_writes
from mnemic.backends.dynamodb import client as requests
from mnemic.backends.dynamodb import store as engine
from mnemic.backends.dynamodb.layout import CUT, listed_as
from mnemic.backends.dynamodb.store import DynamoEngine
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.errors import ConflictError, StoreBusyError, StoreUnavailableError, TooLargeError
from mnemic.records import Record, Ref, ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Store, all_streams, scan_all
from mnemic.store.query import Condition, Delete, Derive, Op, Purge, Put, Scan, StreamScan, Write
from mnemic.store.registry import StoreURL
from servers import aws as servers

SCOPE = ScopePath("acme/alice")
KIND = "note"
Run = Callable[[Any], Any]


LAYOUTS = ("own", "hash")


@pytest.fixture(params=LAYOUTS)
def url(request: pytest.FixtureRequest) -> Iterator[StoreURL]:
    """The URL of an empty table, of each layout."""
    with servers.empty_table(layout=request.param) as text:
        yield StoreURL.parse(text)


@asynccontextmanager
async def opened(url: StoreURL) -> AsyncGenerator[KeyValueStore, None]:
    store = await BACKEND.open(url)
    assert isinstance(store, KeyValueStore)
    try:
        yield store
    finally:
        await store.close()


def engine_of(store: KeyValueStore) -> DynamoEngine:
    found = store._engine
    assert isinstance(found, DynamoEngine)
    return found


def calls_of(engine: DynamoEngine) -> Any:
    return engine._table.requests.calls


def note(key: str, **fields: Any) -> Put:
    return Put(Record(scope=fields.pop("scope", SCOPE), kind=KIND, key=key, **fields))


async def get(store: Store, key: str) -> Record | None:
    return (await store.read([Ref(SCOPE, KIND, key)]))[0]


async def keys(store: Store, **asked: Any) -> list[str]:
    scan = Scan(**{"scope": SCOPE, "kinds": (KIND,), **asked})
    return [record.key async for record in scan_all(store, scan)]


def items(url: StoreURL) -> list[dict[str, Any]]:
    """Return all that is in the table."""
    client = servers.client("dynamodb", url.options)
    pages = client.get_paginator("scan").paginate(TableName=url.split.netloc, ConsistentRead=True)
    return [item for page in pages for item in page["Items"]]


def parts(url: StoreURL) -> int:
    """Return how many chunks of large values are in the table."""
    return sum("token" in item for item in items(url))


class Flaky:
    """A client whose operations can be replaced."""

    def __init__(self, client: Any, **operations: Callable[[Any, dict[str, Any]], Any]) -> None:
        self._client = client
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)
        if name not in self._operations:
            return real

        async def instead(**parameters: Any) -> Any:
            return await self._operations[name](real, parameters)

        return instead


def cancelled(*codes: str | None) -> boto.ClientError:
    answer = {
        "Error": {"Code": "TransactionCanceledException", "Message": "why"},
        "CancellationReasons": [{"Code": code, "Message": "Item size is too large"} for code in codes],
    }
    return boto.ClientError(answer, "TransactWriteItems")


def refused(code: str) -> boto.ClientError:
    return boto.ClientError({"Error": {"Code": code, "Message": "why"}}, "X")


NUMBERS = [
    0.0, -0.0, 0.1, -2.5, 1e300, -1e300, 5e-324, 1.7976931348623157e308, 123456789.123456789, 1e22,
]  # fmt: skip


def test_numbers_are_stored_exactly(url: StoreURL) -> None:
    async def main() -> None:
        async with opened(url) as store:
            for number in NUMBERS:
                data = {"float": number, "int": 2**1000, "small": -(2**63), "list": [1, 1.0, True, None]}
                await store.write(Write((note("k", importance=number, data=data, weight=2**53),)))
                found = await get(store, "k")
                assert found is not None
                assert (repr(found.importance), repr(found.data)) == (repr(number), repr(data))
                assert found.weight == 2**53
            await store.write(Write((note("k"),)))
            found = await get(store, "k")
            assert found is not None
            assert found.importance is None

    asyncio.run(main())


def test_the_largest_record_is_stored_and_leaves_no_chunks_behind(url: StoreURL) -> None:
    text = 'é\n"' * (8 * 1024 * 1024 // 3)

    async def main() -> None:
        async with opened(url) as store:
            await store.write(Write((note("k", text=text), Derive(Ref(SCOPE, KIND, "k"), "x", b"\xff" * 500_000))))
            found = await get(store, "k")
            assert found is not None
            assert found.text == text
            scan = Scan(scope=SCOPE, kinds=(KIND,), derived=("x",))
            assert [r.derived async for r in scan_all(store, scan)] == [{"x": b"\xff" * 500_000}]
            before = parts(url)
            assert before > 30
        async with opened(url) as store:
            await store.write(Write((note("k", text="small"), note("other", text="x" * 1_000_000))))
            assert parts(url) == 2 + 3
            await store.write(Write((Derive(Ref(SCOPE, KIND, "k"), "x", b"small"),)))
            assert [r.text async for r in scan_all(store, scan)] == ["small", "x" * 1_000_000]
        async with opened(url) as store:
            await store.write(Write((Delete(Ref(SCOPE, KIND, "other")),)))
            assert parts(url) == 0
            await store.write(Write((note("other", text=text), Delete(Ref(SCOPE, KIND, "other")))))
            await store.write(Write((note("other", text=text[:400_000]),)))
            await store.write(Write((Purge(SCOPE, KIND, drop=True),)))
        assert [item for item in items(url) if "names" in item or "part" not in item] == []

    asyncio.run(main())


def test_a_write_of_many_records_with_an_id_is_done_once(url: StoreURL) -> None:
    count = 1200

    async def main() -> None:
        ops = tuple(note(f"k{n}", text="hello", labels={"n": str(n % 3)} if n < 300 else {}) for n in range(count))
        async with opened(url) as store:
            first = await store.write(Write(ops, id="once"))
            assert [outcome.seq for outcome in first] == list(range(1, count + 1))
            assert await store.write(Write(ops, id="once")) == first
            assert await keys(store) == [f"k{n}" for n in range(count)]
            where = (Condition("labels.n", "eq", "1"),)
            assert await keys(store, where=where) == [f"k{n}" for n in range(1, 300, 3)]
            gone = tuple(Delete(Ref(SCOPE, KIND, f"k{n}")) for n in range(0, count, 2))
            await store.write(Write(gone))
            assert await keys(store, reverse=True, limit=500) == [f"k{n}" for n in range(count - 1, 0, -2)]
        assert not [item for item in items(url) if "digest" in item]

    asyncio.run(main())


MANY = [f"k{n:02}" for n in range(6)]

LARGE: dict[str, tuple[Op, ...]] = {
    "changes": (
        *(note(key, text="2", labels={"a": "c"}) for key in MANY[::2]),
        *(Delete(Ref(SCOPE, KIND, key)) for key in MANY[1::2]),
        *(note(f"new{n}", text="2", labels={"a": "b"}) for n in range(3)),
    ),
    "drops": (Purge(SCOPE, KIND, drop=True),),
    "drops and appends": (Purge(SCOPE, KIND, drop=True), *(note(key, text="2") for key in MANY)),
    "derives": tuple(Derive(Ref(SCOPE, KIND, key), "x", b"2") for key in MANY),
}
"""Writes of more items than a transaction takes, if it takes six."""


def in_turn(cases: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return cases with a layout each, in turn: large writes take long, and are the same in both."""
    listed = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [(layout, *case) for layout, case in zip(cycle(LAYOUTS), listed)]


State = dict[str, tuple[str | None, bytes | None]]


@pytest.fixture
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (large_writes, engine):
        monkeypatch.setattr(module, "MOST_ITEMS", 6)
    monkeypatch.setattr(codec, "WHOLE", 1000)


async def filled(store: Store) -> None:
    await store.write(Write((Purge(SCOPE, KIND, drop=True),)))
    ops = [note(key, text="1", labels={"a": "b"}, derived={"x": b"1"}) for key in MANY]
    await store.write(Write((*ops, note("large", text="x" * 2000, labels={"a": "b"}))))


async def state(store: Store, **asked: Any) -> State:
    page = await store.scan(Scan(scope=SCOPE, kinds=(KIND,), derived=("x",), limit=1000, **asked))
    return {r.key: (r.text, r.derived.get("x")) for r in page.items}


async def reading(store: Store) -> State:
    found = await store.read([Ref(SCOPE, KIND, key) for key in ("large", *MANY, *(f"new{n}" for n in range(3)))])
    return {r.key: (r.text, None) for r in found if r is not None}


READS: dict[str, Callable[[Store], Any]] = {
    "forwards": state,
    "backwards": lambda store: state(store, reverse=True),
    "by label": lambda store: state(store, where=(Condition("labels.a", "eq", "b"),)),
    "by key": reading,
}


async def outcome_of(url: StoreURL, op: tuple[Op, ...], read: Callable[[Store], Any]) -> tuple[State, State]:
    """Return what is read before a large write and after it."""
    async with opened(url) as store:
        await filled(store)
        before = await read(store)
        await store.write(Write(op))
        return before, await read(store)


def steps_of(store: KeyValueStore, step: Callable[[], Any], *operations: str) -> None:
    """Have a call made before each request of these operations."""

    async def stepping(real: Any, parameters: dict[str, Any]) -> Any:
        await step()
        return await real(**parameters)

    calls = calls_of(engine_of(store))
    calls.client = Flaky(calls.client, **dict.fromkeys(operations, stepping))


@pytest.mark.parametrize(("url", "kind"), in_turn(LARGE), indirect=["url"])
@pytest.mark.usefixtures("small_transactions")
def test_a_large_write_that_breaks_off_is_done_wholly_or_not_at_all(url: StoreURL, kind: str) -> None:
    seen = set()

    async def broken(after: int, old: State, new: State) -> bool:
        """Write on a connection that breaks after some requests; return whether the write came to its end."""
        left = after

        async def breaking(real: Any, parameters: dict[str, Any]) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                await real(**parameters)  # done, but the answer is lost
            if left <= 0:
                raise boto.ConnectionClosedError(endpoint_url="x")
            return await real(**parameters)

        async with opened(url) as store:
            await filled(store)
            calls = calls_of(engine_of(store))
            calls.client = Flaky(calls.client, transact_write_items=breaking, batch_write_item=breaking)
            try:
                await store.write(Write(LARGE[kind]))
            except StoreUnavailableError:
                done = False
            else:
                done = True
        async with opened(url) as store:
            listed = [(s.count, s.version) async for s in all_streams(store, StreamScan(scope=SCOPE))]
            found = await state(store)
            assert found in (old, new), after
            assert sum(count for count, _ in listed) == len(found)
            seen.add(found == new)
            if done:
                assert found == new
            await store.write(Write((note("last", labels={"a": "b"}),)))
            assert {*await keys(store)} == {*found, "last"}
            labeled = await keys(store, where=(Condition("labels.a", "eq", "b"),))
            assert labeled == [r.key async for r in scan_all(store, Scan(scope=SCOPE)) if r.labels == {"a": "b"}]
            (stream,) = [s async for s in all_streams(store, StreamScan(scope=SCOPE))]
            assert stream.count == len(found) + 1
        return done

    async def main() -> None:
        old, new = await outcome_of(url, LARGE[kind], state)
        assert old != new
        after = 0
        while not await broken(after, old, new):
            after += 1
        assert after > 4

    asyncio.run(main())
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("url", "kind", "read"),
    in_turn((kind, read) for kind in LARGE for read in READS if (kind, read) != ("derives", "by key")),
    indirect=["url"],
)
@pytest.mark.usefixtures("small_transactions")
def test_a_large_write_is_never_seen_in_part(url: StoreURL, kind: str, read: str) -> None:
    """Between any two requests of a reader, a writer does any number of its own."""

    async def pair(reader: KeyValueStore, writer: KeyValueStore, pause: int, steps: int) -> tuple[int, int]:
        """Do a number of the writer's requests before one of the reader's; return how many both have made."""
        await filled(writer)
        await READS[read](reader)
        clients = [(calls, calls.client) for calls in (calls_of(engine_of(store)) for store in (reader, writer))]
        made = {"reader": 0, "writer": 0}
        stalled, go_on = asyncio.Event(), asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        async def writing() -> None:
            made["writer"] += 1
            if made["writer"] > steps:
                stalled.set()
                await go_on.wait()

        async def written() -> None:
            await writer.write(Write(LARGE[kind]))
            stalled.set()

        async def waiting() -> None:
            made["reader"] += 1
            if made["reader"] == pause:
                tasks.append(asyncio.create_task(written()))
                await stalled.wait()

        steps_of(writer, writing, "transact_write_items", "batch_write_item")
        steps_of(reader, waiting, "query", "batch_get_item")
        found = await READS[read](reader)
        go_on.set()
        await asyncio.gather(*tasks)
        for calls, client in clients:
            calls.client = client
        # A scan by label looks up the label, then reads the records.
        between = {key: new[key] for key in old if key in new} if read == "by label" else old
        assert found in (old, new, between), (pause, steps)
        assert await READS[read](reader) == (new if tasks else old)
        return made["reader"], made["writer"]

    old: State = {}
    new: State = {}

    async def main() -> None:
        before, after = await outcome_of(url, LARGE[kind], READS[read])
        old.update(before)
        new.update(after)
        assert old != new
        async with opened(url) as reader, opened(url) as writer:
            asked, sent = await pair(reader, writer, 1, 1000)
            assert sent > 4
            pairs = [(pause, steps) for pause in range(1, asked + 1) for steps in range(sent)]
            for pause, steps in random.Random(kind + read).sample(pairs, min(len(pairs), 8)):
                await pair(reader, writer, pause, steps)

    asyncio.run(main())


@pytest.mark.parametrize(("url", "kind"), in_turn(reversed(LARGE)), indirect=["url"])
@pytest.mark.usefixtures("small_transactions")
def test_a_writer_completes_the_large_write_of_another(url: StoreURL, kind: str) -> None:
    """One writer stops at some request of a large write, another one purges the stream, and the first goes on."""

    async def pair(slow: KeyValueStore, fast: KeyValueStore, steps: int) -> int:
        await filled(slow)
        made = 0
        stalled, go_on = asyncio.Event(), asyncio.Event()

        async def writing() -> None:
            nonlocal made
            made += 1
            if made > steps:
                stalled.set()
                await go_on.wait()

        async def written() -> None:
            await slow.write(Write(LARGE[kind]))
            stalled.set()

        calls = calls_of(engine_of(slow))
        real = calls.client
        steps_of(slow, writing, "transact_write_items", "batch_write_item")
        task = asyncio.create_task(written())
        await stalled.wait()
        await fast.write(Write((Purge(SCOPE, KIND, keep=(MANY[0],)), note("last", labels={"a": "b"}))))
        go_on.set()
        await task
        calls.client = real
        found = [record async for record in scan_all(fast, Scan(scope=SCOPE))]
        assert [s.count async for s in all_streams(fast, StreamScan(scope=SCOPE))] == [len(found)] * bool(found)
        if not kind.startswith("drops"):
            assert "last" in {record.key for record in found}
        labeled = await keys(slow, where=(Condition("labels.a", "eq", "b"),))
        assert labeled == [record.key for record in found if record.labels == {"a": "b"}]
        return made

    async def main() -> None:
        async with opened(url) as slow, opened(url) as fast:
            sent = await pair(slow, fast, 1000)
            for steps in range(sent):
                await pair(slow, fast, steps)

    asyncio.run(main())


def test_a_late_writer_does_not_apply_steps_that_others_have_applied(url: StoreURL) -> None:
    """One process stalls in the middle of a large write; others complete it, and go on."""

    async def main() -> None:
        stalled, go_on = asyncio.Event(), asyncio.Event()
        count = 0

        async def stalling(real: Any, parameters: dict[str, Any]) -> Any:
            nonlocal count
            count += any("Update" in a or "Put" in a for a in parameters["TransactItems"])
            if len(parameters["TransactItems"]) > 50 and not go_on.is_set():
                stalled.set()
                await go_on.wait()
            return await real(**parameters)

        async with opened(url) as slow, opened(url) as fast:
            await slow.write(Write((note("k000"),)))
            calls = calls_of(engine_of(slow))
            calls.client = Flaky(calls.client, transact_write_items=stalling)
            work = asyncio.create_task(slow.write(Write(tuple(note(f"k{n:03}", text="1") for n in range(400)))))
            await stalled.wait()
            assert len(await keys(fast)) == 400
            await fast.write(Write((Delete(Ref(SCOPE, KIND, "k000")), note("k001", text="2"))))
            go_on.set()
            await work
            assert len(await keys(fast)) == 399
            found = await get(fast, "k001")
            assert found is not None
            assert found.text == "2"
            assert await keys(slow) == await keys(fast)

    asyncio.run(main())


def test_a_write_whose_answer_is_lost_is_retried_and_done_once(url: StoreURL) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await store.write(Write((note("a"),)))
            session = calls_of(engine_of(store)).client._endpoint.http_session
            send, lost = session.send, list[bytes]()

            async def losing(request: Any) -> Any:
                answer = await send(request)
                if not lost and b"TransactWriteItems" in request.headers["X-Amz-Target"]:
                    lost.append(await answer.content)
                    raise boto.ConnectionClosedError(endpoint_url="x")
                return answer

            session.send = losing
            (outcome,) = await store.write(Write((Put(Record(SCOPE, KIND, "b"), 0),)))
            assert lost
            assert outcome.seq == 2
            (stream,) = [s async for s in all_streams(store, StreamScan(scope=SCOPE))]
            assert (stream.count, stream.version) == (2, 2)

    asyncio.run(main())


def test_conflicting_transactions_are_retried(url: StoreURL, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        conflicts = [
            cancelled("TransactionConflict", "None"),
            cancelled("None", "ThrottlingError"),
            cancelled("ProvisionedThroughputExceeded", None),
        ]

        async def conflicting(real: Any, parameters: dict[str, Any]) -> Any:
            if conflicts:
                raise conflicts.pop()
            return await real(**parameters)

        async with opened(url) as store:
            calls = calls_of(engine_of(store))
            client = calls.client
            calls.client = Flaky(client, transact_write_items=conflicting)
            (outcome,) = await store.write(Write((note("a"),)))
            assert (outcome.seq, conflicts) == (1, [])
            monkeypatch.setattr(requests, "TRIES", 2)
            conflicts = [cancelled("TransactionConflict")] * 5
            with pytest.raises(StoreBusyError):
                await store.write(Write((note("b"),)))
            conflicts = [refused("ProvisionedThroughputExceededException")]
            with pytest.raises(StoreBusyError):
                await store.write(Write((note("b"),)))
            calls.client = client

    asyncio.run(main())


def test_unprocessed_requests_are_retried(url: StoreURL, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        name = url.split.netloc

        async def reading(real: Any, parameters: dict[str, Any]) -> Any:
            asked = parameters["RequestItems"][name]
            answer = await real(RequestItems={name: {**asked, "Keys": asked["Keys"][:7]}})
            if rest := asked["Keys"][7:]:
                answer["UnprocessedKeys"] = {name: {**asked, "Keys": rest}}
            return answer

        async def writing(real: Any, parameters: dict[str, Any]) -> Any:
            asked = parameters["RequestItems"][name]
            answer = await real(RequestItems={name: asked[:1]})
            if rest := asked[1:]:
                answer["UnprocessedItems"] = {name: rest}
            return answer

        async with opened(url) as store:
            calls = calls_of(engine_of(store))
            client = calls.client
            calls.client = Flaky(client, batch_get_item=reading, batch_write_item=writing)
            await store.write(Write((note("large", text="x" * 2_000_000),)))
            await store.write(Write(tuple(note(f"k{n}") for n in range(30))))
            refs = [Ref(SCOPE, KIND, f"k{n}") for n in range(30)]
            assert [r and r.key for r in await store.read(refs)] == [f"k{n}" for n in range(30)]
            assert await keys(store) == ["large", *(f"k{n}" for n in range(30))]
            found = await get(store, "large")
            assert found is not None
            assert len(found.text or "") == 2_000_000

            async def nothing(_: Any, parameters: dict[str, Any]) -> Any:
                return {"Responses": {}, "UnprocessedKeys": parameters["RequestItems"]}

            monkeypatch.setattr(requests, "TRIES", 2)
            calls.client = Flaky(client, batch_get_item=nothing)
            with pytest.raises(StoreBusyError):
                await get(store, "large")
            calls.client = client

    asyncio.run(main())


def test_expiring_records_have_a_ttl_and_may_be_deleted_by_dynamodb(url: StoreURL) -> None:
    async def main() -> None:
        soon = datetime.now(UTC) + timedelta(hours=1)
        async with opened(url) as store:
            labels = {"a": "b"}
            await store.write(
                Write((note("stays", weight=1), note("goes", expires=soon, weight=5, labels=labels)), id="w")
            )
            marked = [item for item in items(url) if "ttl" in item]
            first, noted = sorted({int(item["ttl"]["N"]) for item in marked})
            assert first == int(soon.timestamp()) + 1
            assert noted > time.time() + 80_000  # of the id, which is remembered for a day
            store.clock = lambda: soon + timedelta(seconds=1)
            client = servers.client("dynamodb", url.options)
            for item in marked:  # as DynamoDB does, sooner or later
                key = {name: item[name] for name in ("pk", "sk", "session_id") if name in item}
                client.delete_item(TableName=url.split.netloc, Key=key)
            assert await keys(store) == ["stays"]
            (stream,) = [s async for s in all_streams(store, StreamScan(scope=SCOPE))]
            assert (stream.count, stream.weight) == (1, 1)
            (outcome,) = await store.write(Write((note("goes", weight=2),)))
            assert outcome.seq == 3
            (stream,) = [s async for s in all_streams(store, StreamScan(scope=SCOPE))]
            assert (stream.count, stream.weight) == (2, 3)
            await store.write(Write((note("goes", weight=2),)))
            assert not [item for item in items(url) if "ttl" in item]

    asyncio.run(main())


def test_records_that_do_not_fit_an_item_are_refused(url: StoreURL) -> None:
    async def main() -> None:
        many = {f"{n}": "x" * 400 for n in range(90)}
        too_many = {f"{n}": "x" * 400 for n in range(400)}
        values = {f"v{n}": b"x" * 7000 for n in range(20)}
        async with opened(url) as store:
            await store.write(Write((note("k", labels=many, text="x" * 190_000, derived=values),)))
            for ops in ((note("l", labels=too_many),), tuple(note(f"l{n}", labels=too_many) for n in range(120))):
                with pytest.raises(TooLargeError):
                    await store.write(Write(ops))
            await store.write(Write((note("m", labels={f"{n}": "x" for n in range(300)}),)))
            assert await keys(store, where=(Condition("labels.7", "in", ("x", "x" * 400)),)) == ["k", "m"]
            scan = Scan(scope=SCOPE, kinds=(KIND,), derived=tuple(values), limit=1)
            assert (await store.scan(scan)).items[0].derived == values

            async def large(real: Any, parameters: dict[str, Any]) -> Any:
                raise cancelled("ValidationError")

            calls = calls_of(engine_of(store))
            client = calls.client
            calls.client = Flaky(client, transact_write_items=large)
            with pytest.raises(TooLargeError, match="Item size"):
                await store.write(Write((note("n"),)))
            calls.client = client

    asyncio.run(main())


def test_long_names_are_distinct_and_in_order(url: StoreURL) -> None:
    longest = ["😀" * 200] * 2
    scopes = [ScopePath.of(*longest, last) for last in ("a", "b", "é", "z" * 199, "z" * 200, "😀" * 200, "😀" * 199)]
    scopes += [ScopePath("/".join(["x" * 200, "y" * n, "z"])) for n in range(10, 26, 2)]
    scopes += [ScopePath("/".join(["x" * 200, "y" * n + "é" * 3, "z"])) for n in range(8, 26, 3)]
    scopes += [scopes[0].parent, ScopePath("😀"), ScopePath("x" * 200)]
    long_keys = ["😀" * 500, "😀" * 499 + "a", "k" * 500, "k"]

    async def main() -> None:
        _, memory = registry.find("memory://")
        model = await memory.open(StoreURL.parse("memory://"))
        async with opened(url) as store:
            for each in (store, model):
                for scope in scopes:
                    await each.write(Write(tuple(note(key, scope=scope, text=key) for key in long_keys)))
            for key in long_keys:
                (found,) = await store.read([Ref(scopes[0], KIND, key)])
                assert found is not None
                assert found.text == key
            for where in (ScopePath(), *scopes[::3], ScopePath("x" * 200), scopes[0].parent.parent):
                for reverse in (False, True):
                    asked = Scan(scope=where, below=True, reverse=reverse, limit=9)
                    assert [r.ref async for r in scan_all(store, asked)] == [
                        r.ref async for r in scan_all(model, asked)
                    ]
                for limit in (2, 100):
                    names = StreamScan(scope=where, limit=limit)
                    assert [s.scope async for s in all_streams(store, names)] == [
                        s.scope async for s in all_streams(model, names)
                    ]

    asyncio.run(main())


def test_the_list_of_streams_of_a_hash_only_table_grows_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_layout, "MOST_NAMES", 3)

    async def listed(store: Store) -> list[str]:
        return [s.scope.name async for s in all_streams(store, StreamScan(scope=ScopePath("u"), empty=True))]

    async def main(url: StoreURL) -> None:
        names = [f"s{n:03}" for n in range(3)]
        async with opened(url) as one, opened(url) as two:
            for n, name in enumerate(names):
                await (one, two)[n % 2].write(Write((note("k", scope=ScopePath.of("u", name)),)))
            assert await listed(one) == await listed(two) == names
            async with opened(url) as three:
                assert await listed(three) == names
                for name in names[::2]:
                    await three.write(Write((Purge(ScopePath.of("u", name), KIND, drop=True),)))
                    await three.write(Write((note("k", scope=ScopePath.of("u", f"{name}-new")),)))
            left = sorted([*names[1::2], *(f"{name}-new" for name in names[::2])])
            assert await listed(one) == left
            for name in left:
                await two.write(Write((Purge(ScopePath.of("u", name), KIND, drop=True),)))
            assert await listed(one) == []
        assert not [item for item in items(url) if "names" in item]

    with servers.empty_table(layout="hash") as text:
        asyncio.run(main(StoreURL.parse(text)))


def test_few_records_among_many_seqs_are_found_with_few_requests() -> None:
    """On a table without an index of seqs, a long history costs nothing once it is gone."""

    async def main(url: StoreURL) -> None:
        async with opened(url) as store:
            await store.write(Write(tuple(note(f"k{n}") for n in range(3000))))
            await store.write(Write((Purge(SCOPE, KIND, keep=("k0", "k7", "k2000")),)))
            asked = 0

            async def counting(real: Any, parameters: dict[str, Any]) -> Any:
                nonlocal asked
                asked += len(parameters["RequestItems"][url.split.netloc]["Keys"])
                return await real(**parameters)

            calls = calls_of(engine_of(store))
            calls.client = Flaky(calls.client, batch_get_item=counting)
            assert await keys(store) == ["k0", "k7", "k2000"]
            assert await keys(store, reverse=True, limit=1) == ["k2000", "k7", "k0"]
            assert asked < 40

    with servers.empty_table(layout="hash") as text:
        asyncio.run(main(StoreURL.parse(text)))


def test_a_recreated_stream_is_not_mistaken_for_the_old_one(url: StoreURL) -> None:
    async def main() -> None:
        where = (Condition("labels.a", "eq", "b"),)
        async with opened(url) as one, opened(url) as two:
            labels = {"a": "b"}
            await one.write(Write((note("x", labels=labels), note("y", labels=labels))))
            assert await keys(one, where=where) == ["x", "y"]
            await two.write(Write((Purge(SCOPE, KIND, drop=True),)))
            await two.write(Write((note("y", labels=labels), note("x", labels=labels))))
            assert await keys(one, where=where) == ["y", "x"]
            with pytest.raises(ConflictError):
                await one.write(Write((Put(Record(SCOPE, KIND, "x"), 0),)))
            await one.write(Write((note("z"),)))
            assert await keys(two) == ["y", "x", "z"]

    asyncio.run(main())


WRITER = """
import asyncio, sys
from mnemic.records import Record, ScopePath
from mnemic.store import registry
from mnemic.store.query import Put, Write

async def main(text, writer):
    url, backend = registry.find(text)
    store = await backend.open(url)
    for n in range(15):
        record = Record(ScopePath("acme/alice"), "note", f"{writer}-{n}", weight=1)
        await store.write(Write((Put(record, 0),)))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_write_to_one_stream_lose_nothing(url: StoreURL) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, url.text, str(n)]) for n in range(3)]
    assert [process.wait(240) for process in processes] == [0, 0, 0]

    async def main() -> None:
        async with opened(url) as store:
            found = [r async for r in scan_all(store, Scan(scope=SCOPE, kinds=(KIND,)))]
            assert [r.seq for r in found] == list(range(1, 46))
            for writer in range(3):
                own_keys = [r.key for r in found if r.key.startswith(f"{writer}-")]
                assert own_keys == [f"{writer}-{n}" for n in range(15)]
            (stream,) = [s async for s in all_streams(store, StreamScan(scope=SCOPE))]
            assert (stream.count, stream.weight) == (45, 45)

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(1, 60), max_size=8)), max_size=12))
def test_ranges_hold_the_seqs_that_exist(steps: list[tuple[int, set[int]]]) -> None:
    ranges: hash_layout.Ranges = []
    existing: set[int] = set()
    last = 0
    for added, removed in steps:
        new = set(range(last + 1, last + 1 + added))
        last += added
        gone = removed & existing
        ranges = hash_layout.changed_ranges(ranges, new, gone)
        existing = (existing - gone) | new
        assert list(hash_layout.seqs_of(ranges, None, reverse=False)) == sorted(existing)
        middle = last // 2
        assert list(hash_layout.seqs_of(ranges, middle, reverse=False)) == [n for n in sorted(existing) if n > middle]
        before = [n for n in sorted(existing, reverse=True) if n < middle]
        assert list(hash_layout.seqs_of(ranges, middle, reverse=True)) == before


def test_ranges_stay_few() -> None:
    ranges = hash_layout.changed_ranges(hash_layout.changed_ranges([], range(1, 4001), ()), (), range(2, 4000, 3))
    assert len(ranges) == hash_layout.MOST_RANGES
    seqs = set(hash_layout.seqs_of(ranges, None, reverse=False))
    assert seqs >= set(range(1, 4001)) - set(range(2, 4000, 3))


def test_names_are_cut_without_losing_their_order() -> None:
    names = [
        ("x" * n + end, kind)
        for n in (0, 1, 217, 218, 219, 220, 222, 223, 224, 225, 226, 227, 300)
        for end in ("", "a", "é", "😀", "/", "-")
        for kind in ("a", "note")
    ]
    cut = sorted(names, key=listed_as)
    short = [name for name in cut if len("\0".join(name)) <= CUT]
    assert short == sorted(short)
    for name in cut:
        assert len(listed_as(name).encode()) <= 1024
        if name in short:
            assert [n < name for n in names] == [listed_as(n) < listed_as(name) for n in names]
    assert len({listed_as(name) for name in names}) == len(names)
