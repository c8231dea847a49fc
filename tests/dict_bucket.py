"""A bucket in a dictionary, which counts what is asked of it and breaks where it is told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import count

from mnemic.backends.s3.objects import Bucket, Found, Listed, UnchangedError
from mnemic.errors import StoreUnavailableError


class DictBucket(Bucket):
    """Keeps objects in a dictionary; it is lent to several engines as if each had a connection of its own."""

    def __init__(self, *, deletes: bool = True) -> None:
        self.url = "s3://dict"
        self.deletes = deletes
        self.objects: dict[str, tuple[bytes, str, datetime]] = {}
        self.time = datetime(2024, 1, 1, tzinfo=UTC)
        self.asked: Counter[str] = Counter()
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

    async def get(self, key: str, *, unless: str | None = None) -> Found | None:
        self.asked["get"] += 1
        if key not in self.objects:
            return None
        data, etag, _ = self.objects[key]
        if etag == unless:
            self.asked["unchanged"] += 1
            raise UnchangedError
        return Found(data, etag)

    async def get_part(self, key: str, start: int, size: int) -> Found | None:
        self.asked["get part"] += 1
        found = self.objects.get(key)
        return None if found is None else Found(found[0][start : start + size], found[1])

    async def put(self, key: str, data: bytes, *, over: str | None) -> str | None:
        if self.meanwhile is not None:
            await self.meanwhile(key)
        self.asked["put"] += 1
        broken = self._break()
        if broken and not self.loses:
            raise StoreUnavailableError("the connection broke")
        held = self.objects.get(key)
        if (held[1] if held else None) != over:
            return None
        etag = f"{md5(data).hexdigest()}-{next(self._puts)}"
        self.objects[key] = (data, etag, self.time)
        if broken:
            raise StoreUnavailableError("the connection broke")
        return None if self.resends else etag

    async def delete(self, key: str, *, only: str | None = None) -> bool:
        self.asked["delete"] += 1
        if self._break():
            raise StoreUnavailableError("the connection broke")
        if only is not None and self.deletes and (key not in self.objects or self.objects[key][1] != only):
            return key not in self.objects
        self.objects.pop(key, None)
        return True

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncGenerator[Listed, None]:
        self.asked["list"] += 1
        for key in sorted(self.objects, key=str.encode):
            if key.startswith(prefix) and (after is None or key > after) and key in self.objects:
                yield Listed(key, *self.objects[key][1:])

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
