"""Values of key-value back-ends that were damaged where they lie: the error is one of ours, and names the record."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

import mnemic
from attack import seeds
from mnemic.errors import UnreadableStoreError
from mnemic.records import Record, ScopePath
from mnemic.store.codec import FIELDS, decode_record, encode_record
from servers import aws, valkey
from servers.stores import empty_store

SCOPE = ScopePath("acme")
RECORD = Record(
    SCOPE,
    "message",
    "the-key",
    1,
    2,
    text="text",
    data={"a": [1]},
    meta={"b": 2},
    labels={"c": "d"},
    importance=0.5,
    created=datetime(2024, 1, 1, tzinfo=UTC),
    updated=datetime(2024, 1, 1, tzinfo=UTC),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"seq": "x"},
        {"text": 5},
        {"meta": []},
        {"labels": {"a": 1}},
        {"created": 2**62},
        {"expires": -(2**70)},
        {"key": 5},
    ],
)
def test_a_record_with_a_field_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    stored = dict(zip(FIELDS, json.decode(encode_record(RECORD)), strict=True))
    with pytest.raises(UnreadableStoreError, match=str(fields.get("key", "the-key"))):
        decode_record(SCOPE, "message", json.encode([*(stored | fields).values()]))


@given(st.integers(0, 200), st.integers(0, 200), st.binary(max_size=5))
def test_whatever_bytes_change_only_our_error_comes_out(start: int, length: int, put: bytes) -> None:
    raw = encode_record(RECORD)
    try:
        decode_record(SCOPE, "message", raw[:start] + put + raw[start + length :])
    except UnreadableStoreError as error:
        said = str(error)
        assert "damaged" in said


@pytest.mark.parametrize("seed", seeds(3))
def test_damaged_keys_of_redis_give_only_our_errors(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    server = valkey.server()
    with empty_store("valkey", tmp_path) as url:
        with mnemic.open(url, embedder=None) as memory:
            for n in range(5):
                memory.scope("acme").session("s").add("user", f"message {n}", metadata={"n": n})
        prefix = url.partition("prefix=")[2]

        def damaged(value: str) -> str:
            return value[: rng.randrange(len(value) + 1)] + rng.choice('x[]{}"')

        for key in server.ask("KEYS", f"*{prefix}*"):
            kind = server.ask("TYPE", key)
            if kind == "hash":
                for field, value in server.ask("HGETALL", key).items():
                    if rng.random() < 0.5:
                        server.ask("HSET", key, field, damaged(value))
            elif kind == "string" and ":format" not in key and rng.random() < 0.5:
                server.ask("SET", key, damaged(server.ask("GET", key)))
        with mnemic.open(url, embedder=None) as memory:
            chat = memory.scope("acme").session("s")
            for call in (chat.messages, lambda: chat.add("user", "more"), memory.stats, memory.scopes):
                try:
                    call()
                except mnemic.StoreError:
                    pass
                except Exception as error:
                    raise AssertionError(f"{error!r} escapes") from error


@pytest.mark.parametrize("layout", [None, "hash"])
def test_attributes_that_an_item_lacks_are_named(layout: str | None) -> None:
    with aws.empty_table(layout=layout) as url:
        with mnemic.open(url, embedder=None) as memory:
            memory.scope("acme").session("s").add("user", "hello")
        options = dict(part.split("=", 1) for part in url.partition("?")[2].split("&"))
        client = aws.client("dynamodb", options)
        table = url.partition("://")[2].partition("?")[0]
        items = client.scan(TableName=table)["Items"]
        keys = {part["AttributeName"] for part in client.describe_table(TableName=table)["Table"]["KeySchema"]}
        broken = 0
        for item in items:
            for attribute in item.keys() - keys:
                rest = {name: value for name, value in item.items() if name != attribute}
                for changed in (rest, {**rest, attribute: {"BOOL": True}}):
                    with suppress(client.exceptions.ClientError):  # what is indexed cannot be of another type
                        client.put_item(TableName=table, Item=changed)
                        broken += _fails(url)
            client.put_item(TableName=table, Item=item)
        assert broken


def _fails(url: str) -> bool:
    """Tell whether a store can no longer be read; raises what is not an error of ours."""
    try:
        with mnemic.open(url, embedder=None) as memory:
            chat = memory.scope("acme").session("s")
            chat.messages()
            chat.add("user", "more", id="more")
            memory.scopes()
    except mnemic.StoreError:
        return True
    return False
