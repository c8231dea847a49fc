"""Endpoints for operators: whether the server lives, whether the store answers, and figures for Prometheus."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.responses import Response

from ..errors import AccessDeniedError, MnemicError
from ..memory import AsyncMemory
from .endpoint import ApiCall, Example, endpoint
from .problems import RequestError
from .settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health(Struct, frozen=True):
    """How the server is."""

    status: str


class Readiness:
    """Asks the store for an answer, with a deadline; requests at the same time share one question."""

    def __init__(self, memory: AsyncMemory, settings: Settings) -> None:
        self._memory = memory
        self._seconds = settings.ready_seconds
        self._asking: asyncio.Task[object] | None = None

    async def check(self) -> str | None:
        """Return None if the store answers in time, else what is wrong."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=self._seconds)
        if not done:
            return f"The store did not answer within {self._seconds:g} seconds."
        return None if self._asking.result() is None else "The store cannot be read."

    async def _ask(self) -> MnemicError | None:
        try:
            await self._memory.ping()
        except MnemicError as error:
            return error
        return None


@endpoint(
    "GET", "/live", right=None, summary="Ask whether the server runs", tag="health", scoped=False,
    example=Example(answer={"status": "live"}),
)  # fmt: skip
async def live(call: ApiCall) -> Health:
    """Answers as long as the process does, whatever the store does: restart the server if there is no answer."""
    return Health("live")


@endpoint(
    "GET", "/ready", right=None, summary="Ask whether the store answers", tag="health", scoped=False, problems=(503,),
    example=Example(answer={"status": "ready"}),
)  # fmt: skip
async def ready(call: ApiCall) -> Health:
    """Answers 503 while the store does not, or while the server is stopping: send it no requests then."""
    state = call.request.app.state
    if state.limiter.stopping:
        raise RequestError(503, "The server is stopping.", {"Retry-After": "1"})
    if (wrong := await state.readiness.check()) is not None:
        raise RequestError(503, wrong, {"Retry-After": "1"})
    return Health("ready")


@endpoint(
    "GET", "/metrics", right="admin", summary="Read figures for Prometheus", tag="health", scoped=False, content=TEXT
)
async def prometheus(call: ApiCall) -> Response:
    """Figures of HTTP, of the library's operations, of recall and of the process, as Prometheus reads them."""
    from prometheus_client import CollectorRegistry, generate_latest

    if call.access.scope.path:
        raise AccessDeniedError("the figures are those of the whole server, and the key is for a part of it")
    registry = CollectorRegistry()
    registry.register(call.request.app.state.figures)
    text = generate_latest(registry)
    return Response(text + generate_latest(operations()), media_type=TEXT)


@cache
def operations() -> CollectorRegistry:
    """Return the registry with the figures of the library and of this process."""
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
