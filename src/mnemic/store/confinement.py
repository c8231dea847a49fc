"""The scope that the current call is confined to, for a store whose database can enforce it."""

from __future__ import annotations

from contextvars import ContextVar, Token

from ..records import ScopePath

WHOLE = ScopePath()

_current: ContextVar[ScopePath] = ContextVar("mnemic_confinement", default=WHOLE)


def confinement() -> ScopePath:
    """Return the scope that the current call may use; the root for the whole store."""
    return _current.get()


class Confined:
    """Context manager: calls within it may use one scope and those below; within a narrower one, that remains."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: ScopePath) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        now = _current.get()
        self._token: Token[ScopePath] = _current.set(now if self._scope.contains(now) else self._scope)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)


class Unconfined(Confined):
    """Context manager for what a layer does for itself: calls within it may use the whole store."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(WHOLE)

    def __enter__(self) -> None:
        self._token = _current.set(WHOLE)
