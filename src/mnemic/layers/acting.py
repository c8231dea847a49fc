"""Who acts, and how what they do is audited: values, and the context that says who it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import TypeAlias

from msgspec import Struct, field

from ..checks import check_name
from ..errors import InvalidValueError
from ..records import Record, ScopePath
from ..store.protocol import Store

Flags = Callable[[Record], Sequence[str]]
"""Says what must be noted about a record that is written, such as `["personal data"]`."""


class Audit(Struct, frozen=True, kw_only=True):
    """How changes are audited: where to, with which flags, and who acts unless `acting` says otherwise.

    `store` is a store, or the URL of one; None is the store of the memory itself.
    """

    store: Store | str | None = None
    flags: Flags | None = None
    actor: str | None = None
    session: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a name that is none."""
        _check_names(self.actor, self.session, self.address)
        if self.flags is not None and not callable(self.flags):
            raise InvalidValueError("flags is a function from a record to a list of texts")


Auditing: TypeAlias = Audit | Store | str | bool | None
"""Whether and how to audit: True for the store itself, another store or its URL, or an `Audit`."""


OPERATIONS = ("put", "delete", "purge", "limit", "expire", "touch")
"""What an entry of the trail may tell of."""


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One change: `operation` is one of OPERATIONS.

    `before` and `after` are the record's versions, where they were known; `removed` are the keys that a limit
    removed, `count` is how many records a purge did. Of an `unsure` change the answer was lost: it may not
    have been made.
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
    """Who acts, in which session, and from where."""

    actor: str | None = None
    session: str | None = None
    address: str | None = None

    def over(self, other: Who | Audit) -> Who:
        """Return this with what it leaves open taken from another."""
        return Who(
            self.actor if self.actor is not None else other.actor,
            self.session if self.session is not None else other.session,
            self.address if self.address is not None else other.address,
        )


_NOBODY = Who()
_acting: ContextVar[Who] = ContextVar("mnemic_acting", default=_NOBODY)


class Acting:
    """Says who acts, for all that is done in a `with` or `async with`; what is left out stays as it was."""

    def __init__(self, actor: str | None, session: str | None, address: str | None) -> None:
        """Raise InvalidValueError for a name that is none."""
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
    """Return who acts here and now."""
    return _acting.get()


def audit_of(given: Auditing) -> Audit | None:
    """Return what was given as an `Audit`; None if there is to be none."""
    if given is None or isinstance(given, Audit):
        return given
    if isinstance(given, bool):
        return Audit() if given else None
    return Audit(store=given)


def _check_names(*names: str | None) -> None:
    for what, name in zip(("actor", "session", "address"), names, strict=True):
        if name is not None:
            check_name(name, what)
