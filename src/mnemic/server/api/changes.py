"""Changes of a scope as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from math import inf
from time import monotonic
from typing import Annotated, Any

from msgspec import Meta, json
from starlette.responses import Response

from ...records import RECALLED, Ref
from ...store.matching import check_kinds
from ...store.protocol import all_streams, scan_pages
from ...store.query import Condition, Scan, StreamScan
from ..change_feed import MARGIN, ChangeFeed, Position, Reader, RecordChange
from ..endpoint import ApiCall, Example, Query, Streamed, endpoint
from .response_types import Name

READ_AT_ONCE = 100
"""How many records are read for their content, and sent, at once."""
GAP = "Deletions since the last event are not known: read again what must be complete."
TOO_SLOW = "The reader was too slow: connect again with the id of the last event."


class ChangesQuery(Query):
    """Which changes to send."""

    kinds: Annotated[list[Name], Meta(description="Kinds of records; by default all that recall finds.")] | None = None
    content: Annotated[bool, Meta(description="Send each record as it is now, not only its id.")] = False
    seconds: Annotated[int, Meta(ge=0, le=86_400, description="End the stream after this time.")] | None = None
    heartbeat: Annotated[int, Meta(ge=1, le=300, description="Seconds after which a comment is sent.")] = 15


@endpoint(
    "GET", "/api/v1/changes", right="read", summary="Follow changes", tag="changes", content="text/event-stream",
    example=Example(query={"seconds": 0}),
)  # fmt: skip
async def follow_changes(call: ApiCall, query: ChangesQuery) -> Streamed:
    """A stream of server-sent events, as records of the scope and below are written and deleted.

    `put` and `delete` have scope, kind, id and version in their data. With `Last-Event-ID`, the puts since that event
    come first; after a restart of the server, some come twice. A `delete` without an id means that some records of that
    scope and kind are gone. `gap` means that deletions may be missing, `dropped` that the reader was too slow and has
    to connect again.
    """
    feed: ChangeFeed = call.request.app.state.changes
    kinds = RECALLED if query.kinds is None else check_kinds(query.kinds)
    given = call.request.headers.get("Last-Event-ID")
    since = None if given is None else feed.from_id(given)
    if call.request.method == "HEAD":
        return Response(media_type="text/event-stream")  # type: ignore[return-value]
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Streamed(_events(call, feed, query, kinds, since), headers)


async def _events(
    call: ApiCall, feed: ChangeFeed, query: ChangesQuery, kinds: Sequence[str], since: Position | None
) -> AsyncGenerator[bytes, None]:
    inner, outer = call.path, call.access.scope
    if not (outer.contains(inner) or inner.contains(outer)):
        # Nothing is visible there, and that it cannot be seen must not be told.
        kinds = ()
        reader = await feed.join(outer, kinds)
    else:
        reader = await feed.join(inner if outer.contains(inner) else outer, kinds)
    try:
        yield b"retry: 2000\n" + _event(
            "ready", feed.to_id(reader.position()) if since is None else None, {"scope": call.path.path}
        )
        if since is not None:
            async with aclosing(_missed(call, query, feed, reader, kinds, since)) as missed:
                async for chunk in missed:
                    yield chunk
        ends = inf if query.seconds is None else monotonic() + query.seconds
        while (left := ends - monotonic()) > 0:
            changes = await reader.take(min(query.heartbeat, left))
            for start_at in range(0, len(changes), READ_AT_ONCE):
                yield await _written(call, feed, query, reader, changes[start_at : start_at + READ_AT_ONCE])
            if reader.too_slow:
                yield _event("dropped", None, {"reason": TOO_SLOW})
                return
            if not changes:
                yield b": nothing new\n\n"
    finally:
        feed.leave(reader)


async def _missed(
    call: ApiCall, query: ChangesQuery, feed: ChangeFeed, reader: Reader, kinds: Sequence[str], since: Position
) -> AsyncGenerator[bytes, None]:
    """Yield what has happened since a position: deletions first, so that what was written again is there."""
    complete = feed.to_id(reader.position())
    deletions = feed.deletions_since(reader, since)
    if deletions is None:
        yield _event("gap", None, {"reason": GAP})
    elif deletions:
        yield b"".join(_event(one.event, None, _about(one)) for one in deletions)
    begin = since.time - MARGIN
    streams = all_streams(call.store, StreamScan(scope=reader.scope, kinds=tuple(kinds)))
    for stream in [one async for one in streams if one.updated >= begin] if kinds else ():
        scan = Scan(
            scope=stream.scope,
            kinds=(stream.kind,),
            where=(Condition("updated", "ge", begin),),
            bodies=query.content,
            limit=READ_AT_ONCE,
        )
        async with aclosing(scan_pages(call.store, scan)) as pages:
            async for found in pages:
                # If deletions are not known, a record may be another one of the same version.
                page = [one for one in found if deletions is None or not feed.was_told(one, since)]
                changes = [RecordChange(0, "put", one.scope, one.kind, one.key, one.version) for one in page]
                yield b"".join(
                    _event("put", None, {**_about(change), **({"record": record.to_dict()} if query.content else {})})
                    for change, record in zip(changes, page, strict=True)
                )
    yield _event("ready", complete, {"scope": call.path.path})


async def _written(
    call: ApiCall, feed: ChangeFeed, query: ChangesQuery, reader: Reader, changes: Sequence[RecordChange]
) -> bytes:
    """Return changes as events, with the records as they are now if content is wanted."""
    records: dict[Ref, Any] = {}
    if query.content:
        refs = list({Ref(one.scope, one.kind, one.id) for one in changes if one.event == "put" and one.id is not None})
        records = {
            ref: None if record is None else record.to_dict()
            for ref, record in zip(refs, await call.store.read(refs), strict=True)
        }
    return b"".join(
        _event(
            one.event,
            feed.to_id(reader.position(one)),
            _about(one)
            | (
                {"record": records[Ref(one.scope, one.kind, one.id or "")]}
                if query.content and one.event == "put"
                else {}
            ),
        )
        for one in changes
    )


def _about(change: RecordChange) -> dict[str, Any]:
    return {"scope": change.scope.path, "kind": change.kind, "id": change.id, "version": change.version}


def _event(name: str, id: str | None, data: dict[str, Any]) -> bytes:
    start = b"" if id is None else f"id: {id}\n".encode()
    return start + b"event: " + name.encode() + b"\ndata: " + json.encode(data) + b"\n\n"
