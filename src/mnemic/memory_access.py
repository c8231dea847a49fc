"""A scope of a memory, opened on first use and accessible from any thread and any event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import update_wrapper
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from .checks import shown
from .errors import EventLoopError, InvalidValueError
from .event_loop import BorrowedDriver, Driver, Inline, Portal, off_loop, running_loop, step
from .features.sessions import AsyncSession
from .memory import AsyncMemory, OpenOptions
from .scope import AsyncScope
from .sync import Memory, Scope, Session, open

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
AnyMemory: TypeAlias = Scope | AsyncScope | Memory | AsyncMemory | str
"""Accepted as a memory: a scope, a memory, or a URL."""
AnySession: TypeAlias = Session | AsyncSession | str
"""Accepted as a session: a session, or a name."""

OWN = "memory://"
"""The memory if none is given, gone with the process."""


class MemoryAccess:
    """A scope of a memory.

    A memory given as a URL is opened on first use and closed here; one given open stays open. A scope of an async
    memory works on that memory's event loop; sync calls of other threads wait for it there.
    """

    def __init__(self, memory: AnyMemory = OWN, name: str | None = None, options: OpenOptions | None = None) -> None:
        """Take the scope `name` of a memory, without a name its root; or a scope itself.

        `options` are those of `mnemic.open`, for a memory that is given as a URL. Raises InvalidValueError for
        anything else.
        """
        self._options: OpenOptions = options or {}
        if options and not isinstance(memory, str):
            raise InvalidValueError("options are for a memory that is given as a URL: this one is open already")
        self._url: str | None = None
        self._name = () if name is None else (name,)
        self._opened: Memory | None = None
        self._lock = threading.Lock()
        self._scope: AsyncScope | None = None
        self._driver: Driver | None = None
        self._loop: AbstractEventLoop | None = None
        self._of: MemoryAccess | None = None
        if isinstance(memory, str):
            self._url = memory
        elif isinstance(memory, Memory | AsyncMemory):
            self._use(memory.scope(*self._name))
        elif isinstance(memory, Scope | AsyncScope):
            self._use(memory)
        else:
            raise InvalidValueError(
                f"a memory is given as a scope, a memory or a URL, {OWN!r} for one in this process: {shown(memory)}"
            )

    def __deepcopy__(self, memo: object) -> MemoryAccess:
        return self  # copies of an agent, a crew or a chat share its memory

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
        if self._driver is None:
            self._loop = running_loop()
            return await work
        if isinstance(self._driver, Inline):
            # One thread switch for the whole call instead of one for each step of the store. The lock is taken by
            # whichever comes first: the thread that runs the call, or its cancellation.
            decided = threading.Lock()

            def run_unless_cancelled() -> Result:
                if not decided.acquire(blocking=False):
                    raise CancelledError
                return step(work)

            try:
                return await off_loop(run_unless_cancelled)
            except BaseException:
                if decided.acquire(blocking=False):
                    work.close()
                raise
        return await (self._driver.hop(work) if isinstance(self._driver, Portal) else work)

    async def call(self, work: Callable[[AsyncScope], Coroutine[Any, Any, Result]]) -> Result:
        """Open the memory if necessary, and run `work` on the scope, from any event loop."""
        return await self.run(work(self._scope or await self.open()))

    def call_sync(self, work: Callable[[AsyncScope], Coroutine[Any, Any, Result]]) -> Result:
        """Open the memory if necessary, run `work` on the scope, and wait for it.

        A memory that was opened with `open_async` runs it on its event loop. Raises EventLoopError on that loop, which
        would wait for itself, or if no such loop is known.
        """
        if self._scope is None:
            self._open()
        loop = self._loop if self._driver is None else None
        if loop is not None and loop.is_running() and loop is not running_loop():
            from asyncio import run_coroutine_threadsafe

            return run_coroutine_threadsafe(work(self.scope), loop).result()
        return self._open_driver().run(work(self.scope))

    def session_sync(self, name: str) -> Session:
        """Open the memory if necessary, and return a session of the scope with the sync API.

        Raises EventLoopError for a memory that was opened with `open_async`.
        """
        driver = self._open_driver()
        return Session(self.scope.session(name), driver)

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
                self._scope = self._driver = None
                opened.close()

    def _open_driver(self) -> Driver:
        if self._scope is None:
            self._open()
        if self._driver is None:
            raise EventLoopError("a memory of open_async has async calls only: pass its URL, or a memory of open")
        return self._driver

    def _open(self) -> None:
        with self._lock:
            if self._scope is not None:
                return
            if self._of is not None:
                self._of._open()
                self._scope = self._of.scope.scope(*self._name)
                self._driver, self._loop = self._of._driver, self._of._loop
            else:
                assert self._url is not None
                self._opened = open(self._url, **self._options)
                self._use(self._opened.scope(*self._name))

    def _use(self, scope: Scope | AsyncScope) -> None:
        driver = scope._driver if isinstance(scope, Scope) else None
        self._driver = driver.lender if isinstance(driver, BorrowedDriver) else driver
        self._loop = running_loop() if driver is None else None
        self._scope = scope._async if isinstance(scope, Scope) else scope


class ClosesMemory:
    """An object that works in a memory: a context manager, sync and async, that closes what it has opened."""

    _memory: MemoryAccess

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._memory.close_sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._memory.close()


def sync_and_async(
    work: Callable[Concatenate[Any, AsyncScope, Parameters], Coroutine[Any, Any, Result]],
) -> tuple[
    Callable[Concatenate[Any, Parameters], Result], Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]]
]:
    """Return `work`, a method that takes a scope first, as a sync and an async method of objects with a `_memory`."""

    def run(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        access: MemoryAccess = self._memory
        return access.call_sync(lambda scope: work(self, scope, *arguments, **named))

    async def run_async(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        access: MemoryAccess = self._memory
        return await access.call(lambda scope: work(self, scope, *arguments, **named))

    for made in (run, run_async):  # what inspects a method sees no scope
        seen: Any = update_wrapper(made, work)
        own, _, *others = signature(work).parameters.values()
        seen.__signature__ = signature(work).replace(parameters=[own, *others])
    return run, run_async
