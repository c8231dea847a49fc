"""Checks every request before it is served: its host, its origin, and who makes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from time import monotonic
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..checks import shown
from ..layers.audit_settings import Acting
from .access import ACCESS, CACHED_SECONDS, FORWARDED, Access, Authenticator
from .problems import RequestError, problem_of
from .settings import Settings, is_loopback

MAX_HOSTS = 100
"""How many Host headers that were checked are remembered."""
PROBES = ("/live", "/ready")
"""Paths that are answered under any host name, since a load balancer does not know the right one."""
DASHBOARD = "/dashboard/"
SESSION = "/dashboard/session"
"""Tells the dashboard who uses it, and whether anybody is signed in."""
CLOSED = (SESSION, "/dashboard/logout")
"""Paths below the dashboard that need a login; the others are its files, which are the same for everyone."""
READ = frozenset((b"authorization", b"host", b"origin", b"sec-fetch-mode", b"sec-fetch-site", b"x-api-key", *FORWARDED))
"""Headers that are read here."""
HEADERS = {
    b"cache-control": b"private, no-cache",
    b"cross-origin-resource-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
}
"""Headers of every answer that has no others of that name."""


class AccessMiddleware:
    """Refuses requests from elsewhere and without a right to be here, and tells who makes the others."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, settings: Settings, public: Collection[str]) -> None:
        """Take the paths that are open to all."""
        self._app = app
        self._authenticator = authenticator
        self._public = frozenset(public)
        self._only_loopback = is_loopback(settings.host)
        self._hosts = {"localhost", _bare(settings.host), *(_bare(name) for name in settings.allowed_hosts)}
        self._origins = frozenset(settings.allowed_origins)
        self._known_hosts: set[str] = set()
        """Host headers that were checked, with their ports."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with its access on the ASGI scope, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request = Request(scope)
        client = request.client.host if request.client else None
        access: Access | None = None
        checked, ended = monotonic(), False

        async def guarded(message: Message) -> None:
            nonlocal checked, ended
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [one for one in HEADERS.items() if one[0] not in given]
                message["headers"] = [*message["headers"], *more]
            elif message.get("more_body") and access is not None and monotonic() - checked > CACHED_SECONDS:
                # A stream may outlast the key that it was begun with.
                checked = monotonic()
                if not await self._authenticator.still_allows(access):
                    ended = True
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise ConnectionError("the key of the stream is no longer valid")
            await send(message)

        try:
            headers = _read_headers(scope)
            if scope["path"] not in PROBES:
                self._check_host(headers.get(b"host", ""))
                self._check_origin(headers)
            anyone = Access(name="anyone", rights=frozenset(), key=f"address {client}")
            if self._is_public(scope["path"]):
                access = anyone
            else:
                try:
                    access = await self._authenticator.authenticate(request, headers)
                except RequestError as error:
                    if (error.status, scope["path"]) != (401, SESSION):
                        raise
                    access = anyone
        except Exception as error:
            await problem_of(error)(scope, receive, guarded)
            return
        scope[ACCESS] = access
        try:
            with Acting(access.name, None, client):
                await self._app(scope, receive, guarded)
        except Exception:
            if not ended:
                raise

    def _is_public(self, path: str) -> bool:
        return path in self._public or (path.startswith(DASHBOARD) and path not in CLOSED)

    def _check_host(self, given: str) -> None:
        """Raise RequestError unless the request names this server: a name that leads here may be an attacker's."""
        if given in self._known_hosts:
            return
        host = _bare(given)
        if "@" in given:
            raise RequestError(421, f"This server is not {shown(given)}: allowed_hosts lists its names.")
        if host not in self._hosts and not self._is_address(host):
            raise RequestError(421, f"This server is not {shown(host)}: allowed_hosts lists its names.")
        if len(self._known_hosts) < MAX_HOSTS:
            self._known_hosts.add(given)

    def _is_address(self, host: str) -> bool:
        """Return whether a host is an address that this server may have; no attacker can make it lead elsewhere."""
        try:
            return ip_address(host).is_loopback or not self._only_loopback
        except ValueError:
            return False

    def _check_origin(self, headers: Mapping[bytes, str]) -> None:
        """Raise RequestError for a request that a web page of another origin has made."""
        origin = headers.get(b"origin")
        if origin is not None:
            same = urlsplit(origin).netloc.lower() == headers.get(b"host", "").lower()
            if not same and origin not in self._origins:
                raise RequestError(403, f"Pages of {shown(origin)} may not use this server: see allowed_origins.")
            return
        fetched = (headers.get(b"sec-fetch-site"), headers.get(b"sec-fetch-mode"))
        if fetched[0] in ("cross-site", "same-site") and fetched[1] != "navigate":
            raise RequestError(403, "Pages of another origin may not use this server.")


def _read_headers(scope: Scope) -> dict[bytes, str]:
    """Return the headers that are read here; raises RequestError for one that two readers could take differently."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in READ:
            if name in found and name not in FORWARDED:
                raise RequestError(400, f"There is more than one {name.decode()} header.")
            found[name] = value.decode("latin-1")
    return found


def _bare(host: str) -> str:
    """Return a host without its port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host
