"""An agent's memory, accessible from any event loop."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from ..checks import shown
from ..errors import InvalidValueError
from ..event_loop import Driver, Inline, Portal, off_loop, step
from ..features.sessions import AsyncSession
from ..memory import AsyncMemory, OpenOptions
from ..scope import AsyncScope
from ..sync import Memory, Scope, Session, open

Result = TypeVar("Result")
AnyMemory: TypeAlias = Scope | AsyncScope | Memory | AsyncMemory | str | None
"""Accepted as a memory: a scope, a memory, a URL, or None for one in this process."""
AnySession: TypeAlias = Session | AsyncSession | str
"""Accepted as a session: a session, or a name."""

OWN = "memory://"
"""Default memory of an agent, gone with the process."""


class MemoryAccess:
    """A scope of a memory.

    A memory given as a URL is opened on first use and closed here; one given open stays open. A scope of an async
    memory works only on that memory's event loop.
    """

    def __init__(self, memory: AnyMemory = None, name: str = "agent", options: OpenOptions | None = None) -> None:
        """Take the scope `name` of a memory, or a scope itself; raises InvalidValueError for anything else.

        `options` are those of `mnemic.open`, for a memory that is given as a URL.
        """
        self._options: OpenOptions = options or {}
        if options and not (memory is None or isinstance(memory, str)):
            raise InvalidValueError("memory_options are for a memory that is given as a URL: this one is open already")
        self._url: str | None = None
        self._name = name
        self._opened: Memory | None = None
        self._lock = threading.Lock()
        self._scope: AsyncScope | None = None
        self._portal: Portal | None = None
        self._inline = False
        self._of: MemoryAccess | None = None
        if memory is None or isinstance(memory, str):
            self._url = OWN if memory is None else memory
        elif isinstance(memory, Memory | AsyncMemory):
            self._use(memory.scope(name))
        elif isinstance(memory, Scope | AsyncScope):
            self._use(memory)
        else:
            raise InvalidValueError(f"an agent's memory is a scope, a memory or a URL: {shown(memory)}")

    @classmethod
    def of(cls, memory: AnyMemory | MemoryAccess, name: str, options: OpenOptions | None = None) -> MemoryAccess:
        """Return access to a memory, or the given access."""
        return memory if isinstance(memory, MemoryAccess) else cls(memory, name, options)

    @classmethod
    def around(cls, session: Session | AsyncSession) -> MemoryAccess:
        """Return the scope that contains a session."""
        wrapped = session._async if isinstance(session, Session) else session
        scope = AsyncScope(wrapped._store, wrapped.scope.parent, wrapped._tokens)
        return cls(Scope(scope, session._driver) if isinstance(session, Session) else scope)

    def below(self, name: str) -> MemoryAccess:
        """Return a scope below this one, opened and closed with it."""
        found = MemoryAccess(name=name)
        found._of = self
        return found

    @property
    def scope(self) -> AsyncScope:
        """The scope, once it is open."""
        assert self._scope is not None, "the memory is opened before it is used"
        return self._scope

    async def open(self) -> AsyncScope:
        """Open the memory if necessary, and return the scope; raises as `mnemic.open` does."""
        if self._scope is None:
            # In a thread, so that a sync memory can be opened in any context.
            await off_loop(self._open)
        return self.scope

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a call to the memory on the event loop of its connections."""
        if self._inline:
            # One thread switch for the whole call instead of one for each step of the store.
            try:
                return await off_loop(lambda: step(work))
            except BaseException:
                # Cancelled before it started, it does not run; once started, it completes.
                with suppress(ValueError):
                    work.close()
                raise
        return await (work if self._portal is None else self._portal.hop(work))

    def session(self, session: AnySession) -> AsyncSession:
        """Return the session of this name in the scope, or the given one."""
        if isinstance(session, Session):
            return session._async
        return session if isinstance(session, AsyncSession) else self.scope.session(session)

    async def close(self) -> None:
        """Close the memory, if it was opened here."""
        await off_loop(self.close_sync)

    def close_sync(self) -> None:
        """Close the memory synchronously, if it was opened here."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                self._scope = self._portal = None
                opened.close()

    def _open(self) -> None:
        with self._lock:
            if self._scope is not None:
                return
            if self._of is not None:
                self._of._open()
                self._scope = self._of.scope.scope(self._name)
                self._portal, self._inline = self._of._portal, self._of._inline
            else:
                assert self._url is not None
                self._opened = open(self._url, **self._options)
                self._use(self._opened.scope(self._name))

    def _use(self, scope: Scope | AsyncScope) -> None:
        driver: Driver | None = scope._driver if isinstance(scope, Scope) else None
        self._portal = driver if isinstance(driver, Portal) else None
        self._inline = isinstance(driver, Inline)
        self._scope = scope._async if isinstance(scope, Scope) else scope
