"""Objects in a bucket: conditional puts, reads, deletes and lists, with errors mapped."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError
from msgspec import Struct

from ...errors import StoreBusyError, StoreError, StorePermissionError
from .. import aws

TRIES = 3
"""How often an object with a unique name is put."""
PAGE = 1000
"""Page size of S3 lists."""
_checked: dict[tuple[str, str], bool] = {}
"""Endpoints and buckets known to support conditional puts, and whether they support conditional deletes."""
NEVER = '"00000000000000000000000000000000"'
"""An ETag that no object has."""


class Found(Struct, frozen=True):
    """An object that was read."""

    data: bytes
    etag: str


class Listed(Struct, frozen=True):
    """An object that was listed."""

    key: str
    etag: str
    modified: datetime


class Bucket:
    """The objects of a bucket."""

    def __init__(self, requests: aws.Requests, name: str) -> None:
        self._requests = requests
        self._name = name
        self.url: str = str(requests.url)
        self.deletes: bool = False
        """Whether the endpoint supports conditional deletes, as Amazon S3 has since 2025."""
        self._place = (str(requests.meta.endpoint_url), name)

    async def get(self, key: str, *, unless: str | None = None) -> Found | None:
        """Return an object; None if it does not exist. Raises UnchangedError if its ETag is `unless`."""
        condition = {} if unless is None else {"IfNoneMatch": unless}
        return await self._get(key, condition)

    async def get_part(self, key: str, start: int, size: int) -> Found | None:
        """Return a byte range of an object; None if it does not exist."""
        return await self._get(key, {"Range": f"bytes={start}-{start + size - 1}"})

    async def put(self, key: str, data: bytes, *, over: str | None) -> str | None:
        """Put an object over the one with the ETag `over` or, if that is None, only if it does not exist.

        Returns its ETag; None if the condition fails. It may have been put even then: aiohttp silently repeats a
        request whose answer was lost, which then fails because of its own first attempt.
        """
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        try:
            answer = await self._send("put_object", Key=key, Body=data, **condition)
        except _RefusedError as refused:
            if not refused.by_condition:
                raise refused.explained from None
            return None
        return str(answer["ETag"])

    async def put_new(self, key: str, data: bytes) -> None:
        """Put an object with a unique name; raises StoreBusyError after repeated failures."""
        for _ in range(TRIES):
            if await self.put(key, data, over=None) is not None:
                return
            found = await self.get(key)
            if found is not None and found.data == data:
                return
        raise StoreBusyError(f"{self.url}: the object {key} could not be put; try again")

    async def delete(self, key: str, *, only: str | None = None) -> bool:
        """Delete an object; with `only`, if it has that ETag. Returns whether it is gone."""
        condition = {} if only is None else {"IfMatch": only}
        try:
            await self._send("delete_object", Key=key, **condition)
        except _RefusedError as refused:
            if not refused.by_condition:
                raise refused.explained from None
            return await self._get(key, {}) is None
        return True

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncGenerator[Listed, None]:
        """Yield all objects whose names start with `prefix`, in order, after one."""
        # Some endpoints echo it in XML, which cannot represent these two characters.
        start = None if after is None else re.split("[\ufffe\uffff]", after, maxsplit=1)[0]
        more = {} if start is None else {"StartAfter": start}
        while True:
            page = await self._list(Prefix=prefix, MaxKeys=PAGE, **more)
            for item in page.get("Contents", ()):
                if start == after or item["Key"] > after:
                    yield Listed(item["Key"], item["ETag"], item["LastModified"])
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
            await self._check(key, data, first)
        self.deletes = _checked[self._place]

    async def _check(self, key: str, data: bytes, first: str | None) -> None:
        again = await self.put(key, data, over=None) if first is not None else None
        wrong = await self.put(key, data, over=NEVER)
        if again is not None or wrong is not None:
            ignored = "If-None-Match" if again is not None else "If-Match"
            raise StoreError(
                f"{self.url}: this endpoint ignores {ignored} when an object is put, so that writers would "
                "overwrite one another; use Amazon S3, or a server that supports conditional writes"
            )
        _checked[self._place] = await self._check_delete(f"{key}-{secrets.token_hex(8)}", data)

    async def _check_delete(self, key: str, data: bytes) -> bool:
        """Return whether the endpoint supports conditional deletes; leaves nothing of `key`."""
        await self.put_new(key, data)
        heeds = False
        with suppress(StoreError):  # a missing permission to delete shows in the next step
            heeds = not await self.delete(key, only=NEVER)
        await self.delete(key)
        return heeds

    async def now(self) -> datetime:
        """Return the server's time."""
        answer = await self._list(MaxKeys=1)
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])

    async def close(self) -> None:
        """Close connections."""
        await self._requests.close()

    async def _get(self, key: str, options: dict[str, str]) -> Found | None:
        try:
            answer = await self._send("get_object", Key=key, **options)
            return Found(answer["Body"], str(answer["ETag"]))
        except _RefusedError as refused:
            if refused.status == 304:
                raise UnchangedError from None
            if refused.status == 404 and refused.code != "NoSuchBucket":
                return None
            raise refused.explained from None

    async def _list(self, **options: Any) -> Any:
        """Return a page of names; raises a Mnemic error."""
        try:
            return await self._send("list_objects_v2", **options)
        except _RefusedError as refused:
            raise refused.explained from None

    async def _send(self, operation: str, **parameters: Any) -> Any:
        """Return the answer to a request; raises _RefusedError if S3 refuses it, or a Mnemic error."""
        try:
            return await self._requests.send(operation, Bucket=self._name, **parameters)
        except ClientError as error:
            raise _RefusedError(error, aws.explain(error, self.url)) from error


class UnchangedError(Exception):
    """The object has not changed."""


class _RefusedError(Exception):
    """S3 refused a request."""

    def __init__(self, error: ClientError, explained: Exception) -> None:
        super().__init__(str(error))
        self.code = aws.code_of(error)
        self.status = aws.status_of(error)
        self.by_condition = self.status in (404, 409, 412) and self.code != "NoSuchBucket"
        self.explained = explained
        explained.__cause__ = error
