"""Logins of the dashboard: a key is exchanged for a cookie, whose session is kept on the server alone.

The cookie is opaque, HttpOnly and SameSite=Strict, and Secure on HTTPS. Whatever changes something needs the session's
CSRF token as well. Sessions end when the server stops.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, ValidationError, json
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .problems import RequestError, problem_of

if TYPE_CHECKING:
    from .access import Access, Authenticator

HOURS = 12
"""How long a session lasts."""
MAX_SESSIONS = 10_000
MAX_SESSIONS_PER_KEY = 20
"""How many sessions a key can have; the oldest ends if there is one more."""
CSRF_HEADER = "x-csrf-token"
SAFE = ("GET", "HEAD", "OPTIONS")


class Login(Struct, frozen=True):
    """A session: the key that it was begun with, its CSRF token, and when it ends."""

    key: str
    csrf: str
    ends: float

    def allows(self, request: Request) -> bool:
        """Return whether a request may use the cookie: one that changes something needs the CSRF token."""
        given = request.headers.get(CSRF_HEADER, "")
        return request.method in SAFE or compare_digest(given.encode(), self.csrf.encode())


class Logins:
    """All sessions of a server, by the hashes of their cookies."""

    def __init__(self) -> None:
        self._logins: OrderedDict[bytes, Login] = OrderedDict()

    def begin(self, key: str) -> str:
        """Begin a session with the id of a key that was verified; return the cookie's value."""
        mine = [name for name, login in self._logins.items() if login.key == key]
        for name in mine[: max(0, len(mine) + 1 - MAX_SESSIONS_PER_KEY)]:
            del self._logins[name]
        if len(self._logins) >= MAX_SESSIONS:
            self._logins.popitem(last=False)
        value = token_urlsafe(32)
        self._logins[_digest(value)] = Login(key, token_urlsafe(32), monotonic() + HOURS * 3600)
        return value

    def find(self, value: str) -> Login | None:
        """Return the session of a cookie, unless it has ended."""
        name = _digest(value)
        found = self._logins.get(name)
        if found is not None and found.ends <= monotonic():
            del self._logins[name]
            return None
        return found

    def end(self, value: str) -> None:
        """End a session."""
        self._logins.pop(_digest(value), None)


def cookie_name(request: Request) -> str:
    """Return the name of the cookie; cookies are shared between ports, so that it has the port."""
    secure = request.url.scheme == "https"
    return f"{'__Host-' if secure else ''}mnemic-{request.url.port or (443 if secure else 80)}"


def begin_login(request: Request, logins: Logins, key: str) -> MutableHeaders:
    """Begin a session with a key that was verified; return the headers that set its cookie and tell its CSRF token."""
    name = cookie_name(request)
    if name in request.cookies:
        logins.end(request.cookies[name])
    value = logins.begin(key)
    login = logins.find(value)
    assert login is not None
    answer = Response(headers={CSRF_HEADER: login.csrf})
    secure = request.url.scheme == "https"
    answer.set_cookie(name, value, HOURS * 3600, httponly=True, samesite="strict", secure=secure)
    del answer.headers["content-length"]
    return answer.headers


class Credentials(Struct, forbid_unknown_fields=True):
    """The body of a login."""

    key: str


_decode = json.Decoder(Credentials).decode


async def log_in(request: Request) -> Response:
    """Exchange a key for a cookie; 401 if it is not valid."""
    authenticator: Authenticator = request.app.state.authenticator
    try:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestError(415, "the body must have the type application/json")
        try:
            given = _decode(await request.body())
        except (DecodeError, ValidationError) as error:
            raise RequestError(400, f"the body: {error}") from None
        access = await authenticator.access_of(given.key.strip())
        if access is None or access.key is None:
            raise RequestError(401, "The key is not valid.")
    except Exception as error:
        return problem_of(error)
    return Response(status_code=204, headers=begin_login(request, authenticator.logins, access.key))


async def log_out(request: Request) -> Response:
    """End the session of a cookie."""
    authenticator: Authenticator = request.app.state.authenticator
    name = cookie_name(request)
    authenticator.logins.end(request.cookies.get(name, ""))
    answer = Response(status_code=204)
    answer.delete_cookie(name, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


async def tell_session(request: Request) -> Response:
    """Tell the dashboard who uses it, and what they may do; or that nobody is signed in."""
    access: Access = request.scope["mnemic.access"]
    told: dict[str, object] = {"signed_in": False}
    if access.rights:
        told = {
            "signed_in": True,
            "id": access.key,
            "name": access.name,
            "scope": access.scope.path,
            "rights": sorted(access.rights),
            "csrf": access.csrf,
        }
    return JSONResponse(told, headers={"Cache-Control": "no-store"})


ROUTES = [
    Route("/dashboard/login", log_in, methods=["POST"]),
    Route("/dashboard/logout", log_out, methods=["POST"]),
    Route("/dashboard/session", tell_session, methods=["GET"]),
]


def _digest(value: str) -> bytes:
    return sha256(value.encode()).digest()
