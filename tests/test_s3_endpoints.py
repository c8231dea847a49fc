"""S3: endpoints that misbehave, and two emulators."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic.backends.s3 import client, collect
from mnemic.errors import (
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from mnemic.records import Record, Ref, ScopePath
from mnemic.store.protocol import Store, all_streams
from mnemic.store.query import Purge, Put, Scan, StreamScan, Write
from s3_testing import KIND, LONG, SCOPE, TENANTS, connected, put, texts
from servers import aws as servers
from small_s3 import SmallS3


def served(work: Callable[[SmallS3], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(client, "_checked", {})

    async def main() -> None:
        server = SmallS3()
        await server.start()
        try:
            await work(server)
        finally:
            await server.stop()

    asyncio.run(main())


def test_an_endpoint_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        for heeded, ignored in (((), "If-None-Match"), (("If-None-Match",), "If-Match")):
            server.conditions = heeded
            for _ in range(2):
                with pytest.raises(StoreError, match=f"ignores {ignored} ") as caught:
                    await connected(server.url).__aenter__()
                assert server.url in str(caught.value)

    served(work, monkeypatch)


def test_who_may_only_read_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            await store.write(Write((put("k", text="kept"),)))
        server.refused = {"PUT": (403, "AccessDenied"), "DELETE": (403, "AccessDenied")}
        async with connected(server.url) as store:
            assert await texts(store) == {"k": "kept"}
            with pytest.raises(StorePermissionError):
                await store.write(Write((put("k2"),)))
        server.refused["GET"] = (403, "AccessDenied")
        with pytest.raises(StorePermissionError):
            async with connected(server.url):
                pass

    served(work, monkeypatch)


def test_who_may_put_but_not_delete_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        server.refused = {"DELETE": (403, "AccessDenied")}
        with pytest.raises(StorePermissionError):
            await connected(server.url).__aenter__()

    served(work, monkeypatch)


def test_an_endpoint_that_deletes_whatever_the_condition_is_used_without(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        server.heeds_on_delete = False
        async with connected(server.url) as store:
            await store.write(Write((put("k"),)))
            await store.write(Write((Purge(SCOPE, KIND, drop=True),)))
            await store.write(Write((put("k2"),)))
            assert list(await texts(store)) == ["k2"]
        assert sorted(server.objects) == ["p/manifests/_acme/_alice", "p/mnemic"]

    served(work, monkeypatch)


def test_after_a_restart_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            await store.write(Write((put("k0"),)))
            await server.stop()
            with pytest.raises(StoreUnavailableError):
                await texts(store)
            with pytest.raises(StoreUnavailableError, match="may or may not"):
                await store.write(Write((Put(Record(SCOPE, KIND, "k1"), 0),)))
            await server.start()
            await store.write(Write((Put(Record(SCOPE, KIND, "k1"), 0),)))
            assert list(await texts(store)) == ["k0", "k1"]
        await server.stop()
        with pytest.raises(StoreUnavailableError):
            async with connected(server.url):
                pass

    monkeypatch.setattr("mnemic.backends.aws.ATTEMPTS", 1)
    served(work, monkeypatch)


def test_a_lost_answer_is_not_taken_for_a_lost_race(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            for n in range(3):
                server.loses = 1
                await store.write(Write((put(f"k{n}"),)))
            streams = [s async for s in all_streams(store, StreamScan(scope=ScopePath()))]
            assert [(s.scope.path, s.count, s.version) for s in streams] == [("acme/alice", 3, 3)]

    served(work, monkeypatch)


REFUSALS: list[tuple[int, str, type[StoreError]]] = [
    (503, "SlowDown", StoreBusyError),
    (403, "AccessDenied", StorePermissionError),
    (403, "InvalidAccessKeyId", StorePermissionError),
    (400, "ExpiredToken", StorePermissionError),
    (500, "InternalError", StoreUnavailableError),
    (404, "NoSuchBucket", UnreadableStoreError),
    (418, "Teapot", StoreError),
]


def test_what_s3_refuses_leaves_as_one_of_our_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[[Store], Awaitable[Any]]] = [
        lambda store: store.write(Write((put("k"),))),
        lambda store: store.read([Ref(SCOPE, KIND, "k")]),
        lambda store: store.scan(Scan(scope=ScopePath(), below=True)),
        lambda store: store.streams(StreamScan(scope=ScopePath())),
        lambda store: store.write(Write((put("k", ScopePath("b")),))),
    ]

    async def work(server: SmallS3) -> None:
        async with connected(server.url) as store:
            for status, code, kind in REFUSALS:
                server.refused = dict.fromkeys(("GET", "PUT", "DELETE"), (status, code))
                for call in calls:
                    with pytest.raises(StoreError) as caught:
                        await call(store)
                    assert type(caught.value) is kind
                    assert server.url in str(caught.value)
                server.refused = {}
                await store.write(Write((put("k"),)))

    monkeypatch.setattr("mnemic.backends.aws.ATTEMPTS", 1)
    served(work, monkeypatch)


def test_bad_urls_say_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: SmallS3) -> None:
        for url in (
            "s3:///p",
            "s3://",
            "s3://user:secret@bucket",
            "s3://bucket:port/p",
            "s3://bucket--usw2-az1--x-s3/p",
            f"{server.url}&colour=red",
            f"s3://b/{'p' * 200}",
        ):
            with pytest.raises(InvalidValueError) as caught:
                async with connected(url):
                    pass
            assert "secret" not in str(caught.value)
        with pytest.raises(UnreadableStoreError):
            async with connected(server.url.replace("bucket", "elsewhere")):
                pass

    served(work, monkeypatch)


@pytest.fixture(scope="module", params=["ministack", "moto"])
def emulator(request: pytest.FixtureRequest) -> Callable[[], servers.Emulator]:
    found: Callable[[], servers.Emulator] = getattr(servers, request.param)
    return found


@pytest.fixture
def url(emulator: Callable[[], servers.Emulator]) -> Iterator[str]:
    with servers.empty_prefix(emulator=emulator) as url:
        yield url


def test_listings_are_read_to_the_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE", 4)

    async def main() -> None:
        async with connected(url) as store:
            scopes = [*(ScopePath(path) for name in TENANTS for path in (name, f"{name}/x", f"{name}-/x")), *LONG]
            for scope in scopes:
                await store.write(Write((put("k", scope),)))
            for above in (ScopePath(), ScopePath("a"), ScopePath("\uffff"), ScopePath("..")):
                found = [s.scope.path async for s in all_streams(store, StreamScan(scope=above, limit=5))]
                assert found == sorted(scope.path for scope in scopes if above.contains(scope))

    asyncio.run(main())


def test_large_bodies_come_back(url: str) -> None:
    async def main() -> None:
        large = {"a": "x" * 8_000_000, "b": "é漢" * 2_000_000, "c": random.randbytes(4_000_000).hex()}
        async with connected(url) as store:
            for key, text in large.items():
                await store.write(Write((put(key, text=text),)))
            await store.write(Write((put("a", text="small"),)))
        async with connected(url) as store:
            assert await texts(store) == {**large, "a": "small"}

    asyncio.run(main())


def test_what_is_archived_is_brought_back_by_a_copy(url: str, tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    with mnemic.open(first) as memory:
        for tenant in ("acme", "globex"):
            chat = memory.scope(tenant, "alice").session("monday")
            for n in range(30):
                chat.add("user", f"message {n} of {tenant}")
    mnemic.copy(first, url)
    mnemic.copy(url, second)
    with mnemic.open(first) as before, mnemic.open(second) as after:
        for tenant in ("acme", "globex"):
            chats = [memory.scope(tenant, "alice").session("monday") for memory in (before, after)]
            assert chats[0].messages() == chats[1].messages()


def test_collecting_with_a_url(url: str) -> None:
    assert asyncio.run(collect(url)) == 0
