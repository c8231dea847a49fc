"""Requests to a DynamoDB table: complete, retried where safe, with errors mapped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar
from uuid import uuid4

from botocore import exceptions as boto

from ...errors import StoreBusyError, StoreError, StoreFullError, TooLargeError, UnreadableStoreError
from ...store.registry import StoreURL
from .. import aws
from ..keyvalue.kept import damaged

Item = dict[str, Any]
"""An item, or a key, in DynamoDB's format."""
Between = tuple[str, Item, Item]
"""An attribute with its lower and upper bound."""
Result = TypeVar("Result")

AT_ONCE = 8
"""Number of concurrent requests per call."""
READ_AT_ONCE = 100
WRITTEN_AT_ONCE = 25
ALL = 2**31 - 1
"""No limit."""
MOST_BYTES = 800_000
"""Maximum size of a request: a transaction takes 4 MB, but the driver warns above 1 MB."""
TRIES = 12
"""How often a request is repeated that conflicted or was partially done."""


class Table:
    """One table."""

    def __init__(self, requests: aws.Requests, name: str) -> None:
        self.requests = requests
        self.name = name
        self.url: StoreURL = requests.url

    async def call(self, operation: str, **parameters: Any) -> Any:
        """Return the answer to a request; raises a Mnemic error."""
        return await self._send(operation, TableName=self.name, **parameters)

    async def get(self, keys: Sequence[Item], fields: Fields) -> list[Item]:
        """Return the existing items of distinct keys, in any order."""
        parts = [keys[n : n + READ_AT_ONCE] for n in range(0, len(keys), READ_AT_ONCE)]
        return [item for found in await together(self._get(part, fields) for part in parts) for item in found]

    async def _get(self, keys: Sequence[Item], fields: Fields) -> list[Item]:
        asked: Any = {self.name: {"Keys": keys, "ConsistentRead": True, **fields.projection}}
        found: list[Item] = []
        for attempt in range(TRIES):
            answer = await self._send("batch_get_item", RequestItems=asked)
            some = list(map(StoredItem, answer["Responses"].get(self.name, [])))
            found += some
            asked = answer.get("UnprocessedKeys")
            if not asked:
                return found
            # Large items are returned in parts, which is no reason to back off.
            await _pause(0 if some else attempt)
        raise self._busy("reads")

    async def query(
        self, within: Item, between: Between | None, fields: Fields, *, limit: int = ALL, **how: Any
    ) -> tuple[list[Item], int]:
        """Return the first items that `pages` yields, at most `limit`, and of how many pages they are."""
        found: list[Item] = []
        count = 0
        async with aclosing(self.pages(within, between, fields, at_once=limit, **how)) as pages:
            async for page in pages:
                found += page
                count += 1
                if len(found) >= limit:
                    break
        return found[:limit], count

    async def pages(
        self,
        within: Item,
        between: Between | None,
        fields: Fields,
        *,
        reverse: bool = False,
        index: str | None = None,
        at_once: int = ALL,
    ) -> AsyncGenerator[list[Item], None]:
        """Yield the items of a partition, or of an inclusive range of it, in order, page by page."""
        ((partition, value),) = within.items()
        asked: Item = {
            "KeyConditionExpression": "#p = :p",
            "ExpressionAttributeValues": {":p": value},
            "ScanIndexForward": not reverse,
            "ConsistentRead": True,
            **fields.projection,
        }
        asked["ExpressionAttributeNames"] = {**asked.get("ExpressionAttributeNames", {}), "#p": partition}
        if between is not None:
            attribute, low, high = between
            asked["KeyConditionExpression"] += " AND #s BETWEEN :low AND :high"
            asked["ExpressionAttributeNames"]["#s"] = attribute
            asked["ExpressionAttributeValues"] |= {":low": low, ":high": high}
        if index is not None:
            asked["IndexName"] = index
        if at_once < ALL:
            asked["Limit"] = at_once
        while True:
            answer = await self.call("query", **asked)
            yield list(map(StoredItem, answer["Items"]))
            if (last := answer.get("LastEvaluatedKey")) is None:
                return
            asked["ExclusiveStartKey"] = last

    async def write(self, puts: Iterable[Item] = (), deletes: Iterable[Item] = ()) -> None:
        """Put and delete items individually, without conditions."""
        requests: list[Item] = [{"PutRequest": {"Item": item}} for item in puts]
        requests += [{"DeleteRequest": {"Key": key}} for key in deletes]
        await together(self._write(part) for part in lots(requests, WRITTEN_AT_ONCE))

    async def _write(self, requests: Sequence[Item]) -> None:
        asked: Any = {self.name: requests}
        for attempt in range(TRIES):
            answer = await self._send("batch_write_item", RequestItems=asked)
            asked = answer.get("UnprocessedItems")
            if not asked:
                return
            await _pause(attempt)
        raise self._busy("writes")

    async def transact(self, actions: Sequence[Item]) -> list[int]:
        """Run all actions or none; return the positions of failed conditions.

        Each request has an idempotency token, so a retry after a lost answer runs once.
        """
        named = [{kind: {"TableName": self.name, **action}} for one in actions for kind, action in one.items()]
        for attempt in range(TRIES):
            try:
                token = uuid4().hex
                await self.requests.send("transact_write_items", TransactItems=named, ClientRequestToken=token)
            except boto.ClientError as error:
                if aws.code_of(error) != "TransactionCanceledException":
                    raise self.explain(error) from error
                reasons = [reason.get("Code") for reason in error.response.get("CancellationReasons", ())]
                if failed := [n for n, code in enumerate(reasons) if code == "ConditionalCheckFailed"]:
                    return failed
                if not _PASSING.issuperset(reasons):
                    raise self._cancelled(error) from error
            else:
                return []
            await _pause(attempt)
        raise self._busy("transactions")

    async def _send(self, operation: str, **parameters: Any) -> Any:
        try:
            return await self.requests.send(operation, **parameters)
        except boto.ClientError as error:
            raise self.explain(error) from error

    def explain(self, error: Exception) -> Exception:
        """Return the Mnemic error for a driver error."""
        if isinstance(error, boto.ClientError) and aws.code_of(error) == "ResourceNotFoundException":
            where = self.requests.meta.region_name
            return UnreadableStoreError(
                f"{self.url}: there is no table {self.name!r} in the region {where}; "
                f"make it with: mnemic migrate --store '{self.url}'"
            )
        return aws.explain(error, self.url)

    def _cancelled(self, error: Any) -> Exception:
        """Return the error for a transaction that can never succeed."""
        reasons = [reason for reason in error.response.get("CancellationReasons", ()) if reason.get("Message")]
        text = "; ".join(f"{reason.get('Code')}: {reason['Message']}" for reason in reasons)
        if "item size" in text.lower():
            return TooLargeError(f"{self.url}: what is kept of a record does not fit an item ({text})")
        kind = StoreFullError if "ItemCollectionSizeLimitExceeded" in text else StoreError
        return kind(f"{self.url}: DynamoDB refused a transaction ({text or error})")

    def _busy(self, what: str) -> StoreBusyError:
        return StoreBusyError(f"{self.url}: the table has held {what} back for too long; try again later")


class Fields:
    """Attributes to read; all if none is named."""

    def __init__(self, *names: str) -> None:
        held = {f"#f{n}": name for n, name in enumerate(names)}
        self.projection: Item = {}
        if held:
            self.projection["ProjectionExpression"] = ", ".join(held)
            self.projection["ExpressionAttributeNames"] = held


_PASSING = {None, "None", "ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
"""Retryable reasons of cancelled transactions."""


class StoredItem(dict[str, Any]):
    """An item that was read; raises UnreadableStoreError for an attribute that it lacks, or has as another type."""

    def __init__(self, item: Item) -> None:
        super().__init__((name, _Attribute(self, name, value)) for name, value in item.items())

    def __missing__(self, name: str) -> Any:
        raise damaged("item", self.start, KeyError(f"it has no attribute {name}"))

    @property
    def start(self) -> str:
        """Recognizable name of the item for a person: the beginning of its record or head."""
        held = (self[name].get("S") for name in ("record", "stream", "key") if name in self)
        return next((text for text in held if text), "")


class _Attribute(dict[str, Any]):
    """The value of an attribute, by its type."""

    __slots__ = ("_item", "_name")

    def __init__(self, item: StoredItem, name: str, value: Item) -> None:
        super().__init__(value)
        self._item = item
        self._name = name

    def __missing__(self, kind: str) -> Any:
        raise damaged("item", self._item.start, KeyError(f"its attribute {self._name} is not of type {kind}"))


def lots(things: Iterable[Item], most: int, most_bytes: int = MOST_BYTES) -> Iterator[list[Item]]:
    """Yield items in batches of limited number and size."""
    lot: list[Item] = []
    size = 0
    for thing in things:
        more = size_of(thing)
        if lot and (len(lot) == most or size + more > most_bytes):
            yield lot
            lot, size = [], 0
        lot.append(thing)
        size += more
    if lot:
        yield lot


def size_of(value: Any) -> int:
    """Return the approximate size of an item or action in a request."""
    kind = type(value)
    if kind is str:
        return len(value) if value.isascii() else 3 * len(value.encode("utf-16-le"))
    if isinstance(value, dict):
        total = 0
        for name, part in value.items():
            total += len(name) + size_of(part) + 6
        return total
    if kind is list:
        return sum(map(size_of, value))
    return len(value) * 4 // 3 if kind is bytes else 20


def expiry(micro: int | None) -> Item | None:
    """Return a TTL attribute in whole seconds."""
    # Times before 1970 have no TTL; expired records are removed by the next write anyway.
    return None if micro is None or micro < 0 else {"N": str(-(-micro // 1_000_000))}


async def together(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """Run all concurrently; raises the first error after all started ones have ended."""
    turns = asyncio.Semaphore(AT_ONCE)
    failed: list[BaseException] = []

    async def one(task: Awaitable[Result]) -> Result:
        async with turns:
            if failed:
                asyncio.ensure_future(task).cancel()
                raise failed[0]
            try:
                return await task
            except BaseException as error:
                failed.append(error)
                raise

    waiting = list(work)
    if len(waiting) == 1:
        return [await waiting[0]]
    results = await asyncio.gather(*map(one, waiting), return_exceptions=True)
    done: list[Result] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


async def _pause(attempt: int) -> None:
    await asyncio.sleep(random.uniform(0, min(0.01 * 2**attempt, 2.0)))  # noqa: S311
