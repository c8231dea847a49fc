"""Streams in Redis: read with one command or script, written with one script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import DecodeError, ValidationError, json

from ...errors import UnreadableStoreError
from ...store.planning import Needs, RecordState, StreamName
from ...store.protocol import Capability
from ..keyvalue.engine import Batch, Loaded, Reach, Span
from ..keyvalue.kept import KeptHead, Row, decode_head, decode_kept
from .client import Command, RedisClient, evalsha
from .keys import Keys
from .listing import IN_VAIN, Listing
from .scripts import FREE, READ, WRITE
from .steps import Step, frees, packed

_SLOT = json.Decoder(tuple[int, int, int, int, dict[str, str], int | None]).decode


class RedisEngine:
    """Stores the bytes of a store: a server is one partition; in a cluster, each scope is one."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})
    expires_streams = True

    def __init__(self, server: RedisClient, keys: Keys) -> None:
        self.url: str = server.url
        self._server = server
        self._keys = keys
        self._listing = Listing(server, keys)

    def partition(self, name: StreamName) -> str:
        return name[0] if self._server.cluster else ""

    def fits(self, batch: Batch) -> bool:
        # A journal is one string, as large as the batch.
        return True

    async def load(self, needs: Needs) -> Loaded:
        names = list({*needs.streams, *needs.keys, *needs.whole})
        asked = {name: sorted(needs.keys.get(name, ())) for name in names}
        calls = [
            self._reading(name, "whole", ())
            if name in needs.whole
            else self._reading(name, "slots", packed(asked[name]))
            for name in names
        ]
        answers = await self._server.read_all(calls)
        loaded = Loaded()
        for name, (head, live, found, _) in zip(names, answers, strict=True):
            loaded.heads[name] = self._head(head, live=bool(live))
            if name in needs.whole:
                pairs = zip(found[::2], found[1::2], strict=True)
                loaded.slots[name] = {key.decode(): self._slot(key.decode(), slot) for key, slot in pairs}
                loaded.whole.add(name)
            elif asked[name]:
                slots = found or [None] * len(asked[name])
                loaded.slots[name] = {
                    key: slot and self._slot(key, slot) for key, slot in zip(asked[name], slots, strict=True)
                }
        return loaded

    async def commit(self, batch: Batch) -> bool:
        step = Step(batch.moment)
        for change in batch.changes:
            step.change(self._keys.stream(change.name), change)
        changed = [change for change in batch.changes if not change.same]
        made = [change.name for change in changed if change.expected is None and change.head is not None]
        dropped = [change.name for change in changed if change.expected is not None and change.head is None]
        if not self._server.cluster:
            for name in made:
                self._listing.add(step, name)
            for name in dropped:
                self._listing.remove(step, name)
        elif made:
            await self._listing.announce(step, made)
        done = await self._server.write(FREE if frees(batch.changes) else WRITE, step.keys, step.arguments())
        if done and dropped and self._server.cluster:
            await self._listing.retract(dropped)
        return done

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        if span.seqs is not None:
            return await self._rows(name, "seqs", span.seqs, span.derived)
        if span.reverse:
            after = "+inf" if span.after is None else f"({span.after}"
            command, bounds = "ZREVRANGEBYSCORE", (after, "-inf")
        else:
            after = "-inf" if span.after is None else f"({span.after}"
            command, bounds = "ZRANGEBYSCORE", (after, "+inf")
        if self._server.cluster or span.derived:
            return await self._rows(name, command, (*bounds, span.limit), span.derived)
        # Expired data is gone by itself, and nothing is ever pending, so the head is not needed.
        rows = self._keys.stream(name).rows
        found = await self._server.read(command, rows, *bounds, "LIMIT", 0, span.limit)
        return None, [self._row(row) for row in found]

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        return await self._rows(name, "keys", packed(keys), ())

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        wanted = [f"{label}\0{value}" for value in values]
        head, live, found, _ = await self._server.read(*self._reading(name, "labels", wanted))
        kept = self._head(head, live=bool(live))
        if kept is not None and kept.pending is not None:
            return None  # pending data may have such labels, too
        return [int(seq) for seq in found]

    async def heads(self, reach: Reach) -> list[KeptHead]:
        if reach.kinds and not reach.below:
            names = sorted(((reach.scope, kind) for kind in set(reach.kinds)), reverse=reach.reverse)
            after = reach.after
            if after is not None:
                names = [name for name in names if (name < after if reach.reverse else name > after)]
            return [head for head in await self._heads(names) if head is not None][: reach.limit]
        found: list[KeptHead] = []
        after = reach.after
        while True:
            listed = await self._listing.names(reach, after, reach.limit)
            names = [name for name in listed if not reach.kinds or name[1] in reach.kinds]
            heads = await self._heads(names)
            found += [head for head in heads if head is not None]
            if self._server.cluster and None in heads:
                vain = [name for name, head in zip(names, heads, strict=True) if head is None]
                await self._listing.retract(vain, longer_than=IN_VAIN)
            if len(found) >= reach.limit or len(listed) < reach.limit:
                return found[: reach.limit]
            after = listed[-1]

    async def note(self, key: str) -> bytes | None:
        found: bytes | None = await self._server.read("GET", self._keys.note(key))
        return found

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        step = Step()
        place = step.key(self._keys.note(key))
        step.check(place, before or b"")
        if after is None:
            step.do("UNLINK", place)
        else:
            step.do("SET", place, after)
        return await self._server.write(FREE if after is None else WRITE, step.keys, step.arguments())

    async def close(self) -> None:
        await self._server.close()

    def _reading(self, name: StreamName, what: str, asked: Sequence[Any], derived: Sequence[str] = ()) -> Command:
        return evalsha(READ, self._keys.stream(name)[:5], (what, len(derived), *derived, *asked))

    async def _rows(
        self, name: StreamName, what: str, asked: Sequence[Any], derived: Sequence[str]
    ) -> tuple[KeptHead | None, list[Row]]:
        head, live, found, values = await self._server.read(*self._reading(name, what, asked, derived))
        rows = [self._row(row) for row in found]
        for n, row in enumerate(rows):
            for at, derived_name in enumerate(derived, n * len(derived)):
                if values[at] is not None:
                    version, _, value = values[at].partition(b" ")
                    row.derived[derived_name] = (int(version), value)
        return self._head(head, live=bool(live)), rows

    async def _heads(self, names: Sequence[StreamName]) -> list[KeptHead | None]:
        if not names:
            return []
        keys = [self._keys.stream(name).head for name in names]
        if self._server.cluster:
            found = await self._server.read_all([("GET", key) for key in keys])
        else:
            found = await self._server.read("MGET", *keys)
        return [self._head(head) for head in found]

    def _head(self, kept: bytes | None, *, live: bool = True) -> KeptHead | None:
        if kept is None:
            return None
        try:
            head = decode_head(kept.split(b" ", 3)[3])
        except (DecodeError, ValidationError, IndexError) as error:
            raise self._unreadable(error) from error
        if not live and head.count and head.expires is not None:
            # Redis has expired its records, whatever the local clock says; without records the stream is
            # over.
            head.expires = 0
        return head

    def _slot(self, key: str, kept: bytes) -> RecordState:
        try:
            return RecordState(key, *_SLOT(kept))
        except (DecodeError, ValidationError) as error:
            raise self._unreadable(error) from error

    def _row(self, kept: bytes) -> Row:
        try:
            return Row(decode_kept(kept))
        except (DecodeError, ValidationError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> UnreadableStoreError:
        return UnreadableStoreError(f"{self.url}: the keys with this prefix are not Mnemic's, or are damaged ({error})")
