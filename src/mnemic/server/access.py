"""Who makes a request, and what they may do: API keys, JWTs, logins of the dashboard, and the open loopback.

Everything is refused unless a credential allows it, with one exception: a server that only this machine can reach is
open while its store has no keys and no JWT issuer is set. What a caller may see and change is not checked here: each
request gets a memory that is restricted to its scope and rights.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from hmac import compare_digest
from time import monotonic, time
from typing import NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from ..checks import shown
from ..errors import InvalidValueError, MnemicError
from ..layers.restricted import RIGHTS
from ..memory import AsyncMemory
from ..records import ScopePath
from .api_keys import ApiKey, ApiKeys, parse_key
from .jwt_tokens import TokenError, TokenVerifier
from .logins import Login, Logins, cookie_name
from .problems import RequestError
from .settings import Settings, is_loopback

__all__ = ["ACCESS", "RIGHTS", "Access", "Authenticator", "restricted"]

LOG = logging.getLogger("mnemic.server")
ACCESS = "mnemic.access"
"""Key of the `Access` in the ASGI scope of a request."""
CACHED_SECONDS = 2.0
"""How long a key is used before it is read again; one that is revoked elsewhere works for as long."""
MAX_CACHED = 10_000
"""How many keys are cached, unknown ones included."""
MAX_READS = 16
"""How many keys are read from the store at the same time."""
FORWARDED = (
    b"cf-connecting-ip", b"forwarded", b"true-client-ip", b"via", b"x-client-ip", b"x-forwarded-for",
    b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-real-ip",
)  # fmt: skip
"""Headers that a proxy adds: who asks is then not on this machine."""
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="mnemic"'}


class Access(Struct, frozen=True, kw_only=True):
    """Who makes a request, the scope that they see, and their rights.

    `key` identifies them for limits: the id of a key, the subject of a JWT, an address; None in the open mode.
    """

    name: str
    scope: ScopePath = ScopePath()
    rights: frozenset[str] = frozenset(RIGHTS)
    key: str | None = None
    csrf: str | None = None
    """The token of the login, if there is one."""
    ends: float | None = None
    """When a JWT expires, in seconds since 1970."""
    expires: datetime | None = None
    """When a key expires."""


OPEN = Access(name="loopback")


_restricted: WeakKeyDictionary[AsyncMemory, dict[tuple[str, frozenset[str]], AsyncMemory]] = WeakKeyDictionary()
"""Restricted memories, which are the same for all requests of a scope with the same rights."""


def restricted(memory: AsyncMemory, access: Access) -> AsyncMemory:
    """Return the memory as this access may use it."""
    known = _restricted.setdefault(memory, {})
    name = (access.scope.path, access.rights)
    if (found := known.get(name)) is None:
        if len(known) >= MAX_CACHED:
            known.clear()
        found = known[name] = memory.restricted(access.scope, tuple(access.rights))  # type: ignore[arg-type]
    return found


class _CachedKey(NamedTuple):
    """A key, the hash of its secret, and what it allows."""

    key: ApiKey
    hash: bytes
    access: Access


class Authenticator:
    """Finds out who makes a request."""

    def __init__(self, memory: AsyncMemory, settings: Settings) -> None:
        """Raise InvalidValueError for settings that cannot be used."""
        for origin in settings.allowed_origins:
            parts = urlsplit(origin)
            if f"{parts.scheme}://{parts.netloc}" != origin or parts.scheme not in ("http", "https"):
                raise InvalidValueError(
                    f"allowed_origins takes origins such as https://app.example.com, not {shown(origin)}"
                )
        self.keys: ApiKeys = ApiKeys(memory)
        self.logins: Logins = Logins()
        self.tokens: TokenVerifier | None = None if settings.jwt_issuer is None else TokenVerifier(settings)
        self._settings = settings
        self._needs_key = settings.require_key or settings.exposed or self.tokens is not None
        self._asked_at = float("-inf")
        self._cached: OrderedDict[str, tuple[float, _CachedKey | None]] = OrderedDict()
        self._reads = asyncio.Semaphore(MAX_READS)
        self._used: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Raise InvalidValueError if others can reach the server, and nobody could use it or anyone could."""
        if self.tokens is not None and not await self.tokens.keys.read():
            raise InvalidValueError("the public keys of the JWT issuer, jwt_jwks, cannot be read: see the log")
        if self._settings.exposed and self.tokens is None:
            now = self.keys.now()
            if not any(key.is_valid(now) for key in await self.keys.list()):
                raise no_keys(self._settings)

    async def needs_key(self) -> bool:
        """Return whether requests need a key; once they do, they do so until the server stops."""
        now = monotonic()
        if not self._needs_key and now - self._asked_at > CACHED_SECONDS:
            self._needs_key = await self.keys.count() > 0
            self._asked_at = now
        return self._needs_key

    async def authenticate(self, request: Request, headers: Mapping[bytes, str]) -> Access:
        """Return who makes a request with these headers; raises RequestError with status 401 or 403."""
        if not (self._needs_key or await self.needs_key()):
            _check_local(request, headers)
            return OPEN
        header = headers.get(b"authorization")
        if header is not None:
            scheme, _, credential = header.strip().partition(" ")
            if scheme.lower() not in ("bearer", "token"):
                raise _refused()
            return await self._of(credential.strip())
        if (sent := headers.get(b"x-api-key")) is not None:
            return await self._of(sent.strip())
        login = self.login_of(request)
        if login is None:
            raise RequestError(401, "A key is needed: send it as Authorization: Bearer …", CHALLENGE)
        found = await self._find(login.key)
        if found is None or not self._is_valid(found.key):
            raise _refused()
        if not login.allows(request):
            raise RequestError(403, "A change with a cookie needs the header X-CSRF-Token.")
        return replace(found.access, csrf=login.csrf)

    async def still_allows(self, access: Access) -> bool:
        """Return whether an access that was granted some time ago would still be."""
        if access.ends is not None:
            return time() < access.ends
        if access.key is None:
            return not await self.needs_key()
        found = await self._find(access.key) if access.rights else None
        return not access.rights or (found is not None and self._is_valid(found.key))

    def login_of(self, request: Request) -> Login | None:
        """Return the login of a request's cookie, if it has one."""
        cookie = request.cookies.get(cookie_name(request))
        return None if cookie is None else self.logins.find(cookie)

    async def access_of(self, credential: str) -> Access | None:
        """Return the access of the key that a text is, if it is valid."""
        parsed = parse_key(credential)
        if parsed is None:
            return None
        id, hash = parsed
        found = await self._find(id)
        if found is None or not compare_digest(hash, found.hash) or not self._is_valid(found.key):
            return None
        if self._used.get(id, 0.0) < monotonic():
            self._note_use(id)
        return found.access

    def forget(self, id: str) -> None:
        """Read a key that was changed again at its next use."""
        self._cached.pop(id, None)
        self._asked_at = float("-inf")

    async def _of(self, credential: str) -> Access:
        if self.tokens is not None and credential.count(".") == 2:
            try:
                claims = await self.tokens.verify(credential)
            except TokenError as error:
                LOG.info("a JWT was refused: %s", error)
                raise _refused() from None
            return Access(
                name=claims.subject,
                scope=claims.scope,
                rights=claims.rights,
                key=f"jwt {claims.subject}",
                ends=claims.expires,
            )
        access = await self.access_of(credential)
        if access is None:
            raise _refused()
        return access

    def _is_valid(self, key: ApiKey) -> bool:
        return key.revoked is None and (key.expires is None or key.is_valid(self.keys.now()))

    async def _find(self, id: str) -> _CachedKey | None:
        """Return a key, cached for a short time; raises a StoreError if the store cannot be read."""
        cached = self._cached.get(id)
        if cached is not None and monotonic() < cached[0]:
            return cached[1]
        async with self._reads:
            cached = self._cached.get(id)  # which another request may have read meanwhile
            if cached is not None and monotonic() < cached[0]:
                return cached[1]
            # The time before the read counts: a key that is revoked meanwhile is used no longer than promised.
            until = monotonic() + CACHED_SECONDS
            read = await self.keys.find(id)
        found = None if read is None else _CachedKey(*read, _access_of(read[0]))
        self._cached[id] = until, found
        self._cached.move_to_end(id)
        if len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return found

    def _note_use(self, id: str) -> None:
        """Store, in the background and for an hour once, that a key was used."""
        now = self.keys.now()
        hour = now.replace(minute=0, second=0, microsecond=0)
        self._used[id] = monotonic() + 3600 - (now - hour).total_seconds()
        task = asyncio.create_task(self._store_use(id, hour))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _store_use(self, id: str, hour: datetime) -> None:
        try:
            await self.keys.used(id, hour)
        except MnemicError as error:
            LOG.warning("the last use of a key could not be stored: %s", type(error).__name__)


def _access_of(key: ApiKey) -> Access:
    return Access(name=key.name, scope=key.path, rights=frozenset(key.rights), key=key.id, expires=key.expires)


def no_keys(settings: Settings) -> InvalidValueError:
    """Return the error of a server that others can reach, and whose store has no valid key."""
    return InvalidValueError(
        f"the server would be reachable from other machines at {settings.host}, and its store has no valid keys: make "
        "one with `mnemic keys create`, or set jwt_issuer"
    )


def _check_local(request: Request, headers: Mapping[bytes, str]) -> None:
    """Raise RequestError for a request from another machine, which a proxy, or another way to listen, lets in."""
    if request.client is not None and not is_loopback(request.client.host):
        raise RequestError(401, "Other machines need a key: make one with `mnemic keys create`.", CHALLENGE)
    if any(name in headers for name in FORWARDED):
        raise RequestError(401, "Behind a proxy, a key is needed: make one with `mnemic keys create`.", CHALLENGE)


def _refused() -> RequestError:
    """Return the same answer to every credential that is not valid, for whatever reason."""
    headers = {"WWW-Authenticate": f'{CHALLENGE["WWW-Authenticate"]}, error="invalid_token"'}
    return RequestError(401, "The key or token is not valid.", headers)
