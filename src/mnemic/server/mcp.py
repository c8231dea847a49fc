"""MCP over streamable HTTP: POST /mcp/SCOPE, without sessions; `?profile=default,graph` chooses the tools."""

from __future__ import annotations

from functools import cache
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..checks import check_names
from ..errors import InvalidValueError, MnemicError
from ..mcp.server import PROFILES, Context, build_server
from ..memory import AsyncMemory
from ..scope import AsyncScope
from .access import ACCESS, Access, restricted
from .api_keys import scope_named
from .problems import RequestError, problem_of
from .settings import Settings


class McpApp:
    """Answers requests of MCP clients, each within the scope of its address and what its key allows."""

    def __init__(self, memory: AsyncMemory, settings: Settings) -> None:
        self._memory = memory
        self._settings = settings
        self._server = cache(self._build_server)  # a few profiles, so a few servers

    def routes(self) -> list[Route]:
        """Return the routes: an address without a scope is that of the key's."""
        return [Route(path, self) for path in ("/mcp", "/mcp/{scope:path}")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is wrong with the request itself becomes a problem."""
        try:
            server = self._server_of(Request(scope, receive))
        except (RequestError, MnemicError) as error:
            await problem_of(error)(scope, receive, send)
            return
        # Host and Origin were checked for every path.
        manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=self._settings.max_body_bytes
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    def _server_of(self, request: Request) -> Server[Any]:
        if request.method != "POST":
            # There are no sessions to delete, and no messages that a client did not ask for.
            raise RequestError(405, "MCP is spoken with POST", {"Allow": "POST"})
        access: Access = request.scope[ACCESS]
        if "read" not in access.rights:
            raise RequestError(403, "this needs the right 'read', which the key does not have")
        self._scope_of(request)
        if unknown := request.query_params.keys() - {"profile"}:
            raise InvalidValueError(f"the query has an unknown parameter: {min(unknown)!r}")
        given = [name for value in request.query_params.getlist("profile") for name in value.split(",")]
        return self._server(tuple(sorted(set(check_names(given or ["default"], "profile", tuple(PROFILES))))))

    def _build_server(self, profiles: tuple[str, ...]) -> Server[Any]:
        def scope_of(context: Context) -> AsyncScope:
            assert context.request is not None
            return self._scope_of(context.request)

        return build_server(scope_of, profiles)

    def _scope_of(self, request: Request) -> AsyncScope:
        """Return the scope that a request names, by default that of its key; raises InvalidValueError."""
        access: Access = request.scope[ACCESS]
        path = request.path_params.get("scope", "").removesuffix("/")
        return restricted(self._memory, access).scope(scope_named(path) if path else access.scope)
