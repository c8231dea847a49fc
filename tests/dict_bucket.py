"""A bucket in a dictionary, which counts requests and can be made to fail at any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import count

from mnemic.backends.s3.client import Bucket, ListedObject, StoredObject, UnchangedError
from mnemic.errors import StoreUnavailableError


class DictBucket(Bucket):
    """Keeps objects in a dictionary; several engines can use it as if each had a connection of its own."""

    def __init__(self, *, conditional_deletes: bool = True) -> None:
        self.url = "s3://dict"
        self.conditional_deletes = conditional_deletes
        self.objects: dict[str, tuple[bytes, str, datetime]] = {}
        self.time = datetime(2024, 1, 1, tzinfo=UTC)
        self.requests: Counter[str] = Counter()
        self.breaks_after: int | None = None
        """After how many more requests that change something the connection breaks."""
        self.loses = False
        """Whether the request at which it breaks is done, and only its answer is lost."""
        self.resends = False
        """Whether each put is sent twice, as a driver does that has lost the first answer."""
        self.meanwhile: Callable[[str], Awaitable[None]] | None = None
        """What others do before an object is put."""
        self._puts = count()

    def keys(self, part: str) -> list[str]:
        """Return the names that hold some text."""
        return sorted(key for key in self.objects if part in key)

    async def get(self, key: str, *, unless: str | None = None) -> StoredObject | None:
        self.requests["get"] += 1
        if key not in self.objects:
            return None
        data, etag, _ = self.objects[key]
        if etag == unless:
            self.requests["unchanged"] += 1
            raise UnchangedError
        return StoredObject(data, etag)

    async def put_unique(self, key: str, data: bytes) -> None:
        assert key not in self.objects
        await self.put(key, data, over=None)

    async def put(self, key: str, data: bytes, *, over: str | None) -> str | None:
        if self.meanwhile is not None:
            await self.meanwhile(key)
        self.requests["put"] += 1
        broken = self._break()
        if broken and not self.loses:
            raise StoreUnavailableError("the connection broke")
        before = self.objects.get(key)
        if (before[1] if before else None) != over:
            return None
        etag = f"{md5(data).hexdigest()}-{next(self._puts)}"
        self.objects[key] = (data, etag, self.time)
        if broken:
            raise StoreUnavailableError("the connection broke")
        return None if self.resends else etag

    async def delete(self, key: str, *, only: str | None = None) -> bool:
        self.requests["delete"] += 1
        if self._break():
            raise StoreUnavailableError("the connection broke")
        if only is not None:
            assert self.conditional_deletes
            if key not in self.objects or self.objects[key][1] != only:
                return False
        self.objects.pop(key, None)
        return True

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ListedObject, None]:
        self.requests["list"] += 1
        for key in sorted(self.objects, key=str.encode):
            if key.startswith(prefix) and key > after and key in self.objects:
                data, etag, modified = self.objects[key]
                yield ListedObject(key, etag, modified, len(data))

    async def now(self) -> datetime:
        return self.time

    def wait(self, time: timedelta) -> None:
        """Let time pass."""
        self.time += time

    async def close(self) -> None:
        """Keep everything."""

    def _break(self) -> bool:
        if self.breaks_after is None:
            return False
        self.breaks_after -= 1
        return self.breaks_after < 0
