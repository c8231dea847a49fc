"""The write path of key-value stores: load, plan and commit; repeat if another writer was faster.

A plan uses loaded or cached states of streams and is committed only if they are still current. A plain append to a
known stream is therefore one round trip.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from ...errors import ConflictError, StoreBusyError
from ...records import StreamName
from ...store.planning import Plan, needs_of, plan_writes
from ...store.query import Outcome, Put, Write
from ...store.retry import note_ref, retried
from ...store.stream_state import Loaded, Needs, NeedsMoreError, StreamChange, StreamState
from .engine import Engine

MOST_CACHED = 10_000
"""Maximum number of cached states of streams."""


class Committer:
    """Plans and commits writes; caches the states of streams."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._cache: OrderedDict[StreamName, StreamState] = OrderedDict()

    async def commit(self, writes: Sequence[Write]) -> list[list[Outcome] | Exception]:
        """Commit writes together; return for each its outcomes, or the error that rejects it.

        Raises StoreBusyError if other writers were faster each time.
        """
        use_cache = True

        async def attempt() -> list[list[Outcome] | Exception]:
            nonlocal use_cache
            loaded = self._cached(writes) if use_cache else Loaded()
            use_cache = False
            moment = self._clock()
            plan = await self._plan(loaded, writes, moment)
            if loaded.assumed and any(isinstance(result, Exception) for result in plan.results):
                # It may have failed because of a wrong assumption, so it is checked again with loaded state.
                return await attempt()
            if plan.changes and not await self._engine.commit(plan.changes, moment):
                self._forget(plan.changes)
                raise ConflictError("another writer was faster")
            self._remember(plan.changes)
            return plan.results

        try:
            return await retried(attempt, self._engine.url)
        except ConflictError as error:
            raise StoreBusyError(str(error)) from error

    async def _plan(self, loaded: Loaded, writes: Sequence[Write], moment: int) -> Plan:
        """Plan writes, and load what they need."""
        needs = needs_of(writes)
        while True:
            if missing := _missing(loaded, needs):
                _add(loaded, await self._engine.load(missing))
            try:
                plan = plan_writes(loaded, writes, moment)
            except NeedsMoreError as error:
                needs = error.needs
                continue
            cleared = {change.name for change in plan.changes if change.cleared}
            if cleared <= loaded.whole:
                for change in plan.changes:
                    change.expand(loaded.records.get(change.name, {}).values())
                return plan
            needs = Needs(whole=cleared)

    def _cached(self, writes: Sequence[Write]) -> Loaded:
        """Return cached states, with the assumption that records marked as new do not exist."""
        loaded = Loaded()
        for write in writes:
            new = [op.record.ref for op in write.ops if isinstance(op, Put) and op.if_version == 0]
            if (note := note_ref(write)) is not None:
                new.append(note)
            for ref in new:
                name = (ref.scope.path, ref.kind)
                if (state := self._cache.get(name)) is not None:
                    loaded.streams[name] = state
                    loaded.records.setdefault(name, {})[ref.key] = None
                    loaded.assumed.setdefault(name, set()).add(ref.key)
        return loaded

    def _remember(self, changes: Sequence[StreamChange]) -> None:
        for change in changes:
            self._cache.pop(change.name, None)
            if change.after is not None:
                self._cache[change.name] = change.after
        while len(self._cache) > MOST_CACHED:
            self._cache.popitem(last=False)

    def _forget(self, changes: Sequence[StreamChange]) -> None:
        for change in changes:
            self._cache.pop(change.name, None)


def _missing(loaded: Loaded, needs: Needs) -> Needs:
    """Return which of these needs are not loaded yet."""
    keys = {
        name: missing
        for name, wanted in needs.keys.items()
        if name not in loaded.whole and (missing := wanted - loaded.records.get(name, {}).keys())
    }
    # Records are compared by the state that was read before them, or with them.
    streams = {name for name in (*needs.streams, *keys, *needs.whole) if name not in loaded.streams}
    return Needs(streams, keys, needs.whole - loaded.whole)


def _add(loaded: Loaded, more: Loaded) -> None:
    """Add loaded states; an earlier state of a stream stays, since it is the one to compare with."""
    more.streams = {name: state for name, state in more.streams.items() if name not in loaded.streams}
    # A missing or empty stream has no records to load.
    more.whole |= {name for name, state in more.streams.items() if state is None or not state.count}
    for name, records in more.records.items():
        loaded.assumed.get(name, set()).difference_update(records)
    loaded.take(more)
