"""JWTs: checked against the public keys of an issuer, with claims that become a scope and rights.

Only algorithms with a public key are accepted. A token needs an expiry, the issuer and the audience; one without the
claims that name its scope and rights is refused. Public keys are read again when a token names an unknown one, but not
more often than every `REFETCH_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
from msgspec import DecodeError, json

from ..checks import check_name
from ..errors import InvalidValueError, StoreUnavailableError
from ..layers.restricted import RIGHTS
from ..records import ScopePath
from ..store.registry import masked
from .api_keys import scope_named
from .settings import Settings, is_loopback

LOG = logging.getLogger("mnemic.server")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEY_TYPES = ("RSA", "EC", "OKP")
MAX_TOKEN = 16_384
MAX_JWKS_BYTES = 1_000_000
MAX_VERIFIED = 10_000
"""How many verified tokens are remembered."""
VERIFIED_SECONDS = 60.0
"""How long a verified token is remembered; never beyond its expiry."""
REFETCH_SECONDS = 30.0
"""The shortest time between two reads of the public keys."""
FRESH_SECONDS = 600.0
"""How long public keys are used before they are read again."""
STALE_SECONDS = 3600.0
"""How long public keys are used if they cannot be read again."""
FETCH_SECONDS = 5.0
LEEWAY = 10
"""How many seconds the clocks of issuer and server may differ."""
PREFIX = "mnemic:"
"""Stands before a right in a claim that is shared with other services, such as `scope`."""
SHARED_CLAIMS = ("scope", "scp")
_PLACE = re.compile(r"\{([^{}:]+)(:path)?\}")


class TokenError(Exception):
    """A token that is not valid, or does not say what it is for."""


class Claims(NamedTuple):
    """The subject of a token, its scope and rights, and when it expires."""

    subject: str
    scope: ScopePath
    rights: frozenset[str]
    expires: float


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


class PublicKeys:
    """The public keys of an issuer, by their ids."""

    def __init__(self, location: str) -> None:
        """Take a URL or a file; raises InvalidValueError for a URL that is not HTTPS, except to this machine."""
        self._location = location
        parts = urlsplit(location)
        self._is_url = parts.scheme in ("http", "https")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise InvalidValueError(f"jwt_jwks must be an https:// URL, or a file: {masked(location)}")
        self._keys: dict[str | None, Mapping[str, Any]] = {}
        self._read_at = self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, id: str | None) -> Mapping[str, Any]:
        """Return a key; raises TokenError if there is none, StoreUnavailableError if the keys cannot be read."""
        now = monotonic()
        if (id not in self._keys or now - self._read_at > FRESH_SECONDS) and now - self._tried_at > REFETCH_SECONDS:
            async with self._reading:
                if self._tried_at < now:
                    await self.read()
        if monotonic() - self._read_at > STALE_SECONDS:
            raise StoreUnavailableError("the public keys of the JWT issuer cannot be read")
        if id not in self._keys:
            raise TokenError("unknown key")
        return self._keys[id]

    async def read(self) -> bool:
        """Read the keys again; return whether that was possible, and log why not."""
        self._tried_at = monotonic()
        try:
            self._keys = parse_jwks(await asyncio.to_thread(self._fetch if self._is_url else self._read_file))
        except (OSError, URLError, ValueError) as error:
            LOG.warning("the public keys at %s cannot be read: %s", masked(self._location), type(error).__name__)
            return False
        self._read_at = self._tried_at
        return True

    def _read_file(self) -> bytes:
        with Path(self._location).expanduser().open("rb") as file:
            return file.read(MAX_JWKS_BYTES + 1)

    def _fetch(self) -> bytes:
        request = Request(self._location, headers={"Accept": "application/json", "User-Agent": "mnemic"})  # noqa: S310
        with build_opener(_NoRedirects).open(request, timeout=FETCH_SECONDS) as response:
            content: bytes = response.read(MAX_JWKS_BYTES + 1)
            return content


def parse_jwks(content: bytes) -> dict[str | None, Mapping[str, Any]]:
    """Return the usable public keys of a JWKS by their ids, a lone one also as None; raises ValueError."""
    if len(content) > MAX_JWKS_BYTES:
        raise ValueError(f"a JWKS of more than {MAX_JWKS_BYTES:,} bytes")
    try:
        found: Any = json.decode(content)
    except (DecodeError, RecursionError) as error:
        raise ValueError("not JSON") from error
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JWKS")
    usable = [one for one in listed if isinstance(one, dict) and _can_verify(one)]
    if not usable:
        raise ValueError("a JWKS without public keys for signatures")
    keys: dict[str | None, Mapping[str, Any]] = {one["kid"]: one for one in usable if isinstance(one.get("kid"), str)}
    if len(usable) == 1:
        keys[None] = usable[0]
    return keys


def _can_verify(key: Mapping[str, Any]) -> bool:
    return (
        key.get("kty") in KEY_TYPES and key.get("use", "sig") == "sig" and key.get("alg", ALGORITHMS[0]) in ALGORITHMS
    )


class TokenVerifier:
    """Verifies the JWTs of one issuer."""

    def __init__(self, settings: Settings) -> None:
        """Raise InvalidValueError for settings that cannot be used."""
        assert settings.jwt_jwks is not None, "the settings have all three, or none"
        self._settings = settings
        self.keys: PublicKeys = PublicKeys(settings.jwt_jwks)
        self._verified: OrderedDict[bytes, tuple[float, Claims]] = OrderedDict()
        check_template(settings.jwt_scope)

    async def verify(self, token: str) -> Claims:
        """Return the claims of a token; raises TokenError, StoreUnavailableError if the public keys cannot be read."""
        if len(token) > MAX_TOKEN:
            raise TokenError("too long")
        digest = sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is not None and monotonic() < known[0]:
            return known[1]
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise TokenError("not a JWT") from None
        if header.get("alg") not in ALGORITHMS or "crit" in header:
            raise TokenError("another algorithm")
        id = header.get("kid")
        public = await self.keys.find(id if isinstance(id, str) else None)
        try:
            key = jwt.PyJWK(dict(public), None if "alg" in public else header["alg"])
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                issuer=self._settings.jwt_issuer,
                audience=self._settings.jwt_audience,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except jwt.PyJWTError as error:
            raise TokenError(type(error).__name__) from None
        found = self._read(claims)
        self._verified[digest] = monotonic() + min(VERIFIED_SECONDS, found.expires - time()), found
        if len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return found

    def _read(self, claims: Mapping[str, Any]) -> Claims:
        try:
            scope = fill_template(self._settings.jwt_scope, claims)
            subject = check_name(claims.get("sub") or claims.get("client_id") or "jwt", "sub")
        except InvalidValueError as error:
            raise TokenError(str(error)) from None
        return Claims(subject, scope, rights_of(claims, self._settings.jwt_rights_claim), float(claims["exp"]))


def rights_of(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the rights in a claim, a list or a text with spaces; raises TokenError if there are none, or odd ones."""
    given = claims.get(name)
    listed = given.split() if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise TokenError(f"the claim {name} has no rights")
    rights = {one.removeprefix(PREFIX) for one in listed if one.startswith(PREFIX) or name not in SHARED_CLAIMS}
    if not rights or not rights <= set(RIGHTS):
        raise TokenError(f"the claim {name} has no rights, or unknown ones")
    return frozenset(rights)


def check_template(template: str) -> None:
    """Raise InvalidValueError for a template of a scope that cannot be filled."""
    if not _PLACE.search(template):
        raise InvalidValueError(
            f"jwt_scope must name a claim, such as 'acme/{{sub}}', or all tokens have one scope: {template!r}"
        )
    ScopePath(_PLACE.sub("x", template))
    if set("{}") & set(_PLACE.sub("x", template)):
        raise InvalidValueError(f"jwt_scope has braces that are not around a claim: {template!r}")


def fill_template(template: str, claims: Mapping[str, Any]) -> ScopePath:
    """Return the scope of a token; raises InvalidValueError for a claim that is missing, or is not a scope's name.

    A claim is one segment, so that its value cannot lead elsewhere; `{claim:path}` is a whole path.
    """
    scope = ScopePath()
    for part in template.split("/"):
        whole = _PLACE.fullmatch(part)
        if whole is not None and whole[2]:
            scope = scope / ScopePath(_claim(claims, whole[1], path=True))
        else:
            scope = scope / _PLACE.sub(lambda place: _claim(claims, place[1]), part)
    return scope_named(scope.path)


def _claim(claims: Mapping[str, Any], name: str, *, path: bool = False) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value or ("/" in value and not path):
        raise InvalidValueError(f"the claim {name} is missing, or is not a name")
    return value
