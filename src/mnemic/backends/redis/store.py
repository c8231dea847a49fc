"""Streams in Redis: read with one command or script, written with one script; and the list of all streams.

The list is sorted and split into parts, so that no command scans all keys. On a single server a stream is listed by
the call that creates or drops it. In a cluster the list is in other slots than the streams. There a stream is listed
before it is created, by a call that leaves a mark. After a drop, the name is removed only if the mark is unchanged
since the stream was found to be gone, and a concurrent creation detects that. So a listed name may have no stream for
a while, but no stream is ever missing from the list.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ...checks import shown
from ...errors import StoreError, UnreadableStoreError
from ...records import Record, StreamName, known_scope
from ...store.codec import decode_record
from ...store.protocol import Capability, Scrubbed, Unreached
from ...store.stream_state import Loaded, Needs, StreamChange, StreamState
from ..keyvalue.engine import RecordRange, StreamRange
from .client import Command, RedisClient, evalsha
from .codec import PARTS, READ, RedisKeys, WriteArguments, decode_slot, decode_state, list_part_of, read_argument

UNLISTED_FOR = 3600_000
"""How long a removal from the list is remembered, in milliseconds: longer than a write takes."""
LISTED_IN_VAIN = 60_000_000
"""After how many microseconds a listed name without a stream is removed."""


class RedisEngine:
    """Stores streams on a server or in a cluster, where all keys of a scope are in one slot."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})

    def __init__(self, client: RedisClient, keys: RedisKeys) -> None:
        self.url: str = client.url
        self.client = client
        self.keys = keys
        self.list: StreamList = StreamList(client, keys)

    def commit_group(self, scope: str) -> str:
        return scope if self.client.cluster else ""

    async def load(self, needs: Needs) -> Loaded:
        names = list({*needs.streams, *needs.keys, *needs.whole})
        wanted = {name: sorted(needs.keys.get(name, ())) for name in names}
        answers = await self.client.read_all(
            [self._reading(name, "all slots" if name in needs.whole else "slots", wanted[name]) for name in names]
        )
        loaded = Loaded(whole=set(needs.whole))
        for name, (state, live, found, _) in zip(names, answers, strict=True):
            loaded.streams[name] = self._state(state, live=bool(live))
            keys, slots = wanted[name], found
            if name in needs.whole:
                keys, slots = [key.decode() for key in found[::2]], found[1::2]
            loaded.records[name] = dict.fromkeys(keys)
            for key, slot in zip(keys, slots, strict=False):
                if slot is not None:
                    loaded.records[name][key] = self._decode(decode_slot, key, slot)
        return loaded

    async def commit(self, changes: Sequence[StreamChange], moment: int) -> bool:
        call = WriteArguments()
        for change in changes:
            call.change(self.keys.stream(change.name), change, moment)
        created = [change.name for change in changes if change.before is None and change.after is not None]
        dropped = [change.name for change in changes if change.before is not None and change.after is None]
        if not self.client.cluster:
            if created:
                self.list.add(call, created)
            self.list.remove(call, dropped)
        elif created:
            await self.list.announce(call, created)
        done = await self.client.write(call)
        if done and dropped and self.client.cluster:
            await self.list.retract(dropped)
        return done

    async def rows(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]]:
        if span.seqs is not None:
            return await self._records(name, "seqs", span.seqs, span.derived)
        after = "" if span.after is None else f"({span.after}"
        if span.reverse:
            command, bounds = "ZREVRANGEBYSCORE", (after or "+inf", "-inf")
        else:
            command, bounds = "ZRANGEBYSCORE", (after or "-inf", "+inf")
        if span.derived:
            return await self._records(name, command, (*bounds, span.limit), span.derived)
        # Expired records are removed by the server, so the state is not needed.
        found = await self.client.read(command, self.keys.stream(name).records, *bounds, "LIMIT", 0, span.limit)
        scope = known_scope(name[0])
        return None, [decode_record(scope, name[1], row) for row in found]

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[StreamState | None, list[Record]]:
        return await self._records(name, "keys", keys, ())

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        wanted = [f"{label}\0{value}" for value in values]
        _, _, found, _ = await self.client.read(*self._reading(name, "labels", wanted))
        return [int(seq) for seq in found]

    async def streams(self, reach: StreamRange) -> list[StreamState]:
        if reach.kinds and not reach.below:
            names = sorted(((reach.scope, kind) for kind in set(reach.kinds)), reverse=reach.reverse)
            states = await self._states([name for name in names if reach.includes(name)])
            return [state for state in states if state is not None][: reach.limit]
        found: list[StreamState] = []
        after = reach.after
        while True:
            listed = await self.list.names(reach, after)
            names = [name for name in listed if not reach.kinds or name[1] in reach.kinds]
            states = await self._states(names)
            found += [state for state in states if state is not None]
            if self.client.cluster and None in states:
                vain = [name for name, state in zip(names, states, strict=True) if state is None]
                await self.list.retract(vain, longer_than=LISTED_IN_VAIN)
            if len(found) >= reach.limit or len(listed) < reach.limit:
                return found[: reach.limit]
            after = listed[-1]

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Name what the server may have written to its disk."""
        return Scrubbed(
            unreached=[
                Unreached(
                    what="the append-only file and the snapshots of the Redis server and its replicas, if any",
                    until="until the file is rewritten, and the next snapshot is saved",
                    finish="run BGREWRITEAOF and BGSAVE on each server",
                )
            ]
        )

    async def close(self) -> None:
        await self.client.close()

    def _reading(self, name: StreamName, what: str, wanted: Sequence[Any], derived: Sequence[str] = ()) -> Command:
        return evalsha(READ, self.keys.stream(name)[:5], read_argument(what, derived, wanted))

    async def _records(
        self, name: StreamName, what: str, wanted: Sequence[Any], derived: Sequence[str]
    ) -> tuple[StreamState | None, list[Record]]:
        state, live, found, values = await self.client.read(*self._reading(name, what, wanted, derived))
        scope = known_scope(name[0])
        records = [decode_record(scope, name[1], row) for row in found]
        for n, record in enumerate(records):
            for at, derived_name in enumerate(derived, n * len(derived)):
                version, _, value = (values[at] or b"").partition(b" ")
                if version in (b"0", b"%d" % record.version):
                    record.derived[derived_name] = value
        return self._state(state, live=bool(live)), records

    async def _states(self, names: Sequence[StreamName]) -> list[StreamState | None]:
        keys = [self.keys.stream(name).state for name in names]
        if self.client.cluster:
            found = await self.client.read_all([("GET", key) for key in keys])
        else:
            found = await self.client.read("MGET", *keys) if keys else []
        return [self._state(state, of=name) for state, name in zip(found, names, strict=True)]

    def _state(self, stored: bytes | None, *, live: bool = True, of: StreamName | None = None) -> StreamState | None:
        if stored is None:
            return None
        state: StreamState = self._decode(decode_state, stored, of=of)
        if not live and state.count and state.expires is not None:
            # Redis has expired its records, whatever the local clock says; without records the stream is over.
            state.expires = 0
        return state

    def _decode(self, decode: Any, *stored: Any, of: StreamName | None = None) -> Any:
        try:
            return decode(*stored)
        except (ValueError, IndexError) as error:
            what = "the keys with this prefix are not Mnemic's, or are damaged"
            if of is not None:
                what = f"the state of the {of[1]} stream of {shown(of[0])} is damaged"
            raise UnreadableStoreError(f"{self.url}: {what} ({error})", stream=of) from error


class StreamList:
    """Names of all streams, in the order of scope and kind."""

    def __init__(self, client: RedisClient, keys: RedisKeys) -> None:
        self._client = client
        self._keys = keys

    def add(self, call: WriteArguments, names: Iterable[StreamName]) -> None:
        """List streams in the call that creates them."""
        call.frees = False
        for name in names:
            call.run("ZADD", self._keys.list_part(list_part_of(name[0])), b"0", _member(name))

    def remove(self, call: WriteArguments, names: Iterable[StreamName]) -> None:
        """Remove streams from the list in the call that drops them."""
        for name in names:
            call.run("ZREM", self._keys.list_part(list_part_of(name[0])), _member(name))

    async def announce(self, call: WriteArguments, names: Sequence[StreamName]) -> None:
        """List streams of a scope before the call that creates them, which fails if one is removed meanwhile."""
        scope = names[0][0]
        unlisted = self._keys.unlisted(scope)
        call.check(unlisted, await self._client.read("GET", unlisted) or b"")
        listing = WriteArguments()
        self.add(listing, names)
        times = self._keys.list_times(list_part_of(scope))
        added = f"{_now()} {secrets.token_hex(8)}".encode()
        for name in names:
            listing.run("HSET", times, _member(name), added)
        await self._client.write(listing, repeatable=True)

    async def retract(self, names: Iterable[StreamName], *, longer_than: int = 0) -> None:
        """Remove dropped streams that have been listed longer than this, in microseconds.

        Failures are left to the next reader that finds a name without a stream.
        """
        with suppress(StoreError):
            for name in names:
                await self._retract(name, longer_than)

    async def _retract(self, name: StreamName, longer_than: int) -> None:
        times, member = self._keys.list_times(list_part_of(name[0])), _member(name)
        added: bytes = await self._client.read("HGET", times, member) or b""
        if added and int(added.split()[0]) + longer_than > _now():
            return
        marking = WriteArguments()
        marking.check(self._keys.stream(name).state, b"")
        mark = secrets.token_hex(8).encode()
        marking.run("SET", self._keys.unlisted(name[0]), mark, b"PX", b"%d" % UNLISTED_FOR)
        if not await self._client.write(marking):
            return
        removal = WriteArguments()
        removal.check(times, added, field=member)
        self.remove(removal, [name])
        removal.run("HDEL", times, member)
        await self._client.write(removal)

    async def names(self, reach: StreamRange, after: StreamName | None) -> list[StreamName]:
        """Return the next names in a range, of any kind; fewer than its limit only at the end."""
        found: list[bytes] = []
        parts = range(PARTS) if not reach.scope and reach.below else (list_part_of(reach.scope),)
        for low, high in _ranges(reach, after):
            wanted = reach.limit - len(found)
            first, last = b"[" + low, b"(" + high
            command, *bounds = ("ZREVRANGEBYLEX", last, first) if reach.reverse else ("ZRANGEBYLEX", first, last)
            answers = await self._client.read_all(
                [(command, self._keys.list_part(part), *bounds, "LIMIT", 0, wanted) for part in parts]
            )
            found += sorted((member for answer in answers for member in answer), reverse=reach.reverse)[:wanted]
            if len(found) == reach.limit:
                break
        return [(scope, kind) for scope, _, kind in (member.decode().partition("\0") for member in found)]


def _ranges(reach: StreamRange, after: StreamName | None) -> list[tuple[bytes, bytes]]:
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


def _member(name: StreamName) -> bytes:
    # Names have no NUL, which sorts before every other character, so the order is that of the names.
    return f"{name[0]}\0{name[1]}".encode()


def _now() -> int:
    return time.time_ns() // 1000
