"""The timeline of a scope: its records along time, counted in buckets, and one by one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ...checks import EARLIEST, LATEST, check_number, check_time, from_microseconds, shown, to_microseconds
from ...errors import InvalidValueError, NotFoundError
from ...features.timeline import DECADE, Missing, Timeline, TimelineCache, TimelinePlace, time_of
from ...messages import Role
from ...recall.index_entry import TURNS
from ...records import MESSAGE, OF_SESSIONS, Record, Ref, ScopePath
from ...store.protocol import Page
from ..endpoint import ApiCall, Body, Example, Query, endpoint
from . import examples
from .conversation import MessageView, message_view
from .paging import decode_place, encode_place
from .recall import find_source
from .response_types import Importance, Metadata, Moment, Name, Number

RecordKind: TypeAlias = Literal["message", "archived", "summary", "memory", "fact", "note"]
Buckets: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
EMPTY = timedelta(days=30)
"""The time that the timeline of an empty scope shows."""
SHORTEST = timedelta(minutes=1)
"""The shortest time that a timeline shows if none is given."""
SHOWN = 500
"""How many characters of a text a list shows."""


class TimelineFilters(Query):
    """Filters of a timeline."""

    since: Annotated[Moment, Meta(description="Start of the time shown.")] | None = None
    until: Annotated[Moment, Meta(description="End of the time shown, exclusive.")] | None = None
    kinds: list[RecordKind] | None = None
    roles: Annotated[list[Role], Meta(description="Only messages of these roles.")] | None = None
    min_importance: Number | None = None
    max_importance: Number | None = None


class TimelineQuery(TimelineFilters):
    """Filters of a timeline, and the number of buckets."""

    buckets: Buckets = 120


class RecordsQuery(TimelineFilters):
    """Filters of a timeline, and the page."""

    limit: Annotated[int, Meta(ge=1, le=200, description="Largest number of items in the page.")] = 50
    cursor: Annotated[str, Meta(description="Continues after a page: its `cursor`.")] | None = None


class TimelineOut(Struct, kw_only=True, frozen=True):
    """Counts of records by kind in each bucket of a time; `read` of `total` records were looked at.

    `missing` says what is not counted yet: "nothing"; "more", which the same request counts if it is sent again; or
    "old", streams that changed long ago, since there are too many.
    """

    now: datetime
    since: datetime
    until: datetime
    bucket_seconds: float
    counts: dict[str, list[int]]
    first: datetime | None
    last: datetime | None
    read: int
    total: int
    missing: Missing


class RecordOut(Struct, kw_only=True, frozen=True):
    """A record of any kind, with the start of its text of `length` characters; `session` names the session it is in."""

    kind: str
    id: str
    scope: str
    session: str | None
    time: datetime
    role: str | None
    text: str
    length: int
    importance: float | None
    pinned: bool
    tokens: int
    source: str | None


class RecordDetail(RecordOut, frozen=True):
    """A record of any kind with everything that is shown of it; `message` if it is one."""

    version: int
    created: datetime | None
    updated: datetime | None
    expires: datetime | None
    valid_from: datetime | None
    valid_to: datetime | None
    metadata: Metadata
    message: MessageView | None
    source_session: str | None
    """Path of the session that the source names, or that it is a message of, if that is still there."""


async def read_timeline(call: ApiCall, query: TimelineFilters) -> Timeline:
    """Return the timeline that a query asks for, without the restriction to its time."""
    cache: TimelineCache = call.request.app.state.timelines
    kinds = {} if query.kinds is None else {"kinds": query.kinds}
    timeline = await cache.read(call.store, call.path, roles=query.roles or (), visible=call.access.scope, **kinds)
    for name in ("min_importance", "max_importance"):
        if (bound := getattr(query, name)) is not None:
            check_number(bound, name)
    timeline.keep(min_importance=query.min_importance, max_importance=query.max_importance)
    return timeline


@endpoint(
    "GET", "/api/v1/timeline", right="read", summary="Count records along time", tag="timeline",
    example=Example(
        query={"buckets": 2, "kinds": ["memory"]},
        answer={
            "now": "2026-01-31T10:00:00Z", "since": "2026-01-31T09:30:00Z", "until": "2026-01-31T09:40:00Z",
            "bucket_seconds": 300.0, "counts": {"memory": [1, 2]},
            "first": "2026-01-31T09:30:00Z", "last": "2026-01-31T09:39:00Z",
            "read": 3, "total": 3, "missing": "nothing",
        },
    ),
)  # fmt: skip
async def timeline(call: ApiCall, query: TimelineQuery) -> TimelineOut:
    """How many records of the scope and below there are in each part of a time, by kind.

    Facts are where they begin to be true, notes and summaries where they changed last, everything else where it was
    made. Without `since` and `until`, the time is that of all records, `first` to `last`; those before 1970 or later
    than in ten years are left out if they make it ten times as long, and a century at least. A request looks at a
    bounded number of records, of the streams that changed last first: if `missing` is "more", send it again.
    """
    found = await read_timeline(call, query)
    now = call.store.clock()
    extent = found.extent
    first, last = (None, None) if extent is None else map(from_microseconds, extent)
    usual = found.usual(to_microseconds(now) + DECADE)
    shown_time = (now - EMPTY, now) if usual is None else _around(*usual)
    since = shown_time[0] if query.since is None else check_time(query.since, "since")
    until = shown_time[1] if query.until is None else check_time(query.until, "until")
    if until <= since:
        raise InvalidValueError(f"until {until} is not after since {since}")
    counts = found.counts(to_microseconds(since), to_microseconds(until), query.buckets)
    return TimelineOut(
        now=now,
        since=since,
        until=until,
        bucket_seconds=(until - since).total_seconds() / query.buckets,
        counts={kind: numbers for kind, numbers in counts.items() if query.kinds is None or kind in query.kinds},
        first=first,
        last=last,
        read=found.read,
        total=found.total,
        missing=found.missing,
    )


def _around(first: int, last: int) -> tuple[datetime, datetime]:
    """Return the time to show for records from `first` to `last`, in microseconds, which has to end after `last`."""
    room = max(SHORTEST // timedelta(microseconds=2) - (last - first) // 2, 0)
    return from_microseconds(max(first - room, EARLIEST)), from_microseconds(min(last + room + 1, LATEST))


@endpoint(
    "GET", "/api/v1/timeline/records", right="read", summary="List records along time", tag="timeline",
    example=Example(
        query={"limit": 1, "kinds": ["memory"]},
        answer={
            "items": [{
                "kind": "memory", "id": "sleep", "scope": "acme/alice", "session": None,
                "time": "2026-01-31T09:30:00Z", "role": None, "text": "Alice sleeps badly after coffee.", "length": 32,
                "importance": 1.0, "pinned": False, "tokens": 0, "source": None,
            }],
            "cursor": None,
        },
    ),
)  # fmt: skip
async def timeline_records(call: ApiCall, query: RecordsQuery) -> Page[RecordOut]:
    """The records of a timeline, newest first, with the first 500 characters of their texts."""
    found = await read_timeline(call, query)
    since = None if query.since is None else check_time(query.since, "since")
    until = None if query.until is None else check_time(query.until, "until")
    found.keep(since, until)
    refs, place = found.newest(query.limit, decode_place(call, query.cursor, "time", TimelinePlace))
    records = await call.store.read(refs)
    cursor = encode_place(call, place, "time")
    return Page(tuple(record_out(record) for record in records if record is not None), cursor)


class RecordQuery(Query):
    """A record of the scope; for a message, the scope is that of its session."""

    kind: RecordKind
    id: Name


@endpoint(
    "GET", "/api/v1/timeline/record", right="read", summary="Read a record of any kind", tag="timeline",
    problems=(404,), example=Example(query={"kind": "memory", "id": "sleep"}, answer=examples.RECORD),
)  # fmt: skip
async def timeline_record(call: ApiCall, query: RecordQuery) -> RecordDetail:
    """A record of exactly this scope with its source, times and metadata; a message also if it is archived."""
    return await _detail(call, await _find(call, query))


class ChangeBody(Body):
    """Importance and pin, as far as they are to change."""

    importance: Importance | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET


@endpoint(
    "PATCH", "/api/v1/timeline/record", right="write", summary="Change a record of any kind", tag="timeline",
    headers=("If-Match",), problems=(404, 409, 412),
    example=Example(
        query={"kind": "memory", "id": "sleep"}, body={"pinned": True},
        answer={**examples.RECORD, "pinned": True, "version": 2},
    ),
)  # fmt: skip
async def change_record(call: ApiCall, query: RecordQuery, body: ChangeBody) -> RecordDetail:
    """Change the importance or the pin of a record of exactly this scope; the answer is the record.

    With `If-Match: "1"` only if it still has version 1.
    """
    found = await _find(call, query)
    await call.scope.update(found, importance=body.importance, pinned=body.pinned, if_version=call.if_version)
    return await _detail(call, await _find(call, query))


async def _find(call: ApiCall, query: RecordQuery) -> Record:
    kinds = TURNS if query.kind == MESSAGE else (query.kind,)
    for record in await call.store.read([Ref(call.path, kind, query.id) for kind in kinds]):
        if record is not None:
            return record
    raise NotFoundError(f"{call.path.path!r} has no {query.kind} with the id {shown(query.id)}")


async def _detail(call: ApiCall, record: Record) -> RecordDetail:
    brief = record_out(record, None)
    return RecordDetail(
        **{name: getattr(brief, name) for name in RecordOut.__struct_fields__},
        version=record.version,
        created=record.created,
        updated=record.updated,
        expires=record.expires,
        valid_from=record.valid_from,
        valid_to=record.valid_to,
        metadata=record.meta,
        message=message_view(record) if record.kind in TURNS else None,
        source_session=await _source(call, brief.source),
    )


async def _source(call: ApiCall, source: str | None) -> str | None:
    if source is None:
        return None
    try:
        found = await find_source(call, source)
    except (NotFoundError, InvalidValueError):
        return None
    return ScopePath.of(ScopePath(found.scope), found.session).path


def record_out(record: Record, most: int | None = SHOWN) -> RecordOut:
    """Return a record as it is sent, with at most so many characters of its text."""
    text = record.text or record.title or ""
    if record.kind == "note" and not text:
        text = record.key
    role = record.data.get("role") if isinstance(record.data, dict) else None
    return RecordOut(
        kind=record.kind,
        id=record.key,
        scope=record.scope.path,
        session=record.scope.name if record.kind in OF_SESSIONS else None,
        time=from_microseconds(time_of(record)),
        role=role if isinstance(role, str) else None,
        text=text[:most],
        length=len(text),
        importance=record.importance,
        pinned=record.pinned,
        tokens=record.weight if record.kind in ("message", "archived") else 0,
        source=record.labels.get("source"),
    )
