"""The server's own vector index, if it has vector sets, as Redis 8 does: one set per tenant and embedder.

It is derived data, brought up to date by searches. Scopes are hashed, so that no name can break a filter. Words
are not indexed there: the caller compares those of the nearest records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from msgspec import json

from ...errors import StoreError, StoreUnavailableError
from ...recall.index_entry import unpack
from ...recall.strength import USE
from ...records import Record, ScopePath, known_scope
from ...store.nearest import Mark, Near, Nearby
from ...store.planning import StreamName
from ...store.protocol import Capability
from ..keyvalue.engine import Reach, Span
from ..keyvalue.kept import KeptHead
from ..keyvalue.store import KeyValueStore
from .client import Command, RedisClient
from .engine import RedisEngine
from .keys import Keys

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGE = 50_000
"""Scopes with at least this many records are searched by the server, unless the URL overrides it."""
STREAMS = 500
EVERY = 1_000_000
"""How many points a filter may inspect, so that it misses nothing."""
AT_ONCE = 500
"""How many commands are sent at once."""


class RedisStore(KeyValueStore):
    """A store whose server searches vectors, if it can."""

    _engine: RedisEngine
    index: RedisIndex

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that the server enables."""
        found = {Capability.NEAREST} if hasattr(self, "index") else set()
        return super().capabilities | found

    async def look_for_vectors(self, server: RedisClient, keys: Keys, large: int) -> None:
        """Use the server's index if it has vector sets."""
        try:
            await server.read("VCARD", keys.of("vectors", ":none"))
        except StoreUnavailableError:
            raise
        except StoreError:
            return  # it does not know the command, or the user lacks the permission
        self.index = RedisIndex(server, keys, self._engine, self._moment, large)


class RedisIndex:
    """Finds records by vector on the server that stores them."""

    tidy = False

    def __init__(
        self, server: RedisClient, keys: Keys, engine: RedisEngine, moment: Callable[[], int], large: int
    ) -> None:
        self.url: str = server.url
        self.large = large
        self._server = server
        self._keys = keys
        self._engine = engine
        self._moment = moment

    async def nearby(self, near: Near) -> Nearby:
        """Return records by vector, and the streams for which the index is behind."""
        records, behind = await asyncio.gather(self.near(near), self._behind(near))
        return Nearby(records, behind)

    async def near(self, near: Near) -> list[Record]:
        """Return records by vector."""
        if near.vector is None:
            return []
        tests = [f'"{_hash(near.scope.path)}" in .w' if near.below else f'.s == "{_hash(near.scope.path)}"']
        if near.kinds:
            tests.append(f".k in [{', '.join(f'{_text(kind)}' for kind in near.kinds)}]")
        asked: list[Command] = [
            (
                "VSIM", place, "FP32", _floats(near.vector), "WITHATTRIBS", "COUNT", near.limit,
                "EF", 2 * near.limit, "FILTER", " and ".join(tests), "FILTER-EF", EVERY,
            )
            for place in await self._sets(near)
        ]  # fmt: skip
        places: dict[StreamName, set[int]] = {}
        for answer in await self._server.read_all(asked):
            for told in answer.values() if isinstance(answer, dict) else answer[1::2]:
                point = json.decode(told)
                places.setdefault((point["p"], point["k"]), set()).add(point["q"])
        found = await asyncio.gather(*(self._read(near, name, seqs) for name, seqs in places.items()))
        return [record for records in found for record in records]

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        """Return how far the index has followed the streams of a scope and below."""
        near = Near(scope=scope, name=name)
        asked: list[Command] = [("HGETALL", self._place(tenant, name, "marks")) for tenant in await self._tenants(near)]
        found: dict[StreamName, Mark] = {}
        for answer in await self._server.read_all(asked):
            for stream, mark in answer.items():
                path, _, kind = stream.decode().partition("\0")
                if scope.holds(known_scope(path)):
                    found[path, kind] = Mark(*json.decode(mark))
        return found

    async def put(self, name: str, records: Sequence[Record]) -> None:
        """Add records, replacing older versions."""
        by_stream: dict[StreamName, list[Record]] = {}
        for record in records:
            by_stream.setdefault((record.scope.path, record.kind), []).append(record)
        commands: list[Command] = []
        for stream, some in by_stream.items():
            await self._forget(stream, [record.key for record in some], [name])
            tenant = _tenant(stream[0])
            place, points = self._place(tenant, name, "set"), self._points(stream, name)
            within = [_hash(one.path) for one in _above(known_scope(stream[0]))]
            for record in some:
                vectors = unpack(record.derived[name]).vectors
                if vectors is None:
                    continue
                told = json.encode({"w": within, "s": within[-1], "p": stream[0], "k": stream[1], "q": record.seq})
                commands += [
                    (
                        "VADD",
                        place,
                        "FP32",
                        _floats(row.tobytes()),
                        _point(record.key, stream, n),
                        "Q8",
                        "SETATTR",
                        told,
                    )
                    for n, row in enumerate(vectors)
                ]
                commands.append(("HSET", points, record.key, len(vectors)))
            commands.append(("SADD", self._all, json.encode([tenant, name])))
            commands += [("SADD", self._names(tenant), name), ("SADD", self._held(tenant), points)]
        await self._send(commands)

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        """Remove records of a stream for every embedder; with None, the whole stream and its marks."""
        tenant = _tenant(stream[0])
        names = [name.decode() for name in await self._server.read("SMEMBERS", self._names(tenant))]
        for name in names:
            some = await self.keys(name, stream) if keys is None else keys
            await self._forget(stream, some, [name])
        if keys is None:
            field = "\0".join(stream)
            await self._send([("HDEL", self._place(tenant, name, "marks"), field) for name in names])

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        """Return the keys of a stream that the index contains."""
        return [key.decode() for key in await self._server.read("HKEYS", self._points(stream, name))]

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        """Record how far the index has followed a stream."""
        told = json.encode([mark.version, mark.last_seq, mark.count])
        tenant = _tenant(stream[0])
        await self._send(
            [
                ("HSET", self._place(tenant, name, "marks"), "\0".join(stream), told),
                ("SADD", self._names(tenant), name),
                ("SADD", self._all, json.encode([tenant, name])),
            ]
        )

    async def reset(self) -> None:
        """Delete the whole index."""
        told = [json.decode(one) for one in await self._server.read("SMEMBERS", self._all)]
        for tenant, name in told:
            held = await self._server.read("SMEMBERS", self._held(tenant))
            gone = [*held, self._held(tenant), self._names(tenant)]
            gone += [self._place(tenant, name, "set"), self._place(tenant, name, "marks")]
            await self._send([("UNLINK", key) for key in gone])
        await self._send([("DEL", self._all)])

    async def close(self) -> None:
        """Do nothing: the store owns the connections."""

    async def _behind(self, near: Near) -> list[tuple[Any, Mark | None]]:
        marks = await self.marks(near.name, near.scope)
        found: list[tuple[Any, Mark | None]] = []
        reach = Reach(near.scope.path, True, (), False, None, STREAMS)
        while True:
            heads = await self._engine.heads(reach)
            for head in heads:
                mark = marks.get(head.name)
                if not head.blank and (mark is None or mark.version != head.version):
                    found.append((head.state().stream(head.count, head.weight), mark))
            if len(heads) < reach.limit:
                return found
            reach = Reach(near.scope.path, True, (), False, heads[-1].name, STREAMS)

    async def _read(self, near: Near, name: StreamName, seqs: set[int]) -> list[Record]:
        span = Span(False, None, len(seqs), tuple(sorted(seqs)), (near.name, USE))
        head, rows = await self._engine.rows(name, span)
        if _ended(head, self._moment()):
            return []
        found = ((row, row.values((near.name, USE))) for row in rows)
        scope = known_scope(name[0])
        return [row.kept.record(scope, name[1], derived) for row, derived in found if near.name in derived]

    async def _forget(self, stream: StreamName, keys: Sequence[str], names: Sequence[str]) -> None:
        commands: list[Command] = []
        for name in names if keys else ():
            points, place = self._points(stream, name), self._place(_tenant(stream[0]), name, "set")
            for key, count in zip(keys, await self._server.read("HMGET", points, *keys), strict=True):
                commands += [("VREM", place, _point(key, stream, n)) for n in range(int(count or 0))]
            commands.append(("HDEL", points, *keys))
        await self._send(commands)

    async def _send(self, commands: list[Command]) -> None:
        # Each is idempotent, so it may be sent twice.
        for start in range(0, len(commands), AT_ONCE):
            await self._server.read_all(commands[start : start + AT_ONCE])

    async def _tenants(self, near: Near) -> list[str]:
        if near.scope.path:
            return [_tenant(near.scope.path)]
        told = [json.decode(one) for one in await self._server.read("SMEMBERS", self._all)]
        return sorted({tenant for tenant, name in told if name == near.name})

    async def _sets(self, near: Near) -> list[bytes]:
        return [self._place(tenant, near.name, "set") for tenant in await self._tenants(near)]

    @property
    def _all(self) -> bytes:
        return self._keys.of("vectors", ":all")

    def _names(self, tenant: str) -> bytes:
        return self._keys.of(f"vectors-{tenant}", ":names")

    def _held(self, tenant: str) -> bytes:
        return self._keys.of(f"vectors-{tenant}", ":held")

    def _place(self, tenant: str, name: str, what: str) -> bytes:
        return self._keys.of(f"vectors-{tenant}", f":{what}:{name}")

    def _points(self, stream: StreamName, name: str) -> bytes:
        return self._keys.of(f"vectors-{_tenant(stream[0])}", f":points:{name}:{stream[1]}:{stream[0]}")


def _tenant(path: str) -> str:
    return _hash(path.partition("/")[0])


def _above(scope: ScopePath) -> list[ScopePath]:
    """Return a scope and its ancestors, the root first."""
    return [ScopePath("/".join(scope.segments[:n])) for n in range(len(scope.segments) + 1)]


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _point(key: str, stream: StreamName, piece: int) -> str:
    return f"{_hash(chr(0).join((*stream, key)))}{piece}"


def _text(kind: str) -> str:
    return json.encode(kind).decode()


def _floats(vector: bytes) -> bytes:
    import numpy as np

    whole: NDArray[np.float32] = np.frombuffer(vector, dtype=np.int8).astype("<f4")
    return whole.tobytes()


def _ended(head: KeptHead | None, moment: int) -> bool:
    return head is not None and head.ended(moment)
