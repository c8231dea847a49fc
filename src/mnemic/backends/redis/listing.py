"""The list of all streams, in order, split into parts, so that no command scans all keys.

On a single server a stream is listed in the same step that creates or drops it. In a cluster the list is in other
slots than the streams. There a stream is listed before it is created, by a call that leaves a mark. After a drop,
the name is removed only if the mark is unchanged since the stream was found to be gone, and a concurrent creation
detects that. So a listed name may have no stream for a while, but no stream is ever missing from the list.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ...errors import StoreError
from ...store.planning import StreamName
from ..keyvalue.engine import Reach
from .client import Command, RedisClient
from .keys import SHELVES, Keys, shelf_of
from .scripts import FREE, WRITE
from .steps import Step

MARKED = 3600_000
"""How long a removal is remembered, in milliseconds: longer than a write takes."""
IN_VAIN = 60_000_000
"""After how many microseconds a listed name without a stream is removed."""


class Listing:
    """Names of all streams, in the order of scope and kind."""

    def __init__(self, server: RedisClient, keys: Keys) -> None:
        self._server = server
        self._keys = keys

    def add(self, step: Step, name: StreamName) -> None:
        """List a stream in the step that creates it."""
        step.do("ZADD", step.key(self._keys.shelf(shelf_of(name[0]))), b"0", _member(name))

    def remove(self, step: Step, name: StreamName) -> None:
        """Remove a stream from the list in the step that drops it."""
        step.do("ZREM", step.key(self._keys.shelf(shelf_of(name[0]))), _member(name))

    async def announce(self, step: Step, names: Sequence[StreamName]) -> None:
        """List streams of a scope before the step that creates them, which fails if one is removed meanwhile."""
        scope = names[0][0]
        mark = await self._server.read("GET", self._keys.unlisted(scope))
        step.check(step.key(self._keys.unlisted(scope)), mark or b"")
        shelf = shelf_of(scope)
        listed = Step()
        added = f"{_now()} {secrets.token_hex(8)}"
        for name in names:
            self.add(listed, name)
            listed.do("HSET", listed.key(self._keys.added(shelf)), _member(name), added.encode())
        await self._server.write(WRITE, listed.keys, listed.arguments(), repeatable=True)

    async def retract(self, names: Iterable[StreamName], *, longer_than: int = 0) -> None:
        """Remove dropped streams that have been listed longer than this, in microseconds.

        Failures are left to the next reader that finds a name without a stream.
        """
        with suppress(StoreError):
            for name in names:
                await self._retract(name, longer_than)

    async def _retract(self, name: StreamName, longer_than: int) -> None:
        shelf, member = shelf_of(name[0]), _member(name)
        added: bytes = await self._server.read("HGET", self._keys.added(shelf), member) or b""
        if added and int(added.split()[0]) + longer_than > _now():
            return
        gone = Step()
        gone.check(gone.key(self._keys.stream(name).head), b"")
        mark = secrets.token_hex(8).encode()
        gone.do("SET", gone.key(self._keys.unlisted(name[0])), mark, b"PX", b"%d" % MARKED)
        if not await self._server.write(FREE, gone.keys, gone.arguments()):
            return
        off = Step()
        off.check(off.key(self._keys.added(shelf)), added, field=member)
        self.remove(off, name)
        off.do("HDEL", off.key(self._keys.added(shelf)), member)
        await self._server.write(FREE, off.keys, off.arguments())

    async def names(self, reach: Reach, after: StreamName | None, limit: int) -> list[StreamName]:
        """Return the next names in a range, of any kind; fewer than `limit` only at the end."""
        found: list[bytes] = []
        for low, high in self._ranges(reach, after):
            shelves = range(SHELVES) if not reach.scope and reach.below else (shelf_of(reach.scope),)
            wanted = limit - len(found)
            asked = [self._range(shelf, low, high, reach.reverse, wanted) for shelf in shelves]
            answers = await self._server.read_all(asked)
            found += sorted((m for answer in answers for m in answer), reverse=reach.reverse)[:wanted]
            if len(found) == limit:
                break
        return [_name(member) for member in found]

    def _ranges(self, reach: Reach, after: StreamName | None) -> list[tuple[bytes, bytes]]:
        """Return the first name, and the one after the last, of each range, in order."""
        scope = reach.scope.encode()
        if reach.below and not scope:
            ranges = [(b"", b"\xff")]
        else:
            # Other scopes sort between a scope and those below it, such as a-b between a and a/b.
            ranges = [(scope + b"\0", scope + b"\1")]
            if reach.below:
                ranges.append((scope + b"/", scope + b"0"))
        if reach.reverse:
            ranges.reverse()
        if after is None:
            return ranges
        if reach.reverse:
            return [(low, min(high, _member(after))) for low, high in ranges if low < _member(after)]
        return [(max(low, _member(after) + b"\0"), high) for low, high in ranges if high > _member(after)]

    def _range(self, shelf: int, low: bytes, high: bytes, reverse: bool, limit: int) -> Command:
        first, last = b"[" + low, b"(" + high
        command = "ZREVRANGEBYLEX" if reverse else "ZRANGEBYLEX"
        bounds = (last, first) if reverse else (first, last)
        return (command, self._keys.shelf(shelf), *bounds, "LIMIT", 0, limit)


def _member(name: StreamName) -> bytes:
    # Names have no NUL, which sorts before every other character, so the order is that of the names.
    return f"{name[0]}\0{name[1]}".encode()


def _name(member: bytes) -> StreamName:
    scope, _, kind = member.decode().partition("\0")
    return scope, kind


def _now() -> int:
    return time.time_ns() // 1000
