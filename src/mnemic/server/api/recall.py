"""Recall, the context for a prompt, single items by id, and the sources of items."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import asdict

from ...checks import shown
from ...errors import InvalidValueError, NotFoundError
from ...features.hits import find_key, find_ref
from ...messages import Message, Role
from ...records import ARCHIVED, MEMORY, MESSAGE, Record, Ref
from ..endpoint import Answer, ApiCall, Body, Example, Query, endpoint
from . import examples
from .response_types import (
    Filter,
    HitOut,
    Importance,
    Kind,
    Metadata,
    Moment,
    Name,
    Number,
    SessionName,
    Share,
    Tokens,
    hit_out,
)

HitCount = Annotated[int, Meta(ge=0, le=1000, description="How many hits.")]


class RecallQuery(Query):
    """A question, and what restricts the search; POST takes more."""

    query: str
    k: HitCount = 5
    kinds: list[Kind] | None = None
    roles: list[Role] | None = None
    since: Moment | None = None
    until: Moment | None = None
    min_importance: Number | None = None
    min_score: Number | None = None
    as_of: Moment | None = None
    neighbors: Annotated[int, Meta(ge=0, le=100)] = 0


class SearchBody(Body):
    """Filters of a search: `metadata` tests equality, or membership in a list; `as_of` keeps what was valid then."""

    kinds: list[Kind] | None = None
    metadata: Filter | None = None
    roles: list[Role] | None = None
    since: Moment | None = None
    until: Moment | None = None
    min_importance: Number | None = None
    min_score: Number | None = None
    as_of: Moment | None = None


class RecallBody(SearchBody, kw_only=True):
    """A question, and what restricts the search.

    `metadata` tests equality, or membership in a list; `as_of` keeps what was valid then, by default now. `neighbors`
    adds that many turns before and after each hit; `diverse` drops near-duplicates of a better hit; `traffic` includes
    system messages and tool results. A hit counts as a use of a memory, unless `uses` is false.
    """

    query: str
    k: HitCount = 5
    neighbors: Annotated[int, Meta(ge=0, le=100)] = 0
    diverse: bool = True
    traffic: bool = False
    exclude: Annotated[list[Name], Meta(max_length=1000)] = field(default_factory=list)
    signals: list[Annotated[str, Meta(max_length=100)]] | None = None
    weights: Annotated[dict[str, float], Meta(description="Factors by which signals are multiplied.")] | None = None
    uses: bool = True


class ContextBody(SearchBody):
    """Query of the context, by default the user's last message of the session, and how large it may be."""

    query: str | None = None
    max_tokens: Tokens = 4000
    session: SessionName | None = None
    share: Annotated[Share, Meta(description="Part of the tokens that is for recall.")] = 0.5
    k: HitCount = 40


class ItemQuery(Query):
    """The kind of the item, if others have the same id."""

    kind: Kind | None = None


class ItemChanges(Body):
    """Fields to change; others stay."""

    importance: Importance | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET


class Recalled(Struct, kw_only=True):
    """The hits, best first."""

    hits: list[HitOut]


class ContextOut(Struct, kw_only=True):
    """A block for a prompt: as messages and as one text, how many tokens it has, and the recalled hits in it."""

    messages: list[Message]
    text: str
    tokens: int
    hits: list[HitOut]


class ItemOut(Struct, kw_only=True):
    """Anything that recall finds, as it is stored."""

    kind: str
    id: str
    scope: str
    text: str | None
    title: str | None
    data: Any
    metadata: Metadata
    labels: dict[str, str]
    importance: float | None
    pinned: bool
    version: int
    created: datetime | None
    updated: datetime | None
    expires: datetime | None
    valid_from: datetime | None
    valid_to: datetime | None


def item_out(record: Record) -> ItemOut:
    """Return a stored record as it is sent."""
    named: dict[str, Any] = {"id": record.key, "scope": record.scope.path, "metadata": record.meta}
    rest = {name: getattr(record, name) for name in ItemOut.__struct_fields__ if name not in named}
    return ItemOut(**named, **rest)


@endpoint(
    "POST", "/api/v1/recall", right="read", summary="Recall", tag="recall",
    example=Example(body={"query": "Why is Alice tired?", "k": 1}, answer={"hits": [examples.HIT]}),
)  # fmt: skip
async def recall(call: ApiCall, body: RecallBody) -> Recalled:
    """Search messages, memories, notes, facts and summaries of the scope and below; the best hits, best first."""
    return Recalled(hits=[hit_out(hit) for hit in await call.scope.recall(**_fields(body))])


@endpoint(
    "GET", "/api/v1/recall", right="read", summary="Recall, with a query in the address", tag="recall",
    example=Example(query={"query": "Why is Alice tired?", "k": 1}, answer={"hits": [examples.HIT]}),
)  # fmt: skip
async def recall_by_query(call: ApiCall, query: RecallQuery) -> Recalled:
    """The same as POST, for what fits into an address."""
    return Recalled(hits=[hit_out(hit) for hit in await call.scope.recall(**_fields(query))])


@endpoint(
    "POST", "/api/v1/context", right="read", summary="Build a context for a prompt", tag="recall",
    example=Example(
        body={"query": "Why is Alice tired?", "max_tokens": 500},
        answer={"messages": [], "text": "", "tokens": 0, "hits": []},
    ),
)  # fmt: skip
async def build_context(call: ApiCall, body: ContextBody) -> ContextOut:
    """Build a block for a prompt, of at most `max_tokens`, from what is in the scope and below.

    It has, oldest first and without repetition: the system message and running summary of the `session`, what recall
    finds, quoted in a user message, since anyone may have written it, and the session's newest turns.
    """
    found = await call.scope.context(**_fields(body))
    hits = [hit_out(hit) for hit in found.hits]
    return ContextOut(messages=found.messages, text=found.text, tokens=found.tokens, hits=hits)


@endpoint(
    "GET", "/api/v1/items/{id:path}", right="read", summary="Get anything by its id", tag="recall", status=(200, 304),
    headers=("If-None-Match",), problems=(404,),
    example=Example(path={"id": "sleep"}, answer=examples.ITEM),
)  # fmt: skip
async def get_item(call: ApiCall, id: str, query: ItemQuery) -> Answer[ItemOut]:
    """A message, memory, note, fact or summary as it is stored, in the scope or below; its version is the `ETag`."""
    record = await _item(call, id, query.kind)
    return Answer(item_out(record), version=record.version, status=304 if call.knows(record.version) else 200)


@endpoint(
    "PATCH", "/api/v1/items/{id:path}", right="write", summary="Change anything by its id", tag="recall",
    headers=("If-Match",), problems=(404, 409, 412),
    example=Example(path={"id": "sleep"}, body={"pinned": True}, answer=examples.ITEM | {"pinned": True}),
)  # fmt: skip
async def update_item(call: ApiCall, id: str, query: ItemQuery, body: ItemChanges) -> Answer[ItemOut]:
    """Change the importance, metadata or pin of anything that recall finds, in the scope or below.

    With `If-Match: "1"` only if it still has version 1.
    """
    ref = (await _item(call, id, query.kind)).ref
    given: dict[str, Any] = {name: value for name, value in asdict(body).items() if value is not UNSET}
    await call.scope.update(ref, **given, if_version=call.if_version)
    record = await _read(call, ref)
    return Answer(item_out(record), version=record.version)


async def _item(call: ApiCall, id: str, kind: str | None) -> Record:
    if kind is not None:
        return await _read(call, Ref(call.path, kind, id))
    return await _read(call, await find_ref(call.store, call.path, id, MEMORY))


async def _read(call: ApiCall, ref: Ref) -> Record:
    (record,) = await call.store.read([ref])
    if record is None:
        raise NotFoundError(f"{call.path.path!r} has nothing with the id {shown(ref.key)}")
    return record


def _fields(given: Struct) -> dict[str, Any]:
    return {name: getattr(given, name) for name in given.__struct_fields__}


class SourceOut(Struct, kw_only=True, frozen=True):
    """A session, its scope, and the message in it if the source is one."""

    scope: str
    session: str
    message: str | None


@endpoint(
    "GET", "/api/v1/sources/{source:path}", right="read", summary="Find a source", tag="sources", problems=(404,),
    example=Example(path={"source": "monday"}, answer={"scope": "acme/alice", "session": "monday", "message": None}),
)  # fmt: skip
async def find_source(call: ApiCall, source: str) -> SourceOut:
    """The session of the scope with this name, or the message here or below with this id.

    The `source` of a fact or a memory is such a name if the writer gave one; it may be any other name.
    """
    try:
        session = await call.scope.sessions.get(source)
    except (NotFoundError, InvalidValueError):
        ref = await find_key(call.store, call.path, source)
        if ref is None or ref.kind not in (MESSAGE, ARCHIVED):
            raise NotFoundError(f"{call.path.path!r} has no session or message {source!r}") from None
        return SourceOut(scope=ref.scope.parent.path, session=ref.scope.name, message=ref.key)
    return SourceOut(scope=session.scope.parent.path, session=session.name, message=None)
