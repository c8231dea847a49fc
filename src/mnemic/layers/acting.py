"""Audit configuration, and the context that identifies the current actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import TypeAlias

from msgspec import Struct, field

from ..checks import check_name
from ..errors import InvalidValueError
from ..records import Record, ScopePath, Value
from ..store.protocol import Store

AuditFlags: TypeAlias = Callable[[Record], Sequence[str]]
"""A function from a record to the flags that its audit entries carry."""
"""Returns flags for a record being written, such as `["personal data"]`."""


class Audit(Struct, frozen=True, kw_only=True):
    """Audit configuration: where to write entries, a function for flags, and the default actor.

    `store` is a store, or the URL of one; None is the memory's own store.
    """

    store: Store | str | None = None
    flags: AuditFlags | None = None
    actor: str | None = None
    session: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an invalid name."""
        _check_names(self.actor, self.session, self.address)
        if self.flags is not None and not callable(self.flags):
            raise InvalidValueError("flags is a function from a record to a list of texts")


Auditing: TypeAlias = Audit | Store | str | bool | None
"""Whether and how to audit: True for the memory's own store, another store or its URL, or an `Audit`."""


OPERATIONS = ("put", "delete", "purge", "limit", "expire", "touch")
"""Operations that an entry can record."""


class AuditEntry(Value, frozen=True, kw_only=True):
    """One change; `operation` is one of OPERATIONS.

    `before` and `after` are the record's versions, where known; `removed` are the keys that a limit evicted,
    `count` is the number of records that a purge deleted. The answer of an `unsure` change was lost: it may not
    have happened.
    """

    time: datetime
    operation: str
    scope: ScopePath
    kind: str
    key: str | None = None
    actor: str | None = None
    session: str | None = None
    address: str | None = None
    before: int | None = None
    after: int | None = None
    flags: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    count: int | None = None
    unsure: bool = False


class Who(Struct, frozen=True):
    """The current actor, session and address."""

    actor: str | None = None
    session: str | None = None
    address: str | None = None

    def over(self, other: Who | Audit) -> Who:
        """Return this actor, with missing fields taken from `other`."""
        return Who(
            self.actor if self.actor is not None else other.actor,
            self.session if self.session is not None else other.session,
            self.address if self.address is not None else other.address,
        )


_NOBODY = Who()
_acting: ContextVar[Who] = ContextVar("mnemic_acting", default=_NOBODY)


class Acting:
    """Context manager, sync and async, that sets the actor; omitted fields keep their outer values."""

    def __init__(self, actor: str | None, session: str | None, address: str | None) -> None:
        """Raise InvalidValueError for an invalid name."""
        _check_names(actor, session, address)
        self._who = Who(actor, session, address)
        self._tokens: list[Token[Who]] = []

    def __enter__(self) -> None:
        self._tokens.append(_acting.set(self._who.over(_acting.get())))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _acting.reset(self._tokens.pop())

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def acting() -> Who:
    """Return the current actor."""
    return _acting.get()


def audit_of(given: Auditing) -> Audit | None:
    """Return the configuration as an `Audit`; None if auditing is off."""
    if given is None or isinstance(given, Audit):
        return given
    if isinstance(given, bool):
        return Audit() if given else None
    return Audit(store=given)


def _check_names(*names: str | None) -> None:
    for what, name in zip(("actor", "session", "address"), names, strict=True):
        if name is not None:
            check_name(name, what)
