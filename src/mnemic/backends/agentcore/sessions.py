"""Cached sessions of a memory, and changes by others."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from ...records import known_scope
from .events import Body, parse
from .line import Line
from .names import Place, encode_path, may_hold, path_of
from .service import Answer, MissingError, Service
from .things import order_of

MAIN = "main"
"""Branch of events without a branch, as AWS's own tools call it."""
GRACE = 2.0
"""How many seconds a new event may be missing from listings."""
ABANDONED = 3600.0
"""After how many seconds remains of a failed write are deleted."""
MOST_CACHED = 64_000_000
"""Maximum size of cached sessions, in bytes; at least one is kept."""
FEW = 16
"""Up to how many new events are fetched individually."""


class Sessions:
    """Provides exclusive, refreshed sessions."""

    def __init__(self, service: Service, branch: str | None) -> None:
        self._service = service
        self._branch = branch or MAIN
        self._lines: OrderedDict[Place, Line] = OrderedDict()
        self._actors: tuple[float, list[str]] = (0.0, [])
        self._listed: dict[str, tuple[float, list[str]]] = {}

    @asynccontextmanager
    async def use(self, at: Place, since: float | None, scope: str | None) -> AsyncGenerator[Line, None]:
        """Provide a session, refreshed since a given time."""
        line = self._lines.get(at)
        if line is None:
            line = self._lines[at] = Line(at, scope, branch=self._branch != MAIN)
        line.users += 1
        self._lines.move_to_end(at)
        before = line.size
        try:
            async with line.lock:
                line.scope = scope if line.scope is None else line.scope
                if since is not None and (not line.loaded or line.synced < since):
                    await self.catch_up(line)
                yield line
        finally:
            line.users -= 1
            if line.size != before:
                self._trim()

    async def scopes(self, above: str, since: float) -> dict[str, Place]:
        """Return the scopes at and below one that may have data, and their positions."""
        if self._actors[0] < since:
            began = time.monotonic()
            self._actors = (began, await self._service.actors())
        encoded = encode_path(above)
        actors = [actor for actor in self._actors[1] if may_hold(actor, encoded)]
        await every(self._list(actor) for actor in actors if self._listed.get(actor, (0.0,))[0] < since)
        places = {Place(actor, session) for actor in actors for session in self._listed[actor][1]}
        places.update(at for at, line in self._lines.items() if line.streams)
        await every(self._look_into(at) for at in places if self._path(at) is None)
        scope = known_scope(above)
        paths = {path: at for at in places if (path := self._path(at)) is not None}
        return {path: at for path, at in paths.items() if scope.holds(known_scope(path))}

    def unswept(self) -> list[Line]:
        """Return the sessions with pending deletions."""
        return [line for line in self._lines.values() if line.doomed or line.doomed_twins]

    async def _list(self, actor: str) -> None:
        began = time.monotonic()
        self._listed[actor] = (began, await self._service.sessions(actor))

    def _path(self, at: Place) -> str | None:
        line = self._lines.get(at)
        return line.scope if line is not None and line.scope is not None else path_of(at)

    async def _look_into(self, at: Place) -> None:
        """Read a session whose id does not reveal its scope."""
        async with self.use(at, 0.0, None):
            pass

    def _trim(self) -> None:
        """Evict the least recently used sessions, if they are too large."""
        total = sum(line.size for line in self._lines.values())
        for at, line in list(self._lines.items())[:-1]:
            if total <= MOST_CACHED:
                return
            if not line.users:
                total -= line.size
                del self._lines[at]

    async def catch_up(self, line: Line) -> None:
        """Read what others have written."""
        began = time.monotonic()
        if not line.loaded or line.shared:
            await self._reload(line)
        else:
            unknown = await self._unknown(line)
            if unknown is None or not await self._take_in(line, unknown):
                await self._reload(line)
        line.synced = began
        line.unsynced.clear()

    async def _unknown(self, line: Line) -> list[str] | None:
        """Return the ids of new events; None if the cached state is invalid."""
        line.forget_recent()
        unknown: list[str] = []
        newest = line.newest.id if line.newest else None
        met = newest is None
        reached = False
        async for page in self._service.events(line.place, payloads=False):
            for event in page:
                id = event["eventId"]
                met = met or id == newest
                reached = reached or (id in line.events and id not in line.unsynced)
                line.recent.pop(id, None)
                if id not in line.events and id not in line.others and id not in line.doomed:
                    if _branch_of(event) == self._branch:
                        unknown.append(id)
                    else:
                        line.others.add(id)
            # Newest first: everything after a known event is known, too.
            if met and reached and page and number(page[0]) > number(page[-1]):
                break
        if not met and newest not in line.recent:
            return None
        return [] if line.waiting.issuperset(unknown) else unknown

    async def _take_in(self, line: Line, ids: list[str]) -> bool:
        """Apply new events, if they follow the cached state; return False if all must be read again."""
        if len(ids) > FEW:
            return False
        try:
            events = await every(self._service.event(line.place, id) for id in ids)
        except MissingError:
            return False
        parsed = self._parsed(line, events)
        bodies = _complete(parsed)
        line.waiting = {id for id, _ in parsed} - {id for id, _ in bodies}
        for write in _writes(bodies):
            seen = line.seen
            for at, (_, body) in enumerate(write, line.n + 1):
                if body.n != at or body.seen != seen:
                    return False
            line.take_in(write)
        line.settle({kind for _, body in bodies for kind in body.kinds()})
        return True

    async def _reload(self, line: Line) -> None:
        """Read all events of a session."""
        branches: dict[str, list[Answer]] = {}
        async for page in self._service.events(line.place, payloads=True):
            for event in page:
                branches.setdefault(_branch_of(event), []).append(event)
                line.recent.pop(event["eventId"], None)
        line.forget_recent()
        line.clear()
        events, main = branches.pop(self._branch, []), branches.get(MAIN, [])
        line.others = {event["eventId"] for others in branches.values() for event in others}
        bodies = self._parsed(line, events)
        if self._branch != MAIN and not bodies and not line.recent:
            line.shared = True
            line.root = max(main, key=number)["eventId"] if main else None
            bodies = self._parsed(line, main)
        known = {id for id, _ in bodies}
        bodies += [(id, body) for id, body in _unlisted(line, bodies) if id not in known]
        line.take_in(_complete(bodies))
        line.settle(list(line.streams))
        moment = time.time()
        line.doomed_twins = dict.fromkeys(line.waste, int(moment * 1_000_000))
        broken = {id: body for id, body in bodies if id in known and id not in line.events}
        if not line.shared:
            line.doomed.update(id for id, body in broken.items() if body.at < moment - ABANDONED)
        line.waiting = broken.keys() - line.doomed
        line.loaded = True

    def _parsed(self, line: Line, events: Iterable[Answer]) -> list[tuple[str, Body]]:
        """Parse Mnemic's events, and record those of other applications."""
        parsed = [(event["eventId"], parse(event, self._service.url)) for event in events]
        line.others.update(id for id, body in parsed if body is None)
        return [(id, body) for id, body in parsed if body is not None]


def _complete(bodies: list[tuple[str, Body]]) -> list[tuple[str, Body]]:
    """Return, in order, the events that are not part of an incomplete write."""
    groups = {group for _, body in bodies for group in body.groups}
    whole = [(id, body) for id, body in bodies if body.group is None or body.group in groups]
    return sorted(whole, key=lambda pair: order_of(*pair))


def _writes(bodies: list[tuple[str, Body]]) -> list[list[tuple[str, Body]]]:
    """Return events grouped by write."""
    writes: list[list[tuple[str, Body]]] = [[]]
    for id, body in bodies:
        writes[-1].append((id, body))
        if body.group is None:
            writes.append([])
    return writes


def _unlisted(line: Line, bodies: list[tuple[str, Body]]) -> list[tuple[str, Body]]:
    """Return events created here recently that no later writer has deleted."""
    recent = [(id, body) for id, (_, body) in line.recent.items()]
    own = {body.by for _, body in recent}
    last = max((body.n for _, body in bodies if body.by not in own), default=0)
    return [(id, body) for id, body in recent if body.n >= last]


def _branch_of(event: Answer) -> str:
    return str((event.get("branch") or {}).get("name") or MAIN)


def number(event: Answer) -> int:
    """Return the sort key of the service."""
    return int(event["eventId"].partition("#")[0])


async def every(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """Run all concurrently, and raise the first error after all have ended."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers
