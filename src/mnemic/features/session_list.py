"""The sessions of a scope: list, get, delete."""

from __future__ import annotations

from datetime import datetime

from ..errors import InvalidValueError, NotFoundError
from ..records import ScopePath, Stream, Value
from ..store.protocol import Store, all_streams
from ..store.query import Purge, StreamScan, Write
from .kinds import OF_SESSIONS
from .messages import MESSAGE


class SessionInfo(Value, frozen=True, kw_only=True):
    """A session in a list: its counts, tokens and times."""

    name: str
    scope: ScopePath
    messages: int
    tokens: int
    started: datetime
    last_activity: datetime
    expires: datetime | None = None


def session_info(stream: Stream) -> SessionInfo:
    """Return the list entry of a session's stream."""
    return SessionInfo(
        name=stream.scope.name,
        scope=stream.scope,
        messages=stream.count,
        tokens=stream.weight,
        started=stream.created,
        last_activity=stream.updated,
        expires=stream.expires,
    )


def session_path(scope: ScopePath, session: SessionInfo | str) -> ScopePath:
    """Return where a session of a scope is, by its name, or one here or below that was listed.

    Raises InvalidValueError for a session of another scope.
    """
    if not isinstance(session, SessionInfo):
        return scope / session
    if not scope.holds(session.scope):
        raise InvalidValueError(f"session {session.scope.path!r} is not in {scope.path!r}")
    return session.scope


class AsyncSessions:
    """The sessions of one scope; the scope's `session` opens one."""

    scope: ScopePath

    def __init__(self, store: Store, scope: ScopePath) -> None:
        self.scope = scope
        self._store = store

    def __repr__(self) -> str:
        """Return the class and the path of the scope."""
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def get(self, session: SessionInfo | str) -> SessionInfo:
        """Return counts, tokens and last activity of a session of this scope by name, or of a listed one.

        Raises NotFoundError if it is empty or does not exist, InvalidValueError if it is in another scope.
        """
        path = session_path(self.scope, session)
        scan = StreamScan(scope=path, kinds=(MESSAGE,), below=False)
        page = await self._store.streams(scan)
        if not page.items:
            raise NotFoundError(f"{path.parent.path!r} has no session {path.name!r}")
        return session_info(page.items[0])

    async def delete(self, session: SessionInfo | str) -> bool:
        """Delete a session of this scope by name, or a listed one, with its archive, summary and settings.

        Returns whether it existed. Raises InvalidValueError if it is in another scope.
        """
        scan = StreamScan(scope=session_path(self.scope, session), kinds=OF_SESSIONS, below=False, empty=True)
        streams = (await self._store.streams(scan)).items
        if streams:
            await self._store.write(Write(tuple(Purge(s.scope, s.kind, drop=True) for s in streams)))
        return any(stream.count for stream in streams)

    # Last among the public methods, because its name shadows the type in annotations.
    async def list(self) -> list[SessionInfo]:
        """List the sessions here and below, with counts, tokens and last activity."""
        scan = StreamScan(scope=self.scope, kinds=(MESSAGE,))
        return [session_info(stream) async for stream in all_streams(self._store, scan)]
