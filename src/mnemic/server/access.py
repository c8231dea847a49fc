"""Who makes a request, and what they may do."""

from __future__ import annotations

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from ..memory import AsyncMemory
from ..records import ScopePath

RIGHTS = ("read", "write", "erase", "admin")
"""Rights that a key can have."""
ACCESS = "mnemic.access"
"""Key of the `Access` in the ASGI scope of a request."""


class Access(Struct, frozen=True, kw_only=True):
    """Who makes a request, the scope that they see, and their rights."""

    name: str
    scope: ScopePath = ScopePath()
    rights: frozenset[str] = frozenset(RIGHTS)


OPEN = Access(name="loopback")


class AccessMiddleware:
    """Finds out who makes each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the access of a request on its ASGI scope, and serve it."""
        scope[ACCESS] = OPEN
        await self._app(scope, receive, send)


def restricted(memory: AsyncMemory, access: Access) -> AsyncMemory:
    """Return the memory as this access may use it."""
    return memory
