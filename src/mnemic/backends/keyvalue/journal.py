"""Write-ahead journal for writes that an engine cannot commit at once: too large, or in several partitions.

First, all streams of the write are locked: each head names the journal. Then the journal records the changes and
is marked as committed, which is the moment the write takes effect; then the changes are applied and the heads
unlocked. Anyone who finds a locked head reads the journal: a committed one is completed, one that is not and has
timed out is rolled back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct, json
from msgspec.structs import replace

from ...errors import StoreBusyError
from ...store.planning import Needs, StreamName
from .engine import Batch, Carrying, Change, Engine, Spanning
from .kept import KeptHead, next_revision

HELD_FOR = 30_000_000
"""How long a writer may hold streams before others roll its write back, in microseconds."""
LOT = 40
"""How many streams are locked at once, where an engine supports that."""
WAITED = 3000
"""How often a locked stream is polled before StoreBusyError is raised."""


class Status(Struct, array_like=True):
    """State of a journal."""

    until: int
    certain: bool = False


class Journal(Struct, array_like=True):
    """Changes of a write, by stream."""

    changes: list[Change]


_encode = json.Encoder().encode
_status = json.Decoder(Status).decode
_journal = json.Decoder(Journal).decode


class Journals:
    """Locks streams, and completes writes that others left unfinished."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._spans = isinstance(engine, Spanning) and engine.spans

    async def heads(self, names: Sequence[StreamName]) -> list[KeptHead | None]:
        """Return the heads of streams, after completing committed writes."""
        found = await self._load(names)
        if any([await self.helped(head) for head in found]):
            found = await self._load(names)
        return found

    async def helped(self, head: KeptHead | None) -> bool:
        """Complete a committed write that the stream waits for; return whether to read again."""
        if head is None or head.pending is None:
            return False
        status = await self._engine.note(_status_key(head.pending))
        if status is not None and not _status(status).certain:
            return False
        if status is not None:
            await self.carry_out(head.pending)
        return True  # without a status, others have just completed it

    async def free(self, heads: Sequence[KeptHead]) -> None:
        """Wait until locked streams are free, or free them; raises StoreBusyError."""
        for head in heads:
            for _ in range(WAITED):
                (now,) = await self.heads([head.name])
                if now is None or now.pending is None or await self._call_off(now):
                    break
                await asyncio.sleep(0.02)
            else:
                held = f"the {head.kind} stream of scope {head.scope!r}"
                raise StoreBusyError(f"{self._engine.url}: another writer has held {held} for too long")

    @asynccontextmanager
    async def hold(self, names: Sequence[StreamName]) -> AsyncGenerator[Held, None]:
        """Lock streams exclusively until a write is done or has failed."""
        held = Held(self._engine, self, f"journal-{secrets.token_hex(12)}", self._clock() + HELD_FOR)
        await self._engine.swap(_status_key(held.id), None, held.status)
        try:
            # In order, so that two writers never deadlock.
            ordered, lot = sorted(names), LOT if self._spans else 1
            for start in range(0, len(ordered), lot):
                await self._hold(held, ordered[start : start + lot])
            yield held
        finally:
            if not held.certain:
                for name in held.taken:
                    await self._clear(name, held.id)
                await self._forget(held.id)

    async def carry_out(self, id: str, journal: Journal | None = None) -> None:
        """Apply the remaining changes of a committed journal; it is read if not given."""
        if journal is None and (note := await self._engine.note(id)) is not None:
            journal = _journal(note)
        if journal is not None:
            for changes in self._lots(journal.changes):
                if len(changes) == 1 or not await self._engine.commit(Batch(changes, self._clock())):
                    for change in changes:
                        await self._apply(change)
        await self._forget(id)

    async def _load(self, names: Sequence[StreamName]) -> list[KeptHead | None]:
        found = (await self._engine.load(Needs(streams=set(names)))).heads
        return [found[name] for name in names]

    def _lots(self, changes: Sequence[Change]) -> Iterator[list[Change]]:
        """Yield groups of changes that the engine can commit together."""
        lot: list[Change] = []
        for change in changes:
            if lot and not (self._spans and self._engine.fits(Batch([*lot, change]))):
                yield lot
                lot = []
            lot.append(change)
        if lot:
            yield lot

    async def _hold(self, held: Held, names: Sequence[StreamName]) -> None:
        while True:
            heads = await self.heads(names)
            if busy := [head for head in heads if head is not None and head.pending is not None]:
                await self.free(busy)
            elif await held.take(dict(zip(names, heads, strict=True))):
                return

    async def _call_off(self, head: KeptHead) -> bool:
        """Free a stream whose holder is gone; return False if the holder still has time."""
        assert head.pending is not None
        key = _status_key(head.pending)
        note = await self._engine.note(key)
        if note is not None:
            status = _status(note)
            if status.certain or status.until > self._clock():
                return False
            # Once this has succeeded, the holder can no longer commit its write.
            if not await self._engine.swap(key, note, None):
                return False
        await self._clear(head.name, head.pending)
        await self._forget(head.pending)
        return True

    async def _clear(self, name: StreamName, id: str) -> None:
        """Unlock one stream; drop it if it was created only for the lock."""
        (head,) = await self._load([name])
        if head is not None and head.pending == id:
            free = None if head.blank else replace(head, pending=None, revision=next_revision(head))
            await self._engine.commit(Batch([Change(name, head.revision, free)], self._clock()))

    async def _apply(self, change: Change) -> None:
        if isinstance(self._engine, Carrying):
            await self._engine.carry(change, self._clock())
            return
        for step in self._steps(change):
            if not await self._engine.commit(Batch([step], self._clock())):
                return  # someone else has completed it

    def _steps(self, change: Change) -> Iterator[Change]:
        """Yield a change in parts that fit into a commit; only the last one changes the head."""
        parts = len(change.put) + len(change.removed) + len(change.lost_labels) + len(change.derived)
        if parts < 2 or self._engine.fits(Batch([change])):
            yield change
            return
        size = parts // 2
        fields = ("removed", "lost_labels", "put", "derived")
        first, rest = Change(change.name, change.expected, change.head, same=True), replace(change)
        for field in fields:
            things = getattr(change, field)
            setattr(first, field, things[:size])
            setattr(rest, field, things[size:])
            size -= min(size, len(things))
        yield from self._steps(first)
        yield from self._steps(rest)

    async def _forget(self, id: str) -> None:
        for key in (id, _status_key(id)):
            if (note := await self._engine.note(key)) is not None:
                await self._engine.swap(key, note, None)


class Held:
    """Streams that a writer has locked."""

    def __init__(self, engine: Engine, journals: Journals, id: str, until: int) -> None:
        self.id = id
        self.status: bytes = _encode(Status(until))
        self.certain: bool = False
        self.taken: dict[StreamName, KeptHead] = {}
        """Heads while they are locked."""
        self.before: dict[StreamName, KeptHead | None] = {}
        """Heads before they were locked."""
        self._engine = engine
        self._journals = journals

    async def take(self, heads: dict[StreamName, KeptHead | None]) -> bool:
        """Lock streams; return False, and lock none, if one has changed."""
        changes, taken = [], {}
        for name, head in heads.items():
            revision = next_revision(head)
            if head is None:
                held = KeptHead(*name, 0, 0, 0, 0, 0, 0, None, None, None, revision, pending=self.id)
            else:
                held = replace(head, revision=revision, pending=self.id)
            changes.append(Change(name, None if head is None else head.revision, held))
            taken[name] = held
        if not await self._engine.commit(Batch(changes)):
            return False
        self.taken |= taken
        self.before |= heads
        return True

    async def commit(self, batch: Batch) -> None:
        """Apply all changes of a batch, and unlock the streams; raises StoreBusyError if the lock timed out."""
        changes = []
        for change in batch.changes:
            held = self.taken[change.name]
            head = change.head and replace(change.head, revision=next_revision(held), pending=None)
            changes.append(replace(change, expected=held.revision, head=head, same=False, absent=[]))
        changed = {change.name for change in changes}
        for name, held in self.taken.items():
            if name not in changed:
                free = None if held.blank else replace(held, revision=next_revision(held), pending=None)
                changes.append(Change(name, held.revision, free))
        if isinstance(self._engine, Carrying):
            self._engine.check(batch)
        journal = Journal(changes)
        await self._engine.swap(self.id, None, _encode(journal))
        certain = _encode(replace(_status(self.status), certain=True))
        if not await self._engine.swap(_status_key(self.id), self.status, certain):
            raise StoreBusyError(f"{self._engine.url}: the write took so long that others rolled it back")
        self.certain = True
        await self._journals.carry_out(self.id, journal)


def _status_key(id: str) -> str:
    return f"{id}.status"
