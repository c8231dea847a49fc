"""API keys: create, list, expire and revoke those within the caller's own scope and rights."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from ...checks import shown
from ...errors import AccessDeniedError, InvalidValueError
from ...layers.restricted import RIGHTS, Right
from ...records import ScopePath
from ...store.protocol import Page
from ..access import Authenticator
from ..api_keys import ApiKey, outlives
from ..endpoint import Answer, ApiCall, Body, Example, Query, endpoint
from ..logins import begin_login
from .response_types import Moment, Name

ID = "8f14e45fceea167a"
KEY = {
    "id": ID,
    "name": "support-bot",
    "scope": "acme",
    "rights": ["read", "write"],
    "created": "2026-01-31T09:30:00Z",
    "expires": None,
    "last_used": None,
    "revoked": None,
}
SECRET = f"mnk_{ID}_{'0' * 64}"


class KeysQuery(Query):
    """Which keys to list."""

    revoked: Annotated[bool, Meta(description="Also list revoked keys.")] = False


class KeyBody(Body):
    """A key to create; without a scope, it has that of the caller's key."""

    name: Name
    rights: Annotated[list[Right], Meta(min_length=1, max_length=len(RIGHTS))]
    scope: Annotated[str, Meta(description="A path such as `acme/alice`; empty is everything.")] | UnsetType = UNSET
    expires: Moment | None = None


class KeyChange(Body):
    """When a key expires; null is never."""

    expires: Moment | None


class CreatedKey(ApiKey, frozen=True, kw_only=True):
    """A key that was created, and its text, which is shown this once."""

    secret: str


def authenticator(call: ApiCall) -> Authenticator:
    """Return the authenticator of the server, which caches its keys."""
    found: Authenticator = call.request.app.state.authenticator
    return found


@endpoint(
    "GET", "/api/v1/keys", right="admin", summary="List API keys", tag="keys", scoped=False,
    example=Example(answer={"items": [KEY], "cursor": None}),
)  # fmt: skip
async def list_keys(call: ApiCall, query: KeysQuery) -> Page[ApiKey]:
    """The keys whose scope is within that of the caller's key, oldest first; never the keys themselves."""
    keys = await authenticator(call).keys.list(call.access.scope, revoked=query.revoked)
    return Page(tuple(keys))


@endpoint(
    "POST", "/api/v1/keys", right="admin", summary="Create an API key", tag="keys", scoped=False, status=201,
    problems=(403,),
    example=Example(
        body={"name": "support-bot", "scope": "acme", "rights": ["read", "write"]}, answer={**KEY, "secret": SECRET}
    ),
)  # fmt: skip
async def create_key(call: ApiCall, body: KeyBody) -> Answer[CreatedKey]:
    """Its scope, rights and time must be within those of the caller's key. `secret` is shown this once, and not stored.

    A server on loopback that has no keys yet asks for one from then on, so the first must be able to do everything.
    """
    access = call.access
    scope = access.scope if body.scope is UNSET else ScopePath(body.scope)
    if not access.scope.contains(scope):
        raise AccessDeniedError(f"scope {shown(scope.path)} is not within {shown(access.scope.path)}")
    if more := set(body.rights) - access.rights:
        raise AccessDeniedError(f"a key cannot give a right that it lacks: {', '.join(sorted(more))}")
    if outlives(body.expires, access.expires):
        raise AccessDeniedError(f"a key that expires at {access.expires} cannot create one that outlives it")
    first = access.key is None
    if first and (scope.path or set(body.rights) != set(RIGHTS) or body.expires is not None):
        raise InvalidValueError(
            "the first key must have all rights, everything as scope, and no expiry, since the server asks for a key "
            "from then on; `mnemic keys create` makes any"
        )
    known = authenticator(call)
    made = await known.keys.create(body.name, scope, body.rights, body.expires)
    known.forget(made.key.id)
    # The dashboard, which was open until now, goes on with the new key.
    browser = first and call.request.headers.get("sec-fetch-site") == "same-origin"
    headers = dict(begin_login(call.request, known.logins, made.key.id)) if browser else {}
    return Answer(CreatedKey(**asdict(made.key), secret=made.secret), headers=headers)


@endpoint(
    "PATCH", "/api/v1/keys/{id}", right="admin", summary="Change when an API key expires", tag="keys", scoped=False,
    problems=(403, 404),
    example=Example(path={"id": ID}, body={"expires": "2126-01-31T09:30:00Z"},
                    answer={**KEY, "expires": "2126-01-31T09:30:00Z"}),
)  # fmt: skip
async def expire_key(call: ApiCall, id: str, body: KeyChange) -> ApiKey:
    """The caller's key must have all rights of that key, and prolongs none beyond its own expiry.

    A key of another scope looks as if it did not exist. A revoked key stays revoked.
    """
    known = authenticator(call)
    access = call.access
    changed = await known.keys.expire(id, body.expires, access.scope, access.rights, access.expires)
    known.forget(id)
    return changed


@endpoint(
    "DELETE", "/api/v1/keys/{id}", right="admin", summary="Revoke an API key", tag="keys", scoped=False, status=204,
    problems=(403, 404), example=Example(path={"id": ID}),
)  # fmt: skip
async def revoke_key(call: ApiCall, id: str) -> None:
    """It cannot be used any more, at once on this server and within seconds on others; it stays in the list.

    The caller's key must have all rights of that key; it can be that key itself.
    """
    known = authenticator(call)
    await known.keys.revoke(id, call.access.scope, call.access.rights)
    known.forget(id)
