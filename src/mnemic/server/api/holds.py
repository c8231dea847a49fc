"""Legal holds: setting, listing and releasing them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...layers.hold import Hold
from ...store.protocol import Page
from ..endpoint import Answer, ApiCall, Body, Example, endpoint
from ..idempotency import done_once
from .response_types import Moment

HOLD: dict[str, Any] = {
    "id": "01a1e418da2f76742ca43695c425dfba",
    "scope": "acme/held",
    "reason": "case 4711",
    "created": "2026-01-31T09:30:00Z",
    "until": None,
    "actor": "support-bot",
}


class HoldBody(Body):
    """Why, and when the hold ends by itself."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]
    until: Moment | None = None


class HoldOut(Struct, kw_only=True, frozen=True):
    """A hold on a scope and everything below it."""

    id: str
    scope: str
    reason: str
    created: datetime
    until: datetime | None
    actor: str | None


def _out(hold: Hold) -> HoldOut:
    return HoldOut(
        id=hold.id, scope=hold.scope.path, reason=hold.reason, created=hold.created, until=hold.until, actor=hold.actor
    )


@endpoint(
    "GET", "/api/v1/holds", right="admin", summary="List legal holds", tag="holds",
    example=Example(answer={"items": [HOLD], "cursor": None}),
)  # fmt: skip
async def list_holds(call: ApiCall) -> Page[HoldOut]:
    """The holds that are in force on the scope, above or below it, oldest first."""
    return Page(tuple(map(_out, await call.scope.holds())))


@endpoint(
    "POST", "/api/v1/holds", right="admin", summary="Set a legal hold", tag="holds", scoped="named", status=201,
    example=Example(query={"scope": "acme/held"}, body={"reason": "case 4711"}, answer=HOLD),
)  # fmt: skip
async def set_hold(call: ApiCall, body: HoldBody) -> Answer[HoldOut]:
    """Nothing in the scope and below is deleted, evicted or expires until `until`, or until the hold is released.

    The answer comes when every process that uses the store knows of it.
    """
    return Answer(_out(await done_once(call, lambda: call.scope.hold(body.reason, until=body.until))))


@endpoint(
    "DELETE", "/api/v1/holds/{id}", right="admin", summary="Release a legal hold", tag="holds", problems=(404,),
    example=Example(path={"id": HOLD["id"]}, answer=HOLD),
)  # fmt: skip
async def release_hold(call: ApiCall, id: str) -> HoldOut:
    """Restore the expiry of what would have expired meanwhile."""
    return _out(await done_once(call, lambda: call.scope.release(id)))
