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
from ...recall.index_entry import USE, unpack
from ...records import Record, ScopePath, StreamName, known_scope
from ...store.protocol import Capability, Mark, Near, Nearby
from ..keyvalue.engine import RecordRange, StreamRange
from ..keyvalue.store import KeyValueStore
from .client import Command
from .store import RedisEngine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_INSPECTED = 1_000_000
"""How many points a filter may inspect, so that it misses nothing."""
MOST_COMMANDS = 500
"""How many commands are sent at once."""


class RedisStore(KeyValueStore):
    """A store whose server searches vectors, if it can."""

    _engine: RedisEngine
    index: RedisIndex

    @property
    def capabilities(self) -> frozenset[Capability]:
        found = {Capability.NEAREST} if hasattr(self, "index") else set()
        return super().capabilities | found

    async def find_index(self, large: int) -> None:
        """Use the server's index if it has vector sets."""
        try:
            await self._engine.client.read("VCARD", self._engine.keys.internal("vectors", ":none"))
        except StoreUnavailableError:
            raise
        except StoreError:
            return  # it does not know the command, or the user lacks the permission
        self.index = RedisIndex(self._engine, self._moment, large)


class RedisIndex:
    """Finds records by vector on the server that stores them."""

    tidy = False

    def __init__(self, engine: RedisEngine, moment: Callable[[], int], large: int) -> None:
        self.url: str = engine.url
        self.large = large
        self._engine = engine
        self._client = engine.client
        self._moment = moment
        self._all = engine.keys.internal("vectors", ":all")

    async def nearby(self, near: Near) -> Nearby:
        records, behind = await asyncio.gather(self.near(near), self._behind(near))
        return Nearby(records, behind)

    async def near(self, near: Near) -> list[Record]:
        if near.vector is None:
            return []
        tests = [f'"{_hash(near.scope.path)}" in .w' if near.below else f'.s == "{_hash(near.scope.path)}"']
        if near.kinds:
            tests.append(f".k in [{', '.join(json.encode(kind).decode() for kind in near.kinds)}]")
        searches: list[Command] = [
            (
                "VSIM", self._key(tenant, near.name, "set"), "FP32", _floats(near.vector), "WITHATTRIBS", "COUNT",
                near.limit, "EF", 2 * near.limit, "FILTER", " and ".join(tests), "FILTER-EF", MOST_INSPECTED,
            )
            for tenant in await self._tenants(near.name, near.scope)
        ]  # fmt: skip
        seqs: dict[StreamName, set[int]] = {}
        for answer in await self._client.read_all(searches):
            for attributes in answer.values() if isinstance(answer, dict) else answer[1::2]:
                point = json.decode(attributes)
                seqs.setdefault((point["p"], point["k"]), set()).add(point["q"])
        found = await asyncio.gather(*(self._read(near, name, some) for name, some in seqs.items()))
        return [record for records in found for record in records]

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        tenants = await self._tenants(name, scope)
        found: dict[StreamName, Mark] = {}
        for answer in await self._client.read_all(
            [("HGETALL", self._key(tenant, name, "marks")) for tenant in tenants]
        ):
            for stream, mark in answer.items():
                path, _, kind = stream.decode().partition("\0")
                if scope.contains(known_scope(path)):
                    found[path, kind] = Mark(*json.decode(mark))
        return found

    async def put(self, name: str, records: Sequence[Record]) -> None:
        by_stream: dict[StreamName, list[Record]] = {}
        for record in records:
            by_stream.setdefault((record.scope.path, record.kind), []).append(record)
        commands: list[Command] = []
        for stream, some in by_stream.items():
            await self._forget(name, stream, [record.key for record in some])
            tenant, points = _tenant(stream[0]), self._points(stream, name)
            segments = known_scope(stream[0]).segments
            ancestors = [_hash("/".join(segments[:n])) for n in range(len(segments) + 1)]
            for record in some:
                vectors = unpack(record.derived[name]).vectors
                if vectors is None:
                    continue
                attributes = json.encode(
                    {"w": ancestors, "s": ancestors[-1], "p": stream[0], "k": stream[1], "q": record.seq}
                )
                place = self._key(tenant, name, "set")
                for n, row in enumerate(vectors):
                    floats, point = _floats(row.tobytes()), _point(record.key, stream, n)
                    commands.append(("VADD", place, "FP32", floats, point, "Q8", "SETATTR", attributes))
                commands.append(("HSET", points, record.key, len(vectors)))
            commands += [*self._registration(tenant, name), ("SADD", self._streams(tenant), points)]
        await self._send(commands)

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        tenant = _tenant(stream[0])
        for name in [name.decode() for name in await self._client.read("SMEMBERS", self._names(tenant))]:
            await self._forget(name, stream, await self.keys(name, stream) if keys is None else keys)
            if keys is None:
                await self._send([("HDEL", self._key(tenant, name, "marks"), "\0".join(stream))])

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        return [key.decode() for key in await self._client.read("HKEYS", self._points(stream, name))]

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        tenant = _tenant(stream[0])
        value = json.encode([mark.version, mark.last_seq, mark.count])
        marking = ("HSET", self._key(tenant, name, "marks"), "\0".join(stream), value)
        await self._send([marking, *self._registration(tenant, name)])

    async def reset(self) -> None:
        for tenant, name in await self._registered():
            keys = [*await self._client.read("SMEMBERS", self._streams(tenant)), self._streams(tenant)]
            keys += [self._names(tenant), self._key(tenant, name, "set"), self._key(tenant, name, "marks")]
            await self._send([("UNLINK", key) for key in keys])
        await self._send([("DEL", self._all)])

    async def close(self) -> None:
        """Do nothing: the store owns the connections."""

    async def _behind(self, near: Near) -> list[tuple[Any, Mark | None]]:
        marks = await self.marks(near.name, near.scope)
        found: list[tuple[Any, Mark | None]] = []
        reach = StreamRange(near.scope.path, below=True)
        while True:
            states = await self._engine.streams(reach)
            for state in states:
                mark = marks.get(state.name)
                if mark is None or mark.version != state.version:
                    found.append((state.stream(state.count, state.weight), mark))
            if len(states) < reach.limit:
                return found
            reach = StreamRange(near.scope.path, below=True, after=states[-1].name)

    async def _read(self, near: Near, name: StreamName, seqs: set[int]) -> list[Record]:
        span = RecordRange(limit=len(seqs), seqs=tuple(sorted(seqs)), derived=(near.name, USE))
        state, records = await self._engine.rows(name, span)
        if state is not None and state.ended(self._moment()):
            return []
        return [record for record in records if near.name in record.derived]

    async def _forget(self, name: str, stream: StreamName, keys: Sequence[str]) -> None:
        if not keys:
            return
        points, place = self._points(stream, name), self._key(_tenant(stream[0]), name, "set")
        commands: list[Command] = []
        for key, count in zip(keys, await self._client.read("HMGET", points, *keys), strict=True):
            commands += [("VREM", place, _point(key, stream, n)) for n in range(int(count or 0))]
        await self._send([*commands, ("HDEL", points, *keys)])

    async def _send(self, commands: Sequence[Command]) -> None:
        # Each is idempotent, so it may be sent twice.
        for start in range(0, len(commands), MOST_COMMANDS):
            await self._client.read_all(commands[start : start + MOST_COMMANDS])

    async def _tenants(self, name: str, scope: ScopePath) -> list[str]:
        if scope.path:
            return [_tenant(scope.path)]
        return sorted({tenant for tenant, registered in await self._registered() if registered == name})

    async def _registered(self) -> list[tuple[str, str]]:
        return [json.decode(pair) for pair in await self._client.read("SMEMBERS", self._all)]

    def _registration(self, tenant: str, name: str) -> list[Command]:
        return [("SADD", self._all, json.encode([tenant, name])), ("SADD", self._names(tenant), name)]

    def _names(self, tenant: str) -> bytes:
        """Return the key of the set of a tenant's embedders."""
        return self._engine.keys.internal(f"vectors-{tenant}", ":names")

    def _streams(self, tenant: str) -> bytes:
        """Return the key of the set of a tenant's `_points` keys."""
        return self._engine.keys.internal(f"vectors-{tenant}", ":streams")

    def _key(self, tenant: str, name: str, what: str) -> bytes:
        return self._engine.keys.internal(f"vectors-{tenant}", f":{what}:{name}")

    def _points(self, stream: StreamName, name: str) -> bytes:
        """Return the key of the hash of how many vectors each record of a stream has."""
        return self._key(_tenant(stream[0]), f"{name}:{stream[1]}:{stream[0]}", "points")


def _tenant(path: str) -> str:
    return _hash(path.partition("/")[0])


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _point(key: str, stream: StreamName, piece: int) -> str:
    return f"{_hash(chr(0).join((*stream, key)))}{piece}"


def _floats(vector: bytes) -> bytes:
    import numpy as np

    numbers: NDArray[np.float32] = np.frombuffer(vector, dtype=np.int8).astype("<f4")
    return numbers.tobytes()
