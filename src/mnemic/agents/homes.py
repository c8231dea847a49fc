"""Where an agent's memory is, and how it is reached from whatever event loop the agent runs on."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from ..checks import shown
from ..driving import Driver, Inline, Portal, off_loop, step
from ..errors import InvalidValueError
from ..features.sessions import AsyncSession
from ..memory import AsyncMemory
from ..scope import AsyncScope
from ..sync import Memory, Scope, Session, open

Result = TypeVar("Result")
AnyMemory: TypeAlias = Scope | AsyncScope | Memory | AsyncMemory | str | None
"""What an agent may be given as its memory: a scope, a memory, a URL, or nothing for one of its own."""
AnySession: TypeAlias = Session | AsyncSession | str
"""What an agent may be given as its conversation: one, with limits perhaps, or a name."""

OWN = "memory://"
"""The memory of an agent that was given none; it is gone with the process."""


class Home:
    """A scope of a memory.

    A memory at a URL is opened when it is first used, and closed with its home; what was given open is
    left open. A scope of an async memory can be used on that memory's event loop alone.
    """

    def __init__(self, memory: AnyMemory = None, name: str = "agent") -> None:
        """Take the scope `name` of a memory, or a scope as it is; raises InvalidValueError for others."""
        self._url: str | None = None
        self._name = name
        self._opened: Memory | None = None
        self._lock = threading.Lock()
        self._space: AsyncScope | None = None
        self._portal: Portal | None = None
        self._inline = False
        self._of: Home | None = None
        if memory is None or isinstance(memory, str):
            self._url = OWN if memory is None else memory
        elif isinstance(memory, Memory | AsyncMemory):
            self._settle(memory.scope(name))
        elif isinstance(memory, Scope | AsyncScope):
            self._settle(memory)
        else:
            raise InvalidValueError(f"an agent's memory is a scope, a memory or a URL: {shown(memory)}")

    @classmethod
    def around(cls, session: Session | AsyncSession) -> Home:
        """Return the scope that a conversation lies in."""
        twin = session._twin if isinstance(session, Session) else session
        space = AsyncScope(twin._store, twin.scope.parent, twin._tokens)
        return cls(Scope(space, session._driver) if isinstance(session, Session) else space)

    def room(self, name: str) -> Home:
        """Return a scope of its own within this one, which is opened and closed with it."""
        found = Home(name=name)
        found._of = self
        return found

    @property
    def space(self) -> AsyncScope:
        """The scope, once it is open."""
        assert self._space is not None, "a home is opened before it is used"
        return self._space

    async def open(self) -> AsyncScope:
        """Open the memory, if it is not open yet, and return the scope; raises as `mnemic.open` does."""
        if self._space is None:
            # In a thread, so that a sync memory is opened however the caller came here.
            await off_loop(self._open)
        return self.space

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what a call to the memory returns, wherever its connections live."""
        if self._inline:
            # One step aside for all of it, instead of one for each of the store's own steps.
            try:
                return await off_loop(lambda: step(work))
            except BaseException:
                # Whoever is cancelled before it began leaves it to nobody; under way, it goes on.
                with suppress(ValueError):
                    work.close()
                raise
        return await (work if self._portal is None else self._portal.hop(work))

    def session(self, session: AnySession) -> AsyncSession:
        """Return the conversation of this name in the scope, or the one that was given."""
        if isinstance(session, Session):
            return session._twin
        return session if isinstance(session, AsyncSession) else self.space.session(session)

    async def close(self) -> None:
        """Close the memory, if it was opened here."""
        await off_loop(self.close_sync)

    def close_sync(self) -> None:
        """Close the memory, if it was opened here, off any event loop."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                self._space = self._portal = None
                opened.close()

    def _open(self) -> None:
        with self._lock:
            if self._space is not None:
                return
            if self._of is not None:
                self._of._open()
                self._space = self._of.space.scope(self._name)
                self._portal, self._inline = self._of._portal, self._of._inline
            else:
                assert self._url is not None
                self._opened = open(self._url)
                self._settle(self._opened.scope(self._name))

    def _settle(self, space: Scope | AsyncScope) -> None:
        driver: Driver | None = space._driver if isinstance(space, Scope) else None
        self._portal = driver if isinstance(driver, Portal) else None
        self._inline = isinstance(driver, Inline)
        self._space = space._twin if isinstance(space, Scope) else space
