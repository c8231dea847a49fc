"""Tables of DynamoDB: creation, detection of the layout, and error messages."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from botocore import exceptions as boto

from mnemic.backends import aws
from mnemic.backends.dynamodb import BACKEND, create
from mnemic.errors import (
    InvalidValueError,
    MnemicError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from mnemic.records import Record, Ref, ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Store
from mnemic.store.query import Put, Write
from mnemic.store.registry import StoreURL
from servers import aws as servers

SCOPE = ScopePath("acme/alice")
WRITE = Write((Put(Record(SCOPE, "note", "k", text="1")),))
REF = Ref(SCOPE, "note", "k")


def client() -> Any:
    return servers.client("dynamodb", {"endpoint": servers.ministack().endpoint})


def url_of(table: str, **options: str) -> StoreURL:
    chosen = {"region": servers.REGION, "endpoint": servers.ministack().endpoint, **options}
    return StoreURL.parse(f"dynamodb://{table}?" + "&".join(f"{n}={v}" for n, v in chosen.items() if v))


@contextmanager
def made(*keys: tuple[str, str, str], **more: Any) -> Iterator[str]:
    """Create a table as another application would, of attributes with types and roles in the key; yield its name."""
    name = f"foreign-{uuid4().hex[:8]}"
    client().create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind, _ in keys],
        KeySchema=[{"AttributeName": key, "KeyType": place} for key, _, place in keys if place],
        BillingMode="PAY_PER_REQUEST",
        **more,
    )
    try:
        yield name
    finally:
        client().delete_table(TableName=name)


async def open_store(url: StoreURL) -> Store:
    return await BACKEND.open(url)


async def stored_text(url: StoreURL) -> str | None:
    """Write and read a record, and return its text."""
    store = await BACKEND.open(url)
    try:
        await store.write(WRITE)
        (found,) = await store.read([REF])
        return found.text if found else None
    finally:
        await store.close()


def test_a_table_with_only_a_hash_key_is_detected_and_other_items_in_it_are_left_alone() -> None:
    with made(("session_id", "S", "HASH")) as name:
        foreign = {"session_id": {"S": "user_1"}, "history": {"S": "[]"}}
        client().put_item(TableName=name, Item=foreign)
        assert asyncio.run(stored_text(url_of(name))) == "1"
        assert client().get_item(TableName=name, Key={"session_id": {"S": "user_1"}})["Item"] == foreign
        items = client().scan(TableName=name)["Items"]
        assert all(item["session_id"]["S"].startswith("mnemic\0") for item in items if item != foreign)


def test_key_attributes_may_have_any_name() -> None:
    with made(("Some-Key.1", "S", "HASH")) as name:
        assert asyncio.run(stored_text(url_of(name))) == "1"
        assert asyncio.run(stored_text(url_of(name, layout="hash", key="Some-Key.1"))) == "1"
    index = {
        "IndexName": "seq",
        "KeySchema": [{"AttributeName": "where", "KeyType": "HASH"}, {"AttributeName": "seq", "KeyType": "RANGE"}],
        "Projection": {"ProjectionType": "ALL"},
    }
    keys = [("where", "S", "HASH"), ("at", "S", "RANGE"), ("seq", "N", "")]
    with made(*keys, LocalSecondaryIndexes=[index]) as name:
        assert asyncio.run(stored_text(url_of(name))) == "1"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([("id", "N", "HASH")], "must be a string"),
        ([("record", "S", "HASH")], "none of"),
        ([("pk", "S", "HASH"), ("sk", "S", "RANGE")], "no index 'seq'"),
    ],
)
def test_a_table_that_cannot_hold_a_store_is_refused(keys: list[tuple[str, str, str]], message: str) -> None:
    with made(*keys) as name:
        for call in (open_store, create):
            with pytest.raises(UnreadableStoreError, match=message):
                asyncio.run(call(url_of(name)))


def test_options_must_say_what_the_table_is() -> None:
    with made(("session_id", "S", "HASH")) as name:
        for options in ({"layout": "own"}, {"key": "user_id"}):
            with pytest.raises(InvalidValueError, match="its key is session_id"):
                asyncio.run(open_store(url_of(name, **options)))


def test_create_makes_an_on_demand_table_with_a_ttl() -> None:
    name = f"ours-{uuid4().hex[:8]}"
    url = url_of(name)
    assert asyncio.run(create(url)) == "has a new table"
    assert asyncio.run(create(url)) == "has its table"
    found = client().describe_table(TableName=name)["Table"]
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert [key["AttributeName"] for key in found["KeySchema"]] == ["pk", "sk"]
    expiry = client().describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (expiry["TimeToLiveStatus"], expiry["AttributeName"]) == ("ENABLED", "ttl")
    assert asyncio.run(stored_text(url)) == "1"
    client().delete_table(TableName=name)


def test_create_enables_the_ttl_of_a_hash_only_table_and_refuses_another_attribute() -> None:
    with made(("session_id", "S", "HASH")) as name:
        assert asyncio.run(create(url_of(name))) == "has its table"
        expiry = client().describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        assert expiry["AttributeName"] == "ttl"
    with made(("session_id", "S", "HASH")) as name:
        client().update_time_to_live(
            TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "other"}
        )
        with pytest.raises(InvalidValueError, match="'other'"):
            asyncio.run(create(url_of(name)))
        assert asyncio.run(stored_text(url_of(name))) == "1"


def test_concurrent_creation_of_one_table() -> None:
    name = f"ours-{uuid4().hex[:8]}"

    async def main() -> list[str | None]:
        return await asyncio.gather(*(stored_text(url_of(name, create="1")) for _ in range(4)))

    assert asyncio.run(main()) == ["1"] * 4
    client().delete_table(TableName=name)


def test_the_error_for_a_missing_table_names_the_command_that_creates_it() -> None:
    with pytest.raises(UnreadableStoreError, match=r"no table 'nowhere' in the region us-east-1.*mnemic migrate"):
        asyncio.run(open_store(url_of("nowhere")))


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://table/path",
        "dynamodb://ta%20ble",
        "dynamodb://table?endpoint=nonsense",
        "dynamodb://table?create=maybe",
        "dynamodb://table?layout=round",
        "dynamodb://table?layout=hash&key=seq",
        "dynamodb://table?color=red",
        "dynamodb://table?region=no%20region",
        "dynamodb://table?region=us-east-1&profile=of-nobody",
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="dynamodb://"):
        asyncio.run(open_store(StoreURL.parse(url)))
    with pytest.raises(InvalidValueError, match="layout=hash"):
        asyncio.run(create(url_of("fresh-table", key="session_id")))


def test_a_url_without_a_region_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidValueError, match="region"):
        asyncio.run(open_store(StoreURL.parse("dynamodb://table")))


def test_an_endpoint_that_is_down_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    for endpoint in ("http://127.0.0.1:1", "http://nobody.invalid:80"):
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            asyncio.run(open_store(url_of("table", endpoint=endpoint)))


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    url = url_of("table")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorePermissionError, match="AWS_ACCESS_KEY_ID"):
        asyncio.run(open_store(url))


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDeniedException", 400, StorePermissionError),
        ("UnrecognizedClientException", 400, StorePermissionError),
        ("ExpiredTokenException", 400, StorePermissionError),
        ("InvalidSignatureException", 400, StorePermissionError),
        ("ResourceNotFoundException", 400, UnreadableStoreError),
        ("ProvisionedThroughputExceededException", 400, StoreBusyError),
        ("ThrottlingException", 400, StoreBusyError),
        ("TransactionInProgressException", 400, StoreBusyError),
        ("RequestLimitExceeded", 400, StoreBusyError),
        ("LimitExceededException", 400, StoreFullError),
        ("ItemCollectionSizeLimitExceededException", 400, StoreFullError),
        ("InternalServerError", 500, StoreUnavailableError),
        ("SomethingNew", 503, StoreUnavailableError),
        ("SomethingNew", 403, StorePermissionError),
        ("SomethingNew", 400, StoreError),
        ("PermanentRedirect", 301, InvalidValueError),
    ],
)
def test_refusals_of_aws_are_mapped_to_our_errors(code: str, status: int, kind: type[Exception]) -> None:
    answer = {"Error": {"Code": code, "Message": "why"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = aws.explain(boto.ClientError(answer, "Query"), "dynamodb://table")
    assert type(error) is kind
    assert str(error).startswith("dynamodb://table: ")
    assert "why" in str(error)


def test_every_error_of_the_driver_is_mapped() -> None:
    seen = 0
    for kind in vars(boto).values():
        if not inspect.isclass(kind) or not issubclass(kind, boto.BotoCoreError):
            continue
        error: Any = kind.__new__(kind)
        error.args = ("why",)
        found = aws.explain(error, "dynamodb://table")
        assert isinstance(found, MnemicError), kind
        assert isinstance(found, StoreError | InvalidValueError), kind
        if issubclass(kind, boto.ConnectionError | boto.HTTPClientError):
            assert isinstance(found, StoreUnavailableError), kind
        seen += 1
    assert seen > 50
    assert isinstance(aws.explain(KeyError("k"), "dynamodb://table"), UnreadableStoreError)


def test_closing_leaves_nothing_behind() -> None:
    async def main() -> None:
        store = await BACKEND.open(url_of(f"ours-{uuid4().hex[:8]}", create="1"))
        await store.write(WRITE)
        await store.close()
        await store.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before = set(threading.enumerate())
    asyncio.run(main())
    assert set(threading.enumerate()) <= before


def test_the_driver_is_loaded_with_the_first_url() -> None:
    import subprocess
    import sys

    code = "import sys, mnemic; mnemic.open('memory://').close(); sys.exit('botocore' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_server_that_comes_back_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    servers.ministack()
    monkeypatch.setattr(aws, "ATTEMPTS", 1)
    emulator = servers.ministack.__wrapped__()
    url = url_of("restarted", endpoint=emulator.endpoint, create="1")

    async def main() -> None:
        store: Store = await BACKEND.open(url)
        await store.write(WRITE)
        emulator.process.kill()
        for call in (store.write(WRITE), store.read([REF])):
            with pytest.raises(StoreUnavailableError):
                await call
        emulator.process.start()
        # This one keeps tables in memory.
        with pytest.raises(UnreadableStoreError, match="mnemic migrate"):
            await store.write(WRITE)
        assert await create(url) == "has a new table"
        await store.write(WRITE)
        (found,) = await store.read([REF])
        assert found is not None
        await store.close()

    asyncio.run(main())
    emulator.process.stop()


def test_the_entry_point_names_the_back_end() -> None:
    _, backend = registry.find("dynamodb://table")
    assert backend is BACKEND
    assert backend.prepare is create
