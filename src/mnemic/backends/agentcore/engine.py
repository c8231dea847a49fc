"""Streams over the events of a memory: read from cached sessions, changed by new events.

The service has no conditional writes. Within a process a lock per session replaces them. Between processes,
readers put concurrent writes into one order, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar

from ...errors import StoreError
from ...event_loop import mind_forks
from ...records import known_scope
from ...store.matching import in_reach
from ...store.planning import Needs, StreamName
from ...store.protocol import Capability
from ..keyvalue.engine import Batch, Change, Loaded, Reach, Span
from ..keyvalue.kept import KeptHead, Row
from .drafting import Draft, Drafting
from .events import FORMAT, MESSAGE, Body, payload
from .line import Line
from .names import Place, place
from .service import AT_ONCE, Answer, Service
from .sessions import GRACE, Sessions, every
from .twins import TwinKeeper

APPEND_AGE = 1.0
"""For how many seconds messages are appended to a session without refreshing it."""
LOAD_AGE = 0.05
"""For how many seconds a planned write does not refresh its session again."""
TAKE_BACK = 1.0
"""How many seconds a failed write has to delete its events."""
RENEW = 30 * 24 * 3600
"""After how many seconds a write to a scope rewrites its lasting records, because events expire."""
WALK_AGE = 5.0
"""How many seconds old the cached list of sessions below a scope may be."""

fresh: ContextVar[float | None] = ContextVar("fresh", default=None)
"""Time since which a session must have been refreshed, for the current call."""


class AgentCoreEngine:
    """Stores streams in the events of a memory."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})
    expires_streams = False
    spans = True

    def __init__(self, service: Service, *, branch: str | None = None, recall: bool = True, renew: int = RENEW) -> None:
        self.url: str = service.url
        self.service = service
        self._branch = branch
        self._renew = renew
        self._twins = TwinKeeper(service, new=recall) if branch is None else None
        self.after_fork()
        mind_forks(self)

    def before_fork(self) -> None:
        """Do nothing: cached sessions can be duplicated."""

    def after_fork(self) -> None:
        """Reset in a child, which is another writer with an empty cache."""
        self.sessions: Sessions = Sessions(self.service, self._branch)
        self._writer = secrets.token_hex(4)

    def partition(self, name: StreamName) -> str:
        return name[0]

    def fits(self, batch: Batch) -> bool:
        return True

    async def note(self, key: str) -> bytes | None:
        return None

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        return False

    async def close(self) -> None:
        try:
            await every(self._sweep(line, time.time_ns() // 1000) for line in self.sessions.unswept())
        finally:
            await self.service.close()

    # reading

    async def load(self, needs: Needs) -> Loaded:
        loaded = Loaded()
        # Heads are read first: what is read after them may be as old as they are.
        since = time.monotonic() - (0 if needs.streams else LOAD_AGE)
        scopes: dict[str, list[StreamName]] = {}
        for name in needs.streams | needs.keys.keys() | needs.whole:
            scopes.setdefault(name[0], []).append(name)

        async def one(scope: str) -> None:
            async with self.sessions.use(place(scope), since, scope) as line:
                for name in scopes[scope]:
                    _load(line, name, needs, loaded)

        await every(map(one, scopes))
        return loaded

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        async with self.sessions.use(place(name[0]), _since(), name[0]) as line:
            stream = line.stream(name[1])
            seqs = stream.seqs
            if span.seqs is not None:
                wanted = [seq for seq in span.seqs if seq in stream.rows]
            elif span.reverse:
                end = len(seqs) if span.after is None else bisect_left(seqs, span.after)
                wanted = seqs[max(0, end - span.limit) : end][::-1]
            else:
                start = 0 if span.after is None else bisect_right(seqs, span.after)
                wanted = seqs[start : start + span.limit]
            return stream.head, [stream.rows[seq].row(span.derived) for seq in wanted]

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        async with self.sessions.use(place(name[0]), _since(), name[0]) as line:
            stream = line.stream(name[1])
            return stream.head, [stream.keys[key].row() for key in keys if key in stream.keys]

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        async with self.sessions.use(place(name[0]), _since(), name[0]) as line:
            wanted = set(values)
            rows = line.stream(name[1]).rows
            return [seq for seq, item in rows.items() if item.labels.get(label) in wanted]

    async def heads(self, reach: Reach) -> list[KeptHead]:
        since = _since()
        scopes = {reach.scope: place(reach.scope)}
        if reach.below:
            scopes = await self.sessions.scopes(reach.scope, since)
        paths = sorted(scopes, reverse=reach.reverse)
        if reach.after is not None:
            first = reach.after[0]
            paths = [path for path in paths if (path <= first if reach.reverse else path >= first)]
        found: list[KeptHead] = []
        while paths and len(found) < reach.limit:
            many = min(AT_ONCE, reach.limit - len(found))
            some, paths = paths[:many], paths[many:]
            for heads in await every(self._heads(scopes[path], since, path) for path in some):
                heads.sort(key=lambda head: head.name, reverse=reach.reverse)
                found += [head for head in heads if _asked(head, reach)]
        return found[: reach.limit]

    async def _heads(self, at: Place, since: float, path: str) -> list[KeptHead]:
        async with self.sessions.use(at, since, path) as line:
            return [stream.head for stream in line.streams.values() if stream.head is not None]

    # writing

    async def commit(self, batch: Batch) -> bool:
        changes: dict[str, list[Change]] = {}
        for change in batch.changes:
            changes.setdefault(change.name[0], []).append(change)
        async with AsyncExitStack() as stack:
            lines = {
                # In order, so that two writers never deadlock.
                scope: await stack.enter_async_context(self.sessions.use(place(scope), None, scope))
                for scope in sorted(changes)
            }
            stale = [line for scope, line in lines.items() if _is_stale(line, changes[scope])]
            await every(map(self.sessions.catch_up, stale))
            if not all(line.expects(changes[scope]) for scope, line in lines.items()):
                return False
            twins = await self._twins.prepare(lines, changes) if self._twins else {}
            drafts = []
            for scope, line in lines.items():
                drafting = Drafting(line, twins.get(scope, {}), self._writer, self._renew)
                drafts.append(drafting.draft(changes[scope]))
            try:
                await self._send(drafts)
            except BaseException:
                if self._twins and twins:
                    await self._twins.undo(lines, twins)
                raise
            await self._clean(drafts, batch.moment)
        return True

    async def _send(self, drafts: list[Draft]) -> None:
        """Create the events of all sessions, or none as far as possible."""
        try:
            await every(map(self._make, drafts))
        except BaseException:
            for draft in drafts:
                draft.line.loaded = False
            # The rest has no effect, and is deleted later.
            with suppress(TimeoutError):
                async with asyncio.timeout(TAKE_BACK):
                    await asyncio.gather(*map(self._take_back, drafts), return_exceptions=True)
            raise
        for draft in drafts:
            line = draft.line
            before = list(line.events)
            made = [(id, body) for id, (body, _) in zip(draft.ids, draft.bodies, strict=True)]
            line.take_in(made)
            line.unsynced.update(id for id, _ in made)
            line.recent.update((id, (time.monotonic() + GRACE, body)) for id, body in made)
            line.displaced.clear()
            if line.shared:
                line.leave_main(before)

    async def _make(self, draft: Draft) -> None:
        """Create the events of one session; the last one, which commits the others, comes last."""
        line = draft.line
        branch: Answer | None = None
        if self._branch is not None:
            branch = {"name": self._branch}
            if line.shared:
                branch["rootEventId"] = line.root or await self._root(line)
        draft.ids = [""] * len(draft.bodies)

        async def one(at: int) -> None:
            body, said = draft.bodies[at]
            content = payload(body)
            draft.ids[at] = await self.service.create_event(line.place, content, branch=branch, said=said)

        await every(map(one, range(len(draft.bodies) - 1)))
        draft.sent = True
        await one(len(draft.bodies) - 1)

    async def _take_back(self, draft: Draft) -> None:
        """Delete the events of a failed write."""
        *parts, last = draft.ids or [""]
        if draft.sent and not last:
            return  # its outcome is unknown; if it was created, the others count
        for id in (last, *parts):
            if id:
                await self.service.delete_event(draft.line.place, id)

    async def _root(self, line: Line) -> str:
        """Create a root event for a branch, in a session without any."""
        content = payload(Body(FORMAT, str(line.scope), 1, self._writer, int(time.time())))
        return await self.service.create_event(line.place, content, branch=None, said=True)

    async def _clean(self, drafts: list[Draft], moment: int) -> None:
        """Delete obsolete events and memory records."""
        for draft in drafts:
            draft.line.doomed_twins.update(dict.fromkeys(draft.twins, moment))
        await every(self._sweep(draft.line, moment) for draft in drafts)

    async def _sweep(self, line: Line, moment: int) -> None:
        """Delete unused events; failures are left for later."""
        if self._twins and line.doomed_twins:
            await self._twins.delete(line, moment)
        line.doomed.update(line.dead(moment))
        line.forget_recent()
        await every(self._delete(line, id) for id in line.doomed)

    async def _delete(self, line: Line, id: str) -> None:
        with suppress(StoreError):
            await self.service.delete_event(line.place, id)
            line.doomed.discard(id)


def _load(line: Line, name: StreamName, needs: Needs, loaded: Loaded) -> None:
    stream = line.stream(name[1])
    if name in needs.streams:
        loaded.heads[name] = stream.head
    if name in needs.keys or name in needs.whole:
        slots = loaded.slots[name] = dict.fromkeys(needs.keys.get(name, ()))
        wanted = stream.keys if name in needs.whole else slots
        slots.update({key: stream.keys[key].slot() for key in wanted if key in stream.keys})
    if name in needs.whole:
        loaded.whole.add(name)


def _since() -> float:
    """Return since when the data must have been refreshed."""
    moment = fresh.get()
    return time.monotonic() if moment is None else moment


def _is_stale(line: Line, changes: list[Change]) -> bool:
    """Return whether a plan assumed a state of a session that others may have changed.

    Messages have unique ids, so recent writes by others do not matter for them.
    """
    guessed = [change.name[1] for change in changes if change.absent]
    age = APPEND_AGE if all(kind == MESSAGE for kind in guessed) else 0
    return not line.loaded or (bool(guessed) and line.synced < time.monotonic() - age)


def _asked(head: KeptHead, reach: Reach) -> bool:
    after = reach.after
    beyond = after is None or (head.name < after if reach.reverse else head.name > after)
    scope, above = known_scope(head.scope), known_scope(reach.scope)
    return beyond and in_reach(scope, head.kind, above, reach.kinds, reach.below)
