"""Settings of the audit log, and the current actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from typing import TypeAlias

from msgspec import Struct

from ..checks import check_name
from ..errors import InvalidValueError
from ..records import Record
from ..store.protocol import Store

AuditFlags: TypeAlias = Callable[[Record], Sequence[str]]
"""Returns flags for a record being written, such as `["personal data"]`."""


class Audit(Struct, frozen=True, kw_only=True):
    """Audit configuration: where to write entries, what they record, and the default actor.

    `store` is a store, or the URL of one; None is the memory's own store. `flags` is a function that returns flags
    for a record. With `reads`, reads, scans and recalls are recorded as well; with `content`, the texts that are
    written and the queries of recall; with `pseudonyms`, keyed hashes in place of keys, actors, sessions and addresses.
    With `existing`, only a store that has a log of its own, whose key is given or kept in it, is audited.
    """

    store: Store | str | None = None
    flags: AuditFlags | None = None
    actor: str | None = None
    session: str | None = None
    address: str | None = None
    reads: bool = False
    content: bool = False
    pseudonyms: bool = False
    existing: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an invalid name."""
        actor_fields(self.actor, self.session, self.address)
        if self.flags is not None and not callable(self.flags):
            raise InvalidValueError("flags is a function from a record to a list of texts")


Auditing: TypeAlias = Audit | Store | str | bool | None
"""Whether and how to audit: True for the memory's own store, another store or its URL, or an `Audit`."""


_current_actor: ContextVar[dict[str, str]] = ContextVar("mnemic_actor")


class Acting:
    """Context manager, sync and async, that sets the actor; omitted fields keep their outer values."""

    def __init__(self, actor: str | None, session: str | None, address: str | None) -> None:
        """Raise InvalidValueError for an invalid name."""
        self._actor = actor_fields(actor, session, address)
        self._tokens: list[Token[dict[str, str]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_current_actor.set(_current_actor.get({}) | self._actor))

    def __exit__(self, *error: object) -> None:
        _current_actor.reset(self._tokens.pop())

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()


def current_actor() -> dict[str, str]:
    """Return the actor, session and address that `Acting` has set, as far as it has."""
    return _current_actor.get({})


def actor_fields(actor: str | None, session: str | None, address: str | None) -> dict[str, str]:
    """Return the fields that are given; raises InvalidValueError for an invalid name."""
    given = {"actor": actor, "session": session, "address": address}
    return {field: check_name(name, field) for field, name in given.items() if name is not None}


def audit_of(given: Auditing) -> Audit | None:
    """Return the configuration as an `Audit`; None if auditing is off."""
    if given is None or isinstance(given, Audit):
        return given
    if isinstance(given, bool):
        return Audit() if given else None
    return Audit(store=given)
