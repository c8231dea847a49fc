"""The application: every endpoint over one memory, for any ASGI server."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route

from ..features.listing import NewestMessages
from ..features.timeline import TimelineCache
from ..memory import AsyncMemory
from . import api, dashboard
from .access import Authenticator
from .access_middleware import AccessMiddleware
from .change_feed import ChangeFeed
from .endpoint import ENDPOINTS, Endpoint, PathApp
from .health import Readiness
from .limits import Limiter, Limits
from .mcp import McpApp
from .problems import answer_http_exception
from .request_metrics import RequestMetrics, RequestObserver
from .settings import Settings

MODULES = ("health", "mem0.endpoints", "openapi")
"""Modules of this package that declare endpoints, besides every module of `api`."""


def all_endpoints() -> list[Endpoint]:
    """Return every endpoint, in order of path and method."""
    for name in (*(f"api.{one.name}" for one in iter_modules(api.__path__)), *MODULES):
        import_module(f"{__package__}.{name}")
    return sorted(ENDPOINTS, key=lambda one: (_place(one.path), one.method))


def build_app(memory: AsyncMemory, settings: Settings) -> Starlette:
    """Return the application that serves a memory, which stays open when the application stops."""
    changes = ChangeFeed(memory._store)
    memory = changes.announcing(memory)
    by_path: dict[str, list[Endpoint]] = {}
    for one in all_endpoints():
        by_path.setdefault(one.path, []).append(one)
    routes: list[BaseRoute] = [Route(path, PathApp(here, memory, settings)) for path, here in by_path.items()]
    if settings.mcp:
        routes += McpApp(memory, settings).routes()
    if settings.dashboard:
        routes += dashboard.ROUTES
    figures = RequestMetrics()
    limiter = Limiter(settings, figures)
    authenticator = Authenticator(memory, settings)
    public = {"/", "/dashboard", *(one.path for one in all_endpoints() if one.right is None)}
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestObserver, figures, settings.access_log),
            *([Middleware(CORSMiddleware, **cors(settings))] if settings.allowed_origins else []),
            Middleware(AccessMiddleware, authenticator, settings, public),
            Middleware(Limits, limiter),
        ],
        exception_handlers={HTTPException: answer_http_exception},
    )
    app.router.redirect_slashes = False
    app.state.changes = changes
    app.state.timelines, app.state.newest_messages, app.state.mem0_places = TimelineCache(), NewestMessages(), {}
    app.state.figures, app.state.limiter, app.state.readiness = figures, limiter, Readiness(memory, settings)
    app.state.authenticator = authenticator
    return app


def cors(settings: Settings) -> dict[str, Any]:
    """Return the options of CORS: pages of the allowed origins may do everything but send the dashboard's cookie."""
    return {
        "allow_origins": list(settings.allowed_origins),
        "allow_methods": ["GET", "POST", "PUT", "PATCH", "DELETE"],
        "allow_headers": [
            "Authorization",
            "Content-Type",
            "Idempotency-Key",
            "If-Match",
            "If-None-Match",
            "Last-Event-ID",
            "X-API-Key",
        ],
        "expose_headers": ["ETag", "Retry-After"],
    }


def _place(path: str) -> list[tuple[int, str]]:
    """Return the place of a path among the routes: names before parameters, and what takes the rest of a path last."""
    return [(0 if "{" not in part else 2 if ":path" in part else 1, part) for part in path.split("/")]
