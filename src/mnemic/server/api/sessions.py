"""Sessions: conversations, their settings, and what a prompt needs of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from ...checks import shown
from ...errors import NotFoundError
from ...features.listing import NewestMessages, SessionInfo, session_page
from ...features.session_settings import Retention
from ...features.sessions import AsyncSession
from ...store.protocol import Page
from ..endpoint import Answer, ApiCall, Body, Example, PageQuery, endpoint
from . import examples
from .paging import decode_cursor, decode_place, encode_cursor, encode_place
from .response_types import (
    Limit,
    Name,
    Seconds,
    SessionName,
    SessionOut,
    SettingsOut,
    duration,
    session_out,
    settings_out,
)

HERE = {"name": "monday"}


class SessionsQuery(PageQuery):
    """Parameters of the list of sessions."""

    order: Annotated[
        Literal["name", "recent"], Meta(description="By path, or those that were written to last first.")
    ] = "name"


class SettingsBody(Body):
    """Settings to change; null removes a limit or the time to live."""

    max_messages: Limit | None | UnsetType = UNSET
    max_tokens: Limit | None | UnsetType = UNSET
    overflow: Literal["drop", "archive"] | UnsetType = UNSET
    keep: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    retention: Retention | UnsetType = UNSET
    ttl: Seconds | None | UnsetType = UNSET


class ClearBody(Body):
    """Whether the system messages stay."""

    keep_system: bool = False


class ForkBody(Body):
    """The name of the copy, and the last message that it has; without one, all."""

    name: SessionName
    at: Name | None = None


class SummaryOut(Struct, kw_only=True):
    """The running summary of what a limit removed; null if there is none."""

    summary: str | None


def session_of(call: ApiCall, name: str) -> AsyncSession:
    """Return a session of the scope of a call."""
    return call.scope.session(name)


@endpoint(
    "GET", "/api/v1/sessions", right="read", summary="List sessions", tag="sessions",
    example=Example(answer=examples.page(examples.SESSION)),
)  # fmt: skip
async def list_sessions(call: ApiCall, query: SessionsQuery) -> Page[SessionOut]:
    """The sessions of the scope and below that have messages, with titles, counts, tokens and times.

    With `order=recent`, a session that gets a message while the pages are read comes again at the end, so that none is
    left out.
    """
    if query.order == "name":
        cursor = decode_cursor(call, query.cursor, query.order)
        page = await session_page(call.store, call.path, query.limit, cursor)
        return Page(tuple(map(session_out, page.items)), encode_cursor(call, page.cursor, query.order))
    # Any message changes this order, so that all are read.
    every = await call.scope.sessions.list()
    start = max((one.last_activity for one in every), default=call.store.clock())
    place = decode_place(call, query.cursor, query.order, RecentPlace) or RecentPlace(start)
    items, rest = _recent(every, place, query.limit)
    newest: NewestMessages = call.request.app.state.newest_messages
    found = await newest.read(call.store, items)
    return Page(tuple(session_out(one, time) for one, time in found), encode_place(call, rest, query.order))


class RecentPlace(Struct, frozen=True, array_like=True):
    """A place in the list of recent sessions: the newest time at its start, and the last session.

    Without a time of that, it is among those that got a message since, which come last, by path.
    """

    start: datetime
    path: str | None = None
    time: datetime | None = None


def _recent(every: list[SessionInfo], place: RecentPlace, limit: int) -> tuple[list[SessionInfo], RecentPlace | None]:
    """Return the next sessions of a list of recent ones, and the place after them; None at the end."""
    moved = sorted((one for one in every if one.last_activity > place.start), key=lambda one: one.scope.path)
    if place.path is not None and place.time is None:
        left = [one for one in moved if one.scope.path > (place.path or "")]
        items = left[:limit]
        return items, RecentPlace(place.start, items[-1].scope.path) if len(left) > limit else None
    before = [one for one in every if one.last_activity <= place.start]
    if place.time is not None:
        last = (place.time, place.path)
        before = [one for one in before if (one.last_activity, one.scope.path) < last]
    before.sort(key=lambda one: (one.last_activity, one.scope.path), reverse=True)
    items = before[:limit]
    if len(before) > limit:
        return items, RecentPlace(place.start, items[-1].scope.path, items[-1].last_activity)
    return items, RecentPlace(place.start, "") if moved else None


@endpoint(
    "GET", "/api/v1/sessions/{name}", right="read", summary="Get a session", tag="sessions", problems=(404,),
    example=Example(path=HERE, answer=examples.SESSION),
)  # fmt: skip
async def get_session(call: ApiCall, name: str) -> SessionOut:
    """Title, counts, tokens and last activity of a session that has messages."""
    return session_out(await call.scope.sessions.get(name))


@endpoint(
    "PATCH", "/api/v1/sessions/{name}", right="write", summary="Change the settings of a session", tag="sessions",
    problems=(409,), example=Example(path=HERE, body={"max_tokens": 4000}, answer=examples.SETTINGS),
)  # fmt: skip
async def configure_session(call: ApiCall, name: str, body: SettingsBody) -> SettingsOut:
    """Change the given settings for every writer; others stay. A lower limit takes effect with the next message.

    When `max_messages` or `max_tokens` is exceeded, the oldest messages overflow: to the session's archive, which
    recall searches, or they are dropped. With `ttl` the session expires that long after its last message.
    """
    given: dict[str, Any] = {field: value for field, value in asdict(body).items() if value is not UNSET}
    if "ttl" in given:
        given["ttl"] = duration(given["ttl"])
    return settings_out(await session_of(call, name).configure(**given))


@endpoint(
    "DELETE", "/api/v1/sessions/{name}", right="erase", summary="Delete a session", tag="sessions", status=204,
    problems=(404,), example=Example(path=HERE),
)  # fmt: skip
async def delete_session(call: ApiCall, name: str) -> None:
    """Delete a session with its messages, archive, summary and settings."""
    if not await call.scope.sessions.delete(name):
        raise NotFoundError(f"{call.path.path!r} has no session {shown(name)}")


@endpoint(
    "GET", "/api/v1/sessions/{name}/settings", right="read", summary="Get the settings of a session", tag="sessions",
    example=Example(path=HERE, answer={**examples.SETTINGS, "max_tokens": None}),
)  # fmt: skip
async def get_settings(call: ApiCall, name: str) -> SettingsOut:
    """The limits, the overflow policy and the retention of a session, also of one that has no messages yet."""
    return settings_out(await session_of(call, name).settings())


@endpoint(
    "GET", "/api/v1/sessions/{name}/summary", right="read", summary="Get the summary of a session", tag="sessions",
    example=Example(path=HERE, answer={"summary": None}),
)  # fmt: skip
async def get_summary(call: ApiCall, name: str) -> SummaryOut:
    """The running summary of the messages that a limit removed."""
    return SummaryOut(summary=await session_of(call, name).summary())


@endpoint(
    "POST", "/api/v1/sessions/{name}/clear", right="erase", summary="Clear a session", tag="sessions", status=204,
    example=Example(path=HERE, body={"keep_system": True}),
)  # fmt: skip
async def clear_session(call: ApiCall, name: str, body: ClearBody) -> None:
    """Delete all messages, the archive and the summary; the settings stay."""
    await session_of(call, name).clear(keep_system=body.keep_system)


@endpoint(
    "POST", "/api/v1/sessions/{name}/fork", right="write", summary="Copy a session", tag="sessions", status=201,
    problems=(404, 409),
    example=Example(
        path=HERE,
        body={"name": "friday", "at": "m1"},
        answer=examples.SESSION | {"name": "friday", "scope": "acme/alice/friday", "messages": 1, "tokens": 12},
    ),
)  # fmt: skip
async def fork_session(call: ApiCall, name: str, body: ForkBody) -> Answer[SessionOut]:
    """Copy a session with its archive, summary and settings, up to the message `at` or all of it, beside itself."""
    await call.scope.sessions.get(name)
    copy = await session_of(call, name).fork(body.name, body.at)
    info = await copy.info()
    if info is None:
        raise NotFoundError(f"{call.path.path!r} has no session {shown(body.name)}")
    return Answer(session_out(info))
