"""Lists of sessions and scopes, with counts and sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from ..checks import check_count, check_segment
from ..errors import InvalidValueError, NotFoundError
from ..records import (
    ARCHIVED,
    FACT,
    MEMORY,
    MESSAGE,
    NOTE,
    OF_SESSIONS,
    STATE,
    SUMMARY,
    TITLE,
    VAULT,
    Ref,
    ScopePath,
    Stream,
    Value,
)
from ..store.protocol import Capability, Page, Store, all_streams
from ..store.query import Purge, Scan, StreamScan, Write
from ..telemetry.calls import observed


class SessionInfo(Value, frozen=True, kw_only=True):
    """A session in a list: its title, if it has one, its counts, tokens and times.

    `started` and `last_activity` are when messages were first and last written, whatever `timestamp` they have.
    """

    name: str
    scope: ScopePath
    messages: int
    tokens: int
    started: datetime
    last_activity: datetime
    expires: datetime | None = None
    title: str | None = None


MOST_KNOWN = 50_000
"""How many times of sessions are kept."""
SCANS_AT_ONCE = 8
READ_AT_ONCE = 500
"""How many titles are read at once."""


async def list_sessions(store: Store, scope: ScopePath, *, below: bool = True) -> list[SessionInfo]:
    """Return the session in a scope, and those below; titles are read only where there are any, many at once."""
    chats, titled = [], []
    async for stream in all_streams(store, StreamScan(scope=scope, kinds=(MESSAGE, TITLE), below=below)):
        if stream.kind == MESSAGE:
            chats.append(stream)
        else:
            titled.append(Ref(stream.scope, TITLE, TITLE))
    titles: dict[ScopePath, str | None] = {}
    for start in range(0, len(titled), READ_AT_ONCE):
        titles |= await _titles(store, titled[start : start + READ_AT_ONCE])
    return [_session_info(stream, titles) for stream in chats]


async def session_page(store: Store, scope: ScopePath, limit: int, cursor: str | None = None) -> Page[SessionInfo]:
    """Return one page of the sessions in a scope and below, in order of their paths."""
    page = await store.streams(StreamScan(scope=scope, kinds=(MESSAGE,), limit=limit, cursor=cursor))
    titles = await _titles(store, [Ref(stream.scope, TITLE, TITLE) for stream in page.items])
    return Page(tuple(_session_info(stream, titles) for stream in page.items), page.cursor)


async def _titles(store: Store, refs: list[Ref]) -> dict[ScopePath, str | None]:
    return {record.scope: record.title for record in await store.read(refs) if record is not None}


def _session_info(stream: Stream, titles: dict[ScopePath, str | None]) -> SessionInfo:
    return SessionInfo(
        name=stream.scope.name,
        scope=stream.scope,
        messages=stream.count,
        tokens=stream.weight,
        started=stream.created,
        last_activity=stream.updated,
        expires=stream.expires,
        title=titles.get(stream.scope),
    )


class NewestMessages:
    """Times of the newest messages of sessions, which are read again only when a session has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[SessionInfo, datetime]] = {}

    async def read(self, store: Store, sessions: Sequence[SessionInfo]) -> list[tuple[SessionInfo, datetime]]:
        """Return each session with the time of its newest message."""
        import asyncio

        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        free = asyncio.Semaphore(SCANS_AT_ONCE)

        async def newest(info: SessionInfo) -> tuple[SessionInfo, datetime]:
            known = self._known.get(info.scope.path)
            if known is not None and known[0] == info:
                return known
            async with free:
                page = await store.scan(Scan(scope=info.scope, kinds=(MESSAGE,), reverse=True, limit=1, bodies=False))
            time = page.items[0].created if page.items else None
            found = self._known[info.scope.path] = (info, time or info.last_activity)
            return found

        return list(await asyncio.gather(*map(newest, sessions)))


def session_path(scope: ScopePath, session: SessionInfo | str) -> ScopePath:
    """Return where a session of a scope is, by its name, or one here or below that was listed.

    Raises InvalidValueError for a session of another scope.
    """
    if not isinstance(session, SessionInfo):
        return scope / check_segment(session, "session name")
    if not scope.contains(session.scope):
        raise InvalidValueError(f"session {session.scope.path!r} is not in {scope.path!r}")
    return session.scope


@observed
class AsyncSessions:
    """The sessions of one scope; the scope's `session` opens one."""

    scope: ScopePath

    def __init__(self, store: Store, scope: ScopePath) -> None:
        self.scope = scope
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def get(self, session: SessionInfo | str) -> SessionInfo:
        """Return title, counts, tokens and last activity of a session of this scope by name, or of a listed one.

        Raises NotFoundError if it is empty or does not exist, InvalidValueError if it is in another scope.
        """
        path = session_path(self.scope, session)
        found = await list_sessions(self._store, path, below=False)
        if not found:
            raise NotFoundError(f"{path.parent.path!r} has no session {path.name!r}")
        return found[0]

    async def delete(self, session: SessionInfo | str) -> bool:
        """Delete a session of this scope by name, or a listed one, with its archive, summary and settings.

        Returns whether it existed. Raises InvalidValueError if it is in another scope.
        """
        scan = StreamScan(scope=session_path(self.scope, session), kinds=(*OF_SESSIONS, VAULT), below=False, empty=True)
        streams = (await self._store.streams(scan)).items
        if streams:
            kinds = dict.fromkeys(stream.kind for stream in streams)
            if Capability.RECORDS in self._store.capabilities:
                kinds[VAULT] = None  # the vault may be in another store
            await self._store.write(Write(tuple(Purge(scan.scope, kind, drop=True) for kind in kinds)))
        return any(stream.count for stream in streams)

    # Last among the public methods, because its name shadows the type in annotations.
    async def list(self) -> list[SessionInfo]:
        """List the sessions here and below, with titles, counts, tokens and last activity."""
        return await list_sessions(self._store, self.scope)


COUNTED: dict[str, tuple[str, str | None]] = {
    MESSAGE: ("messages", "tokens"),
    ARCHIVED: ("archived", None),
    SUMMARY: ("summaries", None),
    MEMORY: ("memories", None),
    NOTE: ("notes", "note_bytes"),
    FACT: ("facts", None),
    STATE: ("state", "state_bytes"),
}
"""Fields for the count and the weight of a stream, by kind."""


class Stats(Value, frozen=True, kw_only=True):
    """Content statistics of a scope; `tokens` are those of the messages, `…_bytes` those of the values as JSON."""

    scope: ScopePath
    sessions: int = 0
    messages: int = 0
    tokens: int = 0
    archived: int = 0
    summaries: int = 0
    memories: int = 0
    notes: int = 0
    note_bytes: int = 0
    facts: int = 0
    state: int = 0
    state_bytes: int = 0
    first_activity: datetime | None = None
    last_activity: datetime | None = None

    @property
    def items(self) -> int:
        """Total number of items of every kind."""
        return sum(getattr(self, count) for count, _ in COUNTED.values())


async def scope_stats(store: Store, scope: ScopePath) -> Stats:
    """Return the statistics of a scope and those below."""
    total = Stats(scope=scope)
    async for stream in _streams(store, scope):
        total = _with(total, stream)
    return total


async def list_scopes(store: Store, scope: ScopePath, limit: int | None = None) -> list[Stats]:
    """Return each non-empty scope, here and below, in order of path; sessions count for their scope."""
    if limit is not None:
        check_count(limit, "limit")
    found: dict[str, Stats] = {}
    async for stream in _streams(store, scope):
        owner = stream.scope.parent if stream.kind in OF_SESSIONS and stream.scope != scope else stream.scope
        found[owner.path] = _with(found.get(owner.path) or Stats(scope=owner), stream)
    return [found[path] for path in sorted(found)][:limit]


async def _streams(store: Store, scope: ScopePath) -> AsyncIterator[Stream]:
    async for stream in all_streams(store, StreamScan(scope=scope, kinds=tuple(COUNTED))):
        if stream.count:
            yield stream


def _with(stats: Stats, stream: Stream) -> Stats:
    counted, weighed = COUNTED[stream.kind]
    changes: dict[str, Any] = {
        counted: getattr(stats, counted) + stream.count,
        "first_activity": min(filter(None, (stats.first_activity, stream.created))),
        "last_activity": max(filter(None, (stats.last_activity, stream.updated))),
    }
    if weighed is not None:
        changes[weighed] = getattr(stats, weighed) + stream.weight
    if stream.kind == MESSAGE:
        changes["sessions"] = stats.sessions + 1
    return replace(stats, **changes)
