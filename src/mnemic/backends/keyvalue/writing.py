"""The write path: concurrent writes are planned together and committed at once.

A plan uses loaded or cached state and is committed only if that is still current; otherwise it is repeated. A
plain append to a known stream is therefore one round trip.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from ...errors import StoreBusyError
from ...store.once import note_ref
from ...store.planning import (
    MOST_OPS,
    MOST_WRITES,
    Loaded,
    Needs,
    NeedsMoreError,
    Plan,
    StreamChange,
    StreamName,
    plan_writes,
)
from ...store.query import Outcome, Put, Write
from .engine import Batch, Carrying, Change, Engine, Spanning
from .journal import Journals
from .kept import Kept, KeptHead

log: logging.Logger = logging.getLogger("mnemic.store")

ATTEMPTS = 40
"""Maximum number of planning attempts on conflicts."""
REMEMBERED_HEADS = 10_000
"""Maximum number of cached heads."""


class Pending:
    """One caller's write, and its future."""

    __slots__ = ("future", "write")

    def __init__(self, write: Write, future: asyncio.Future[list[Outcome]]) -> None:
        self.write: Write = write
        self.future: asyncio.Future[list[Outcome]] = future


class Writer:
    """Runs writes: those within one partition together, in order of arrival."""

    def __init__(self, engine: Engine, journals: Journals, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._journals = journals
        self._clock = clock
        self._spans = isinstance(engine, Spanning) and engine.spans
        self._most = engine.most if isinstance(engine, Carrying) else None
        self._lanes: dict[str, deque[Pending]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: OrderedDict[StreamName, KeptHead] = OrderedDict()

    async def write(self, write: Write) -> list[Outcome]:
        """Run a write and return its outcomes once it is durable."""
        pending = Pending(write, asyncio.get_running_loop().create_future())
        parts = {self._engine.partition(name) for name in Needs.of((write,)).streams}
        if len(parts) > 1:
            self._start(self._alone(pending))
        else:
            part = parts.pop() if parts else ""
            lane = self._lanes.get(part)
            if lane is None:
                lane = self._lanes[part] = deque()
                self._start(self._drain(part, lane))
            lane.append(pending)
        return await pending.future

    async def close(self, patience: float | None = None) -> None:
        """Wait for running writes, at most `patience` seconds if given."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)

    def _start(self, work: Any) -> None:
        # A task of its own: the caller that started it may be cancelled while others wait for it.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, part: str, lane: deque[Pending]) -> None:
        """Run the queued writes of a partition, as many as fit together, until none is left."""
        try:
            while lane:
                group: list[Pending] = []
                ops = 0
                while lane and len(group) < MOST_WRITES and (not group or ops < MOST_OPS):
                    group.append(lane.popleft())
                    ops += len(group[-1].write.ops)
                await self._settle(group, self._together(group))
        finally:
            del self._lanes[part]

    async def _alone(self, pending: Pending) -> None:
        """Run a write that spans partitions."""
        work = self._together([pending]) if self._spans else self._journaled([pending])
        await self._settle([pending], work)

    async def _settle(self, group: list[Pending], work: Any) -> None:
        try:
            answers = await work
        except Exception as error:
            answers = [error] * len(group)
        for pending, answer in zip(group, answers, strict=True):
            if pending.future.done():
                continue
            if isinstance(answer, Exception):
                pending.future.set_exception(answer)
            else:
                pending.future.set_result(answer)

    async def _together(self, group: list[Pending]) -> list[list[Outcome] | Exception]:
        """Plan writes on cached or loaded state, and commit; repeat on conflicts."""
        if self._most is not None and sum(len(pending.write.ops) for pending in group) > self._most:
            return await self._divided(group)
        guessing = True
        for attempt in range(ATTEMPTS):
            ground = _Ground(self._clock())
            if guessing:
                self._guess(ground, group)
            answers = await self._plan(ground, group)
            if ground.loaded.assumed and any(isinstance(answer, Exception) for answer in answers):
                # It may have failed because of a wrong assumption, so it is checked again with loaded state.
                guessing = False
                continue
            batch = ground.batch()
            if not batch.changes:
                return answers
            if not self._engine.fits(batch):
                return await self._divided(group)
            if await self._engine.commit(batch):
                self._remember(batch)
                return answers
            self._forget(batch)
            guessing = False
            log.debug("%s: retry %d (another writer was faster)", self._engine.url, attempt + 1)
            if attempt:
                await asyncio.sleep(random.uniform(0, min(0.002 * 2**attempt, 0.25)))  # noqa: S311
        raise StoreBusyError(f"{self._engine.url}: concurrent writers won every attempt on the same stream; try again")

    async def _divided(self, group: list[Pending]) -> list[list[Outcome] | Exception]:
        """Run writes that are too many for one commit, in several."""
        if len(group) == 1:
            return await self._journaled(group)
        half = len(group) // 2
        first = await self._together(group[:half])
        try:
            return [*first, *await self._together(group[half:])]
        except Exception as error:
            return [*first, *([error] * (len(group) - half))]

    async def _journaled(self, group: list[Pending]) -> list[list[Outcome] | Exception]:
        """Run writes that do not fit into one commit: lock their streams and use the journal."""
        names = sorted(Needs.of(pending.write for pending in group).streams)
        async with self._journals.hold(names) as held:
            ground = _Ground(self._clock(), held.before)
            answers = await self._plan(ground, group)
            batch = ground.batch()
            await held.commit(batch)
        for name in names:
            self._known.pop(name, None)
        return answers

    async def _plan(self, ground: _Ground, group: list[Pending]) -> list[list[Outcome] | Exception]:
        """Plan writes, and load what they need."""
        writes = [pending.write for pending in group]
        needs = Needs.of(writes)
        while True:
            if missing := ground.lacking(needs):
                await self._load(ground, missing)
            try:
                ground.plan = plan_writes(ground.loaded, writes, ground.moment)
            except NeedsMoreError as error:
                needs = error.needs
                continue
            cleared = {change.name for change in ground.plan.changes if change.cleared}
            if cleared <= ground.loaded.whole:
                return ground.plan.results
            needs = Needs(whole=cleared)

    async def _load(self, ground: _Ground, needs: Needs) -> None:
        while True:
            found = await self._engine.load(needs)
            stuck = [
                head
                for name, head in found.heads.items()
                if head is not None and head.pending is not None and name not in ground.held
            ]
            if not stuck:
                ground.take(found.heads, Loaded({}, found.slots, found.whole))
                return
            await self._journals.free(stuck)

    def _guess(self, ground: _Ground, group: list[Pending]) -> None:
        """Use cached heads, and assume that records marked as new do not exist."""
        for pending in group:
            new = [op.record.ref for op in pending.write.ops if isinstance(op, Put) and op.if_version == 0]
            if (note := note_ref(pending.write)) is not None:
                new.append(note)
            for ref in new:
                name = (ref.scope.path, ref.kind)
                if (head := self._known.get(name)) is not None:
                    ground.guess(name, head, ref.key)

    def _remember(self, batch: Batch) -> None:
        for change in batch.changes:
            if change.head is not None:
                self._known[change.name] = change.head
                self._known.move_to_end(change.name)
            else:
                self._known.pop(change.name, None)
        while len(self._known) > REMEMBERED_HEADS:
            self._known.popitem(last=False)

    def _forget(self, batch: Batch) -> None:
        for change in batch.changes:
            self._known.pop(change.name, None)


class _Ground:
    """Known state during planning, from which each attempt starts."""

    def __init__(self, moment: int, held: dict[StreamName, KeptHead | None] | None = None) -> None:
        self.moment = moment
        self.held = held or {}
        self.heads: dict[StreamName, KeptHead | None] = {}
        self.loaded = Loaded()
        self.plan: Plan | None = None
        self.take(self.held, Loaded())

    def guess(self, name: StreamName, head: KeptHead, key: str) -> None:
        """Assume a cached head, and that a key does not exist, to be verified by the commit."""
        self.heads[name] = head
        self.loaded.streams[name] = head.state()
        self.loaded.records.setdefault(name, {})[key] = None
        self.loaded.assumed.setdefault(name, set()).add(key)

    def take(self, heads: dict[StreamName, KeptHead | None], found: Loaded) -> None:
        """Add loaded state; an earlier head stays, since it is the one to compare with."""
        for name, head in heads.items():
            if name not in self.heads:
                self.heads[name] = head
                found.streams[name] = None if head is None else head.state()
                # A missing or empty stream has no records to load.
                if head is None or not head.count:
                    found.whole.add(name)
        for name, records in found.records.items():
            self.loaded.assumed.get(name, set()).difference_update(records)
        self.loaded.take(found)

    def lacking(self, needs: Needs) -> Needs:
        """Return which of these needs are not known yet."""
        loaded = self.loaded
        keys = {
            name: missing
            for name, wanted in needs.keys.items()
            if name not in loaded.whole and (missing := wanted - loaded.records.get(name, {}).keys())
        }
        # Records are compared by the head that was read with them.
        streams = {name for name in (*needs.streams, *keys, *needs.whole) if name not in self.heads}
        return Needs(streams, keys, needs.whole - loaded.whole)

    def batch(self) -> Batch:
        """Return the changes of the last attempt."""
        assert self.plan is not None
        return Batch([self._change(change) for change in self.plan.changes], self.moment)

    def _change(self, change: StreamChange) -> Change:
        before = self.heads[change.name]
        change.expand(self.loaded.records.get(change.name, {}).values())
        same = change.after is change.before
        lost = [*change.lost_labels.items(), *((gone.seq, gone.labels) for gone in change.removed if gone.labels)]
        return Change(
            change.name,
            None if before is None else before.revision,
            before if same else None if change.after is None else KeptHead.of(change.after),
            same,
            [Kept.of(record) for record in (*change.replaced, *change.added)],
            {record.seq for record in change.added},
            [(record.seq, record.key) for record in change.removed],
            lost,
            [(one.seq, one.name, one.version, one.value) for one in change.derived],
            change.absent,
            {one.seq: one.key for one in change.derived},
        )
