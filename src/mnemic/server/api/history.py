"""History: earlier versions of items and sessions, and bringing them back."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...features.versions import Version
from ..endpoint import ApiCall, Body, Example, Query, endpoint
from . import examples
from .recall import ItemOut, item_out
from .response_types import Kind, Name
from .sessions import session_of

Limit = Annotated[int, Meta(ge=1, le=10_000, description="How many at most.")]


class HistoryQuery(Query):
    """The id of the item, and its kind, if others have the same id."""

    id: Name
    kind: Kind | None = None


class SessionHistoryQuery(Query):
    """How many are returned."""

    limit: Limit = 100


class RestoreBody(Body):
    """The id of the item, its kind, if others have the same id, and the version, by default the one before the last."""

    id: Name
    kind: Kind | None = None
    version: Annotated[int, Meta(ge=1)] | None = None


class VersionOut(Struct, kw_only=True):
    """A version: when and by whom it was written, and when and by whom it was replaced or deleted, if it was."""

    version: int
    written: datetime
    by: str | None
    ended: datetime | None
    ended_by: str | None
    deleted: bool
    item: ItemOut


class VersionsOut(Struct, kw_only=True):
    """Versions, newest first."""

    versions: list[VersionOut]


class RestoredOut(Struct, kw_only=True):
    """How many messages came back."""

    messages: int


VERSION = {
    "version": 1,
    "written": "2026-01-31T09:30:00Z",
    "by": None,
    "ended": None,
    "ended_by": None,
    "deleted": False,
    "item": examples.ITEM,
}


def _versions_out(versions: list[Version]) -> VersionsOut:
    found = []
    for one in versions:
        named: dict[str, Any] = {"version": one.version, "item": item_out(one.record)}
        rest = {name: getattr(one, name) for name in VersionOut.__struct_fields__ if name not in named}
        found.append(VersionOut(**named, **rest))
    return VersionsOut(versions=found)


@endpoint(
    "GET", "/api/v1/history", right="read", summary="List the versions of an item", tag="history", problems=(404,),
    example=Example(query={"id": "sleep"}, answer={"versions": [VERSION]}),
)  # fmt: skip
async def get_history(call: ApiCall, query: HistoryQuery) -> VersionsOut:
    """The versions of a message, memory, note or fact, in the scope or below, newest first; also of a deleted one."""
    return _versions_out(await call.scope.history(query.id, kind=query.kind))


@endpoint(
    "POST", "/api/v1/restore", right="write", summary="Restore a version of an item", tag="history",
    problems=(404, 409),
    example=Example(body={"id": "old"}, answer={"versions": [VERSION]}),
)  # fmt: skip
async def restore(call: ApiCall, body: RestoreBody) -> VersionsOut:
    """Write an earlier version again, as any other change; also of a deleted item. Returns all its versions."""
    await call.scope.restore(body.id, body.version, kind=body.kind)
    return _versions_out(await call.scope.history(body.id, kind=body.kind))


@endpoint(
    "GET", "/api/v1/sessions/{name}/history", right="read", summary="List replaced and deleted messages", tag="history",
    example=Example(path={"name": "monday"}, answer={"versions": []}),
)  # fmt: skip
async def get_session_history(call: ApiCall, name: str, query: SessionHistoryQuery) -> VersionsOut:
    """The messages of a session that were replaced or deleted, as they were, the last change first."""
    return _versions_out(await session_of(call, name).history(query.limit))


@endpoint(
    "POST", "/api/v1/sessions/{name}/restore", right="write", summary="Restore a session", tag="history",
    problems=(404, 409),
    example=Example(path={"name": "wednesday"}, answer={"messages": 2}),
)  # fmt: skip
async def restore_session(call: ApiCall, name: str) -> RestoredOut:
    """Bring back what the last clearing or deletion removed: messages, archive, summary and settings."""
    return RestoredOut(messages=await session_of(call, name).restore())
