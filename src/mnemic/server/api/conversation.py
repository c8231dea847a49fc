"""A session as a chat: its messages with their tokens, what was archived and summarized, and what fits a budget."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, json

from ...errors import BudgetError, NotFoundError
from ...features.summary import SUMMARY_ID, SUMMARY_KEY
from ...features.turns import answers_of, fill_window
from ...images import image_in, image_info, split_data_url
from ...messages import Message, decode
from ...records import ARCHIVED, MESSAGE, SUMMARY, TITLE, Record, Ref
from ...store.protocol import Page
from ...store.query import Scan, StreamScan
from ..endpoint import ApiCall, Example, PageQuery, Query, endpoint
from . import examples
from .paging import read_page
from .response_types import Metadata

VIEW: dict[str, Any] = {
    "id": "m1",
    "role": "user",
    "name": None,
    "time": "2026-01-31T09:30:00Z",
    "text": "I sleep badly.",
    "length": 14,
    "tokens": 8,
    "calls": [],
    "answers": [],
    "images": [],
    "archived": False,
    "pinned": False,
    "importance": None,
    "metadata": {},
}


MOST_TEXT = 20_000
"""How many characters of a text are sent."""
MOST_NAME = 120
"""How many characters of an image's address are shown."""


class CallView(Struct, kw_only=True, frozen=True):
    """A call of a tool, or of another agent; `arguments` as JSON text."""

    id: str | None
    name: str
    arguments: str


class MessageView(Struct, kw_only=True, frozen=True):
    """A message, with its text of `length` characters as far as it is sent, and the ids of the `calls` it `answers`."""

    id: str
    role: str
    name: str | None
    time: datetime
    text: str
    length: int
    tokens: int
    calls: list[CallView]
    answers: list[str]
    images: list[str]
    archived: bool
    pinned: bool
    importance: float | None
    metadata: Metadata


def message_view(record: Record) -> MessageView:
    """Return a stored message as a chat shows it."""
    message = decode(record)
    blocks: list[Any] = message.content if isinstance(message.content, list) else []
    calls = [CallView(id=call.id, name=call.name, arguments=call.arguments[:MOST_TEXT]) for call in message.tool_calls]
    calls += [
        CallView(id=str(block.get("id")), name=str(block.get("name")), arguments=_json(block.get("input")))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "tool_use"
    ]
    calls += [CallView(id=None, name=call.agent_name, arguments=_json(call.request)) for call in message.agent_calls]
    images = [*message.images, *filter(None, map(image_in, blocks))]
    text = _text(message)
    return MessageView(
        id=message.id,
        role=message.role,
        name=message.name,
        time=message.timestamp,
        text=text[:MOST_TEXT],
        length=len(text),
        tokens=record.weight,
        calls=calls,
        answers=answers_of(message),
        images=[image_name(image) for image in images],
        archived=record.kind == ARCHIVED,
        pinned=record.pinned,
        importance=record.importance,
        metadata=message.metadata,
    )


def _text(message: Message) -> str:
    """Return the readable text of a message, without its calls, which are shown apart."""
    if message.content is None and message.structured_data is None:
        return ""
    return message.text or ""


def _json(value: Any) -> str:
    return json.encode(value).decode()[:MOST_TEXT]


def image_name(image: str) -> str:
    """Return a name for an image: its type and size, or the end of its address."""
    parts = split_data_url(image) if image[:5].lower() == "data:" else None
    if parts is None:
        return image if len(image) <= MOST_NAME else f"…{image[-MOST_NAME:]}"
    info = image_info(image)
    pixels = "" if info.width is None else f", {info.width} × {info.height} pixels"
    return f"{parts[0][:40]}{pixels}, {len(parts[1]) * 3 // 4:,} bytes"


class ConversationQuery(PageQuery):
    """Which part of a session: the messages that are in it, or those that were moved to its archive."""

    part: Annotated[Literal["messages", "archived"], Meta(description="Messages of the session or its archive.")] = (
        "messages"
    )


@endpoint(
    "GET", "/api/v1/sessions/{name}/conversation", right="read", summary="Read a session as a chat", tag="sessions",
    example=Example(path={"name": "monday"}, answer={"items": [VIEW], "cursor": None}),
)  # fmt: skip
async def conversation(call: ApiCall, name: str, query: ConversationQuery) -> Page[MessageView]:
    """The messages of a session with their tokens; the newest page first, each page oldest first.

    Texts are cut at 20,000 characters, and images are named instead of sent.
    """
    kind = MESSAGE if query.part == "messages" else ARCHIVED
    return await read_page(call, Scan(scope=call.path / name, kinds=(kind,)), query, message_view, "newest")


class SummaryView(Struct, kw_only=True, frozen=True):
    """The running summary of a session, of so many messages."""

    text: str
    messages: int | None
    updated: datetime | None


class SessionView(Struct, kw_only=True, frozen=True):
    """Counts, times and limits of a session, with its title and its summary."""

    name: str
    scope: str
    title: str | None
    messages: int
    tokens: int
    archived: int
    archived_tokens: int
    summary: SummaryView | None
    max_messages: int | None
    max_tokens: int | None
    overflow: str
    started: datetime
    last_activity: datetime
    expires: datetime | None


@endpoint(
    "GET", "/api/v1/sessions/{name}/overview", right="read", summary="Read what there is of a session", tag="sessions",
    problems=(404,), example=Example(path={"name": "monday"}, answer=examples.OVERVIEW),
)  # fmt: skip
async def session_overview(call: ApiCall, name: str) -> SessionView:
    """The counts, times and limits of a session, its title and its summary."""
    path = call.path / name
    scan = StreamScan(scope=path, kinds=(MESSAGE, ARCHIVED), below=False)
    streams = {stream.kind: stream for stream in (await call.store.streams(scan)).items}
    if not streams:
        raise NotFoundError(f"{call.path.path!r} has no session {name!r}")
    live, archive = streams.get(MESSAGE), streams.get(ARCHIVED)
    either = live or archive
    assert either is not None
    summary, title = await call.store.read([Ref(path, SUMMARY, SUMMARY_KEY), Ref(path, TITLE, TITLE)])
    covered: Any = None if summary is None or not isinstance(summary.data, dict) else summary.data.get("messages")
    settings = await call.scope.session(name).settings()
    return SessionView(
        name=name,
        scope=call.path.path,
        title=None if title is None else title.title,
        messages=0 if live is None else live.count,
        tokens=0 if live is None else live.weight,
        archived=0 if archive is None else archive.count,
        archived_tokens=0 if archive is None else archive.weight,
        summary=None
        if summary is None
        else SummaryView(
            text=(summary.text or "")[:MOST_TEXT],
            messages=covered if isinstance(covered, int) else None,
            updated=summary.updated,
        ),
        max_messages=settings.max_messages,
        max_tokens=settings.max_tokens,
        overflow=settings.overflow,
        started=min(stream.created for stream in streams.values()),
        last_activity=max(stream.updated for stream in streams.values()),
        expires=either.expires,
    )


class FitQuery(Query):
    """A budget."""

    max_tokens: Annotated[int, Meta(ge=1, le=10_000_000)]


class Fit(Struct, kw_only=True, frozen=True):
    """Messages of a session that fit a budget, by their ids; whether its summary does; and the tokens of all.

    Without any, `problem` says what must be in a window and does not fit.
    """

    ids: list[str]
    summary: bool
    tokens: int
    problem: str | None = None


@endpoint(
    "GET", "/api/v1/sessions/{name}/fit", right="read", summary="Say what fits a budget of tokens", tag="sessions",
    example=Example(
        path={"name": "monday"}, query={"max_tokens": 100},
        answer={"ids": ["m1"], "summary": False, "tokens": 8, "problem": None},
    ),
)  # fmt: skip
async def session_fit(call: ApiCall, name: str, query: FitQuery) -> Fit:
    """The same choice as `window`, without the messages: the ids of those that fit."""
    try:
        window = await fill_window(call.store, call.path / name, call.memory._tokens, query.max_tokens)
    except BudgetError as error:
        return Fit(ids=[], summary=False, tokens=0, problem=str(error))
    keys = window.keys
    return Fit(ids=sorted(keys - {SUMMARY_ID}), summary=SUMMARY_ID in keys, tokens=query.max_tokens - window.left)
