"""Objects in a bucket: conditional puts, reads, deletes and lists, with errors mapped; a cache for them."""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

from botocore.exceptions import ClientError
from msgspec import Struct

from ...errors import StoreError, StorePermissionError
from .. import aws

PAGE = 1000
"""Page size of S3 lists."""
_FAILED_CONDITION = (404, 409, 412)
NEVER = '"00000000000000000000000000000000"'
"""An ETag that no object has."""
_checked: dict[tuple[str, str], bool] = {}
"""Endpoints and buckets known to support conditional puts, and whether they support conditional deletes."""

Value = TypeVar("Value")


class StoredObject(Struct, frozen=True):
    data: bytes
    etag: str


class ListedObject(Struct, frozen=True):
    key: str
    etag: str
    modified: datetime
    size: int


class UnchangedError(Exception):
    """The object has not changed."""


class Bucket:
    def __init__(self, requests: aws.Requests, name: str) -> None:
        self._requests = requests
        self._name = name
        self.url: str = str(requests.url)
        self.conditional_deletes: bool = False
        """Whether the endpoint supports them, as Amazon S3 has since 2025."""
        self._place = (str(requests.meta.endpoint_url), name)

    async def get(self, key: str, *, unless: str | None = None) -> StoredObject | None:
        """Return an object; None if it does not exist. Raises UnchangedError if its ETag is `unless`."""
        condition = {} if unless is None else {"IfNoneMatch": unless}
        answer = await self.send("get_object", accept=(304, 404), Key=key, **condition)
        if answer == 304:
            raise UnchangedError
        return None if answer == 404 else StoredObject(answer["Body"], str(answer["ETag"]))

    async def put_unique(self, key: str, data: bytes) -> None:
        """Put an object whose key nobody else uses."""
        await self.send("put_object", Key=key, Body=data)

    async def put(self, key: str, data: bytes, *, over: str | None) -> str | None:
        """Put an object over the one with the ETag `over` or, if that is None, only if it does not exist.

        Returns its ETag; None if the condition fails. It may have been put even then: aiohttp silently repeats a
        request whose answer was lost, which then fails because of its own first attempt.
        """
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        answer = await self.send("put_object", accept=_FAILED_CONDITION, Key=key, Body=data, **condition)
        return None if answer in _FAILED_CONDITION else str(answer["ETag"])

    async def delete(self, key: str, *, only: str | None = None) -> bool:
        """Delete an object; with `only`, if it has that ETag. Returns False if the condition fails."""
        condition = {} if only is None else {"IfMatch": only}
        return await self.send("delete_object", accept=_FAILED_CONDITION, Key=key, **condition) not in _FAILED_CONDITION

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ListedObject, None]:
        """Yield all objects whose keys start with `prefix`, in order, after one."""
        more: dict[str, Any] = {"StartAfter": start} if (start := _in_xml(after)) else {}
        while True:
            page = await self.send("list_objects_v2", Prefix=_in_xml(prefix), MaxKeys=PAGE, **more)
            for item in page.get("Contents", ()):
                if item["Key"].startswith(prefix) and item["Key"] > after:
                    yield ListedObject(item["Key"], item["ETag"], item["LastModified"], item["Size"])
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def check(self, key: str, data: bytes) -> None:
        """Raise StoreError if the endpoint ignores conditions on puts; `key` is put if it is new.

        Raises StorePermissionError if objects can be put but not deleted, or not even read.
        """
        try:
            first = await self.put(key, data, over=None)
        except StorePermissionError:
            # A read-only user need not know about writing, but must be able to read.
            await self.get(key)
            return
        if self._place not in _checked:
            again = await self.put(key, data, over=None) if first is not None else None
            wrong = await self.put(key, data, over=NEVER)
            if again is not None or wrong is not None:
                ignored = "If-None-Match" if again is not None else "If-Match"
                raise StoreError(
                    f"{self.url}: this endpoint ignores {ignored} when an object is put, so that writers would "
                    "overwrite one another; use Amazon S3, or a server that supports conditional writes"
                )
            _checked[self._place] = await self._check_delete(f"{key}-{secrets.token_hex(8)}", data)
        self.conditional_deletes = _checked[self._place]

    async def _check_delete(self, key: str, data: bytes) -> bool:
        """Return whether the endpoint supports conditional deletes; leaves nothing of `key`."""
        await self.put_unique(key, data)
        supported = False
        with suppress(StoreError):  # a missing permission to delete shows in the next step
            supported = not await self.delete(key, only=NEVER)
        await self.delete(key)
        return supported

    async def versioned(self) -> bool:
        """Return whether the bucket keeps deleted objects, or cannot tell."""
        try:
            answer = await self.send("get_bucket_versioning")
        except StoreError:
            return True
        return bool(answer.get("Status"))

    async def now(self) -> datetime:
        answer = await self.send("list_objects_v2", MaxKeys=1)
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])

    async def close(self) -> None:
        await self._requests.close()

    async def send(self, operation: str, *, accept: tuple[int, ...] = (), **parameters: Any) -> Any:
        """Return the answer to a request, or only its HTTP status if S3 refuses it with one of `accept`."""
        try:
            return await self._requests.send(operation, Bucket=self._name, **parameters)
        except ClientError as error:
            if aws.status_of(error) in accept and aws.code_of(error) != "NoSuchBucket":
                return aws.status_of(error)
            raise aws.explain(error, self.url) from error


def _in_xml(text: str) -> str:
    """Return the start of a text up to a character that XML, in which some endpoints repeat it, cannot represent."""
    return re.split("[\ufffe\uffff]", text, maxsplit=1)[0]


class Cache(Generic[Value]):
    """An LRU cache bounded by size in bytes."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._size = 0
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()

    def get(self, key: str) -> Value | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: str, value: Value, size: int) -> None:
        """Cache a value of about this many bytes, unless it is too large."""
        self.drop(key)
        if size <= self._max_size // 4:
            self._values[key] = (value, size)
            self._size += size
        while self._size > self._max_size:
            self._size -= self._values.popitem(last=False)[1][1]

    def drop_all(self, prefix: str) -> int:
        """Drop the values whose keys begin like this; return how many."""
        keys = [key for key in self._values if key.startswith(prefix)]
        for key in keys:
            self.drop(key)
        return len(keys)

    def drop(self, key: str) -> None:
        if key in self._values:
            self._size -= self._values.pop(key)[1]
