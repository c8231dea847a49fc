"""Requests to a DynamoDB table: complete, retried where safe, with errors mapped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeVar
from uuid import uuid4

from botocore import exceptions as boto

from ...checks import shown
from ...errors import StoreBusyError, StoreError, StoreFullError, TooLargeError, UnreadableStoreError
from ...store.registry import StoreURL
from .. import aws

Item = dict[str, Any]
"""An item, or a key, in DynamoDB's format."""
Between = tuple[str, Item, Item]
"""An attribute with its lower and upper bound."""
Result = TypeVar("Result")

AT_ONCE = 8
"""Number of concurrent requests per call."""
MOST_READ = 100
"""Maximum number of items in a request that reads."""
MOST_WRITTEN = 25
"""Maximum number of items in a request that writes."""
MOST_BYTES = 800_000
"""Maximum size of a request: a transaction takes 4 MB, but the driver warns above 1 MB."""
ALL = 2**31 - 1
"""No limit."""
TRIES = 12
"""How often a request is repeated that conflicted or was partially done."""

_RETRYABLE = {None, "None", "ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
"""Reasons for which a cancelled transaction is repeated."""


class Fields:
    """Attributes to read; all if none is named."""

    def __init__(self, *names: str) -> None:
        self.projection: Item = {}
        if names:
            aliases = {f"#f{n}": name for n, name in enumerate(names)}
            self.projection = {"ProjectionExpression": ", ".join(aliases), "ExpressionAttributeNames": aliases}


class Table:
    def __init__(self, requests: aws.Requests, name: str) -> None:
        self.requests = requests
        self.name = name
        self.url: StoreURL = requests.url

    async def call(self, operation: str, **parameters: Any) -> Any:
        """Return the answer to a request; raises a Mnemic error."""
        return await self._send(operation, TableName=self.name, **parameters)

    async def get(self, keys: Sequence[Item], fields: Fields) -> list[Item]:
        """Return the existing items of distinct keys, in any order."""
        parts = [keys[n : n + MOST_READ] for n in range(0, len(keys), MOST_READ)]
        found = await gather_bounded(
            self._batch("get", {"Keys": part, "ConsistentRead": True, **fields.projection}) for part in parts
        )
        return [item for some in found for item in some]

    async def query(
        self, within: Item, between: Between | None, fields: Fields, *, limit: int = ALL, **how: Any
    ) -> tuple[list[Item], int]:
        """Return the first items that `pages` yields, at most `limit`, and of how many pages they are."""
        found: list[Item] = []
        count = 0
        async with aclosing(self.pages(within, between, fields, page=limit, **how)) as pages:
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
        page: int = ALL,
    ) -> AsyncGenerator[list[Item], None]:
        """Yield the items of a partition, or of an inclusive range of it, in order, page by page."""
        ((partition, value),) = within.items()
        query: Item = {
            "KeyConditionExpression": "#p = :p",
            "ExpressionAttributeValues": {":p": value},
            "ScanIndexForward": not reverse,
            "ConsistentRead": True,
            **fields.projection,
        }
        query["ExpressionAttributeNames"] = {**query.get("ExpressionAttributeNames", {}), "#p": partition}
        if between is not None:
            attribute, low, high = between
            query["KeyConditionExpression"] += " AND #s BETWEEN :low AND :high"
            query["ExpressionAttributeNames"]["#s"] = attribute
            query["ExpressionAttributeValues"] |= {":low": low, ":high": high}
        if index is not None:
            query["IndexName"] = index
        if page < ALL:
            query["Limit"] = page
        while True:
            answer = await self.call("query", **query)
            yield answer["Items"]
            if (last := answer.get("LastEvaluatedKey")) is None:
                return
            query["ExclusiveStartKey"] = last

    async def write(self, puts: Iterable[Item] = (), deletes: Iterable[Item] = ()) -> None:
        """Put and delete items individually, without conditions."""
        requests: list[Item] = [{"PutRequest": {"Item": item}} for item in puts]
        requests += [{"DeleteRequest": {"Key": key}} for key in deletes]
        await gather_bounded(self._batch("write", part) for part in batches(requests, MOST_WRITTEN))

    async def _batch(self, kind: Literal["get", "write"], requests: Any) -> list[Item]:
        """Send requests until none is left unprocessed; return the items of the answers."""
        found: list[Item] = []
        for attempt in range(TRIES):
            answer = await self._send(f"batch_{kind}_item", RequestItems={self.name: requests})
            some = answer["Responses"].get(self.name, []) if kind == "get" else []
            found += some
            left = answer.get("UnprocessedKeys" if kind == "get" else "UnprocessedItems")
            if not left:
                return found
            requests = left[self.name]
            # Large items are returned in parts, which is no reason to back off.
            await _pause(0 if some else attempt)
        raise self._busy(f"requests to {kind} items")

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
                    raise self._explain(error) from error
                reasons = [reason.get("Code") for reason in error.response.get("CancellationReasons", ())]
                if failed := [n for n, code in enumerate(reasons) if code == "ConditionalCheckFailed"]:
                    return failed
                if not _RETRYABLE.issuperset(reasons):
                    raise self._cancelled(error) from error
            else:
                return []
            await _pause(attempt)
        raise self._busy("transactions")

    async def _send(self, operation: str, **parameters: Any) -> Any:
        try:
            return await self.requests.send(operation, **parameters)
        except boto.ClientError as error:
            raise self._explain(error) from error

    def _explain(self, error: boto.ClientError) -> Exception:
        if aws.code_of(error) != "ResourceNotFoundException":
            return aws.explain(error, self.url)
        return UnreadableStoreError(
            f"{self.url}: there is no table {self.name!r} in the region {self.requests.meta.region_name}; "
            f"make it with: mnemic migrate --store '{self.url}'"
        )

    def _cancelled(self, error: Any) -> Exception:
        """Return the error for a transaction that can never succeed."""
        reasons = [reason for reason in error.response.get("CancellationReasons", ()) if reason.get("Message")]
        text = "; ".join(f"{reason.get('Code')}: {reason['Message']}" for reason in reasons)
        if "item size" in text.lower():
            return TooLargeError(f"{self.url}: a record does not fit into an item ({text})")
        kind = StoreFullError if "ItemCollectionSizeLimitExceeded" in text else StoreError
        return kind(f"{self.url}: DynamoDB refused a transaction ({text or error})")

    def _busy(self, what: str) -> StoreBusyError:
        return StoreBusyError(f"{self.url}: the table has throttled {what} for too long; try again later")


def attribute(item: Item, name: str, kind: str) -> Any:
    """Return an attribute; raises UnreadableStoreError if the item lacks it, or has it as another type."""
    try:
        return item[name][kind]
    except (KeyError, TypeError) as error:
        texts = (item[part].get("S") for part in ("record", "stream", "key") if part in item)
        start = next(filter(None, texts), "")[:60].partition(",")[0]
        raise UnreadableStoreError(
            f"the item that begins with {shown(start)} is damaged: it has no attribute {name} of type {kind}"
        ) from error


def batches(actions: Iterable[Item], most: int, most_bytes: int = MOST_BYTES) -> Iterator[list[Item]]:
    """Yield actions in batches of limited number and size."""
    batch: list[Item] = []
    size = 0
    for action in actions:
        more = size_of(action)
        if batch and (len(batch) == most or size + more > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(action)
        size += more
    if batch:
        yield batch


def size_of(value: Any) -> int:
    """Return the approximate size of an item or action in a request."""
    kind = type(value)
    if kind is str:
        return len(value) if value.isascii() else 3 * len(value.encode("utf-16-le"))
    if kind is dict:
        return sum(len(name) + size_of(part) + 6 for name, part in value.items())
    if kind is list:
        return sum(map(size_of, value))
    return len(value) * 4 // 3 if kind is bytes else 20


async def gather_bounded(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """Run all concurrently; raises the first error after all have ended."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(task: Awaitable[Result]) -> Result:
        async with turns:
            return await task

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    done: list[Result] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


async def _pause(attempt: int) -> None:
    await asyncio.sleep(random.uniform(0, min(0.01 * 2**attempt, 2.0)))  # noqa: S311
