"""Opens a store in a table, and creates the table on request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from ...errors import InvalidValueError, StoreBusyError, StoreError, UnreadableStoreError
from ...store.diagnosis import diagnosed_by
from ...store.protocol import Store
from ...store.registry import Backend, StoreURL, closed_on_error
from .. import aws
from ..keyvalue.store import KeyValueStore
from .client import Item, Table
from .hash_layout import HashLayout
from .layout import INDEX, IndexedLayout, Layout
from .store import DynamoEngine

HASH_KEY = "session_id"
"""Default key attribute of a table with only a hash key."""
TTL = "ttl"
RESERVED = frozenset(
    {
        "body", "bulk", "key", "kind", "large", "names", "number", "part", "pending", "ranges", "record",
        "revision", "scope", "seq", "split", "stream", "token", "ttl", "value",
    }
)  # fmt: skip
"""Reserved attributes; none can be the key of a table."""
PATIENCE = 60.0
"""How many seconds to wait for a table to become ready."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{3,255}")


async def open_store(url: StoreURL) -> Store:
    """Open the store of a URL; with the option `create`, create its table if it does not exist.

    Raises InvalidValueError for a bad URL, UnreadableStoreError if the table is missing or unsuitable, or the
    errors of `aws.explain`.
    """
    layout, _ = await open_layout(url, create=False)
    return KeyValueStore(DynamoEngine(layout))


async def create(url: StoreURL) -> str:
    """Create the table of a URL if it does not exist, enable its TTL, and return what was done.

    Raises as `open_store` does.
    """
    layout, made = await open_layout(url, create=True)
    await layout.table.requests.close()
    return "has a new table" if made else "has its table"


async def open_layout(url: StoreURL, *, create: bool) -> tuple[Layout, bool]:
    """Return the layout of a table, and whether it was created."""
    options: dict[str, Any] = url.take(**aws.OPTIONS, **_OPTIONS)
    create = create or options.get("create", False)
    name = url.split.netloc
    if not _NAME.fullmatch(name) or url.split.path.strip("/"):
        raise InvalidValueError(
            f"{url} names no table: use dynamodb://name, of 3 to 255 letters, digits and '_', '-', '.'"
        )
    table = Table(await aws.Requests.open("dynamodb", url, parameter_validation=False), name)
    made = False
    async with closed_on_error(table.requests):
        try:
            found = await _ready(table)
        except UnreadableStoreError:
            if not create:
                raise
            made = await _make(table, options)
            found = await _ready(table)
        layout = _layout(table, found, options)
        if create and not await expires(table):
            try:
                await table.call("update_time_to_live", TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL})
            except StoreError:
                # Another process may have been faster.
                if not await expires(table):
                    raise
        return layout, made


async def _ready(table: Table) -> Item:
    """Return the description of a table, once it is ready."""
    until = asyncio.get_running_loop().time() + PATIENCE
    pause = 0.02
    while True:
        found: Item = (await table.call("describe_table"))["Table"]
        if found["TableStatus"] in ("ACTIVE", "UPDATING"):
            return found
        if asyncio.get_running_loop().time() > until:
            raise StoreBusyError(f"{table.url}: the table is still {found['TableStatus']}; try again later")
        await asyncio.sleep(pause)
        pause = min(2 * pause, 2.0)


async def _make(table: Table, options: dict[str, Any]) -> bool:
    """Create a table; return False if someone else has just done so."""

    def schema(hash: str, range: str) -> list[Item]:
        return [{"AttributeName": hash, "KeyType": "HASH"}, {"AttributeName": range, "KeyType": "RANGE"}]

    if options.get("layout") == "hash":
        name = options.get("key", HASH_KEY)
        types, key, more = {name: "S"}, schema(name, "")[:1], {}
    elif "key" in options:
        raise InvalidValueError(f"{table.url}: the option key goes with layout=hash")
    else:
        projection = {"ProjectionType": "ALL"}
        index = {"IndexName": INDEX, "KeySchema": schema("pk", INDEX), "Projection": projection}
        types, key, more = {"pk": "S", "sk": "S", INDEX: "N"}, schema("pk", "sk"), {"LocalSecondaryIndexes": [index]}
    attributes = [{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()]
    try:
        await table.call(
            "create_table", AttributeDefinitions=attributes, KeySchema=key, BillingMode="PAY_PER_REQUEST", **more
        )
    except StoreBusyError:  # such as ResourceInUseException
        return False
    return True


async def expires(table: Table) -> bool:
    """Return whether the TTL is enabled."""
    found = (await table.call("describe_time_to_live"))["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        return False
    if found.get("AttributeName") != TTL:
        raise InvalidValueError(
            f"{table.url}: items of the table expire by the attribute {found.get('AttributeName')!r}; "
            f"turn that off, or choose another table: ours is {TTL!r}"
        )
    return True


def _layout(table: Table, found: Item, options: dict[str, Any]) -> Layout:
    """Return the layout of an existing table; raises UnreadableStoreError if it is unsuitable."""
    types = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
    names = {each["KeyType"]: each["AttributeName"] for each in found["KeySchema"]}
    partition, sort = names["HASH"], names.get("RANGE")
    kind = "hash" if sort is None else "own"
    if options.get("layout", kind) != kind or options.get("key", partition) != partition:
        raise InvalidValueError(
            f"{table.url}: the table is there, but its key is {' and '.join(names.values())}, "
            "not what the options layout and key say; leave them out, or choose another table"
        )
    wrong = [name for name in names.values() if types[name] != "S" or name in RESERVED]
    if wrong:
        raise UnreadableStoreError(
            f"{table.url}: the key attribute {wrong[0]!r} of the table must be a string, "
            f"and none of {', '.join(sorted(RESERVED))}"
        )
    if sort is None:
        return HashLayout(table, partition)
    for index in found.get("LocalSecondaryIndexes", ()):
        if index["IndexName"] == INDEX and index["KeySchema"][-1]["AttributeName"] == INDEX:
            return IndexedLayout(table, partition, sort)
    raise UnreadableStoreError(
        f"{table.url}: the table has a range key but no index {INDEX!r}, so it is not a Mnemic table; "
        "choose another name, and make the table with mnemic migrate"
    )


def _key_name(text: str) -> str:
    if not text or len(text) > 255 or text in RESERVED:
        raise ValueError(text)
    return text


_OPTIONS: dict[str, Callable[[str], object]] = {
    "create": lambda text: {"1": True, "0": False, "true": True, "false": False}[text],
    "layout": lambda text: {"own": "own", "hash": "hash"}[text],
    "key": _key_name,
}

BACKEND = Backend(open=open_store, prepare=create, diagnose=diagnosed_by(__package__))
