"""The one place that sees every call of the public API, and reports it to listeners.

A call that runs within another is part of it: `remember`, which calls `memories.add`, is reported once. Without a
listener, a call costs one test more.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Protocol, TypeVar

__all__ = [
    "Call", "Listener", "Origin", "capture_content", "count", "current", "figures", "keep_current", "listen",
    "observed", "watch",
]  # fmt: skip

Class = TypeVar("Class")

OPERATIONS = {
    "create_memory": "facts.add memories.add memories.add_many scope.remember scope.remember_many session.add "
    "session.add_many session.fork session.prefill",
    "update_memory": "facts.update memories.decay memories.restore memories.update memories.used notes.configure "
    "notes.rename scope.restore scope.update scope.used session.archive session.configure session.edit session.replace "
    "session.restore state.update",
    "upsert_memory": "memory.import_from notes.write scope.import_from session.load session.set_system "
    "state.set state.set_many",
    "delete_memory": "facts.delete memories.delete memory.compact memory.finish_erasure notes.clear notes.delete "
    "scope.erase scope.forget session.clear session.delete session.pop sessions.delete state.clear "
    "state.delete",
    "search_memory": "facts.ask facts.graph facts.neighbors facts.path memories.archived memories.fading memories.get "
    "memories.list memories.similar memory.audit_checkpoint memory.audit_page memory.audit_trail memory.audit_verify "
    "memory.reveal memory.scopes memory.signing_keys memory.stats notes.get notes.list notes.read notes.read_all "
    "notes.read_many notes.settings notes.stale notes.usage scope.as_of scope.context scope.get scope.history "
    "scope.holds scope.recall scope.reveal scope.scopes scope.stats scope.to_pandas session.archived session.get "
    "session.history session.info session.messages session.recent session.settings session.summary session.system "
    "session.transcript session.window sessions.get sessions.list state.get state.get_many state.keys "
    "state.list",
    "export_memory": "facts.save_graphml facts.to_networkx memory.export_to scope.export_to scope.subject_export "
    "session.save",
    "hold_memory": "scope.hold scope.release",
    "reindex_memory": "memory.reembed memory.reindex memory.warm",
    "rotate_memory": "memory.rotate",
    "scan_memory": "memory.scan scope.scan",
}
"""`gen_ai.operation.name` of each call of the API."""
UNOBSERVED = frozenset({"memory.close", "memory.metrics", "memory.ping"})
"""Calls that are no operations on what is stored."""
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable of the GenAI conventions that allows content in spans."""
PORTS = {"http": 80, "https": 443, "postgres": 5432, "postgresql": 5432, "redis": 6379, "rediss": 6379}

CO_COROUTINE = 0x80
"""Flag of a coroutine function's code, as `inspect` defines it, which takes long to import."""

_NAMES = {name: operation for operation, names in OPERATIONS.items() for name in names.split()}
_TRACING = "opentelemetry.trace"

log: logging.Logger = logging.getLogger("mnemic.calls")


class Origin:
    """The store of a call: its URL without secrets and options, scheme, and server if it has one."""

    def __init__(self, url: str = "") -> None:
        address = url.partition("?")[0]
        self.scheme: str
        self.scheme, mark, rest = address.partition("://")
        host, slash, path = rest.partition("/")
        host = host.rpartition("@")[2]
        self.id: str = f"{self.scheme}{mark}{host}{slash}{path}"
        self.address: str | None = None
        self.port: int | None = None
        family = self.scheme.partition("+")[0]
        if family in PORTS:
            from urllib.parse import urlsplit

            try:
                found = urlsplit(f"//{host.partition(',')[0]}")
                self.address, self.port = found.hostname or "localhost", found.port or PORTS[family]
            except ValueError:
                pass  # no host and port that could be told


UNKNOWN = Origin()


class Call:
    """One call of the public API; listeners get it when it begins and when it has ended."""

    __slots__ = ("_id", "arguments", "error", "failure", "name", "operation", "origin", "result", "scope", "seconds")

    def __init__(self, name: str, operation: str, origin: Origin, scope: str | None, arguments: Callable[[], Any]):
        self._id = ""
        self.name: str = name
        self.operation: str = operation
        self.origin: Origin = origin
        self.scope: str | None = scope
        self.arguments: Callable[[], Any] = arguments
        self.seconds: float = 0.0
        self.result: Any = None
        self.error: str | None = None
        """Name of the error's class; never its message, which may quote content."""
        self.failure: Exception | None = None
        """The failure in spite of which the call goes on, if its store was opened so."""

    @property
    def id(self) -> str:
        """A random id of the call."""
        self._id = self._id or os.urandom(8).hex()
        return self._id

    def count(self) -> int | None:
        """Return how many records the call wrote, deleted or returned; None if that cannot be told."""
        found = self.result
        if self.error is not None or isinstance(found, tuple | float):
            return None
        if found is None or isinstance(found, int):
            return int(found or 0)
        if isinstance(found, list | dict):
            return len(found)
        for name in ("hits", "facts"):
            if isinstance(several := getattr(found, name, None), list):
                return len(several)
        for name in ("matched", "records"):
            if isinstance(number := getattr(found, name, None), int):
                return number
        return None if self.record_id(keys=True) is None else 1

    def record_id(self, *, keys: bool) -> str | None:
        """Return the id of the one record that the call was about, with `keys` also the key of a note.

        A key is content, since it may be the name of a person.
        """
        found = getattr(self.result, "id", None) or (getattr(self.result, "key", None) if keys else None)
        return found if isinstance(found, str) else None


class Listener(Protocol):
    """Receives calls, and counts events within them."""

    def begin(self, call: Call) -> Any:
        """Take a call that begins; what is returned is given to `end`."""
        ...

    def end(self, call: Call, begun: Any) -> None:
        """Take a call that has ended."""
        ...

    def count(self, event: str, label: str) -> None:
        """Count an event, such as a retry."""
        ...


class Watched(Protocol):
    """An object with figures that change all the time, such as the depth of a queue."""

    def figures(self) -> Iterator[tuple[str, str, float]]:
        """Yield names, labels and values."""
        ...


_current: ContextVar[Call | None] = ContextVar("mnemic-call", default=None)
_listeners: list[Listener] = []
_found: list[Listener] = []
"""The listener that needs no registration: OpenTelemetry's, if it has a provider."""
_otel: Any = None
"""The module, once it is needed."""
_watched: dict[int, weakref.ref[Any]] = {}
_content: bool | None = None
_kept = False
"""Whether the current call is known without a listener, too."""
_complaints: set[str] = set()
"""Errors of listeners that were logged."""


def observed(cls: type[Class]) -> type[Class]:
    """Report the public coroutine methods of a class; a decorator."""
    group = cls.__name__.removeprefix("Async").lower()
    for attribute, method in list(vars(cls).items()):
        name = f"{group}.{attribute}"
        coroutine = isinstance(method, FunctionType) and method.__code__.co_flags & CO_COROUTINE
        if coroutine and not attribute.startswith("_") and name not in UNOBSERVED:
            setattr(cls, attribute, _reporting(method, name, _NAMES[name]))
    return cls


def _reporting(method: Callable[..., Any], name: str, operation: str) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: Any, /, *arguments: Any, **options: Any) -> Any:
        # OpenTelemetry can have a provider only in a program that has imported it.
        tracing = _TRACING in sys.modules and _is_tracing()
        if not (tracing or _listeners or _kept or log.isEnabledFor(logging.DEBUG)) or _current.get() is not None:
            return await method(self, *arguments, **options)
        origin = getattr(getattr(self, "_store", None), "origin", UNKNOWN)
        seen = Call(name, operation, origin, _scope_of(self), lambda: _named(method, arguments, options))
        return await _report(seen, method(self, *arguments, **options))

    return call


def _scope_of(thing: Any) -> str | None:
    """Return the path of the scope that an object of the API belongs to."""
    places = (getattr(getattr(thing, name, None), "path", None) for name in ("path", "scope"))
    return next((path for path in places if isinstance(path, str)), None)


def _named(method: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    from inspect import signature

    return dict(signature(method).bind(None, *arguments, **options).arguments)


async def _report(call: Call, work: Any) -> Any:
    begun = []
    for listener in _all_listeners():
        with _harmless():
            begun.append((listener, listener.begin(call)))
    token = _current.set(call)
    start = time.perf_counter()
    try:
        call.result = await work
        return call.result
    except BaseException as error:
        call.error = type(error).__qualname__
        raise
    finally:
        call.seconds = time.perf_counter() - start
        _current.reset(token)
        for listener, state in reversed(begun):
            with _harmless():
                listener.end(call, state)


@contextmanager
def _harmless() -> Iterator[None]:
    """Log an error of a listener, once of each class, instead of raising it: telemetry must not break a call."""
    try:
        yield
    except Exception as error:
        if (name := type(error).__qualname__) not in _complaints:
            _complaints.add(name)
            log.warning("telemetry failed, and is incomplete (%s)", name)


def _is_tracing() -> bool:
    """Return whether OpenTelemetry has a provider, and listen for it from then on."""
    global _otel
    if not _found:
        if _otel is None:
            from . import otel as _otel
        if _otel.has_provider():
            _found[:] = [_otel.SpanListener()]  # one, also if two threads come here at once
    return bool(_found)


def _all_listeners() -> Sequence[Listener]:
    if log.isEnabledFor(logging.DEBUG):
        from .logs import LogListener

        return *_found, *_listeners, LogListener()
    return *_found, *_listeners


def listen(listener: Listener) -> None:
    """Add a listener, which gets every call from now on."""
    _listeners.append(listener)


def current() -> Call | None:
    """Return the call that runs in this thread or task, if there is a listener or `keep_current` was called."""
    return _current.get()


def keep_current() -> None:
    """Have `current` return calls from now on, also without a listener."""
    global _kept
    _kept = True


def count(event: str, label: str = "") -> None:
    """Count an event, such as a retry, for every listener."""
    for listener in (*_found, *_listeners):
        with _harmless():
            listener.count(event, label)


def watch(thing: Watched) -> None:
    """Include an object's figures while it is alive."""
    key = id(thing)
    _watched[key] = weakref.ref(thing, lambda _: _watched.pop(key, None))


def figures() -> Iterator[tuple[str, str, float]]:
    """Yield the figures of all watched objects."""
    for reference in list(_watched.values()):
        if (thing := reference()) is not None:
            yield from thing.figures()


def capture_content(allowed: bool | None = True) -> None:
    """Allow queries and texts in spans, or forbid them; None leaves it to the environment variable."""
    global _content
    _content = allowed


def content_allowed() -> bool:
    """Return whether spans may hold queries and texts."""
    if _content is not None:
        return _content
    return os.environ.get(CONTENT_VARIABLE, "").lower() in ("true", "1", "span_only", "span_and_event")
