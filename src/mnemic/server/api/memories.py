"""Memories: texts that are kept, changed, deleted, and fade with time."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from ...checks import shown
from ...errors import NotFoundError
from ...features.memory_items import Duplicates, MemoryItem, from_archive, to_item
from ...records import MEMORY, PRUNED, Record
from ...store.protocol import Page
from ...store.query import Scan
from ..endpoint import Answer, ApiCall, Body, Example, PageQuery, Query, endpoint
from . import examples
from .paging import Order, read_page
from .recall import Recalled
from .response_types import (
    FadingOut,
    Importance,
    MemoryOut,
    Metadata,
    Moment,
    Name,
    Number,
    Seconds,
    Text,
    duration,
    fading_out,
    hit_out,
    memory_out,
)

THIS = {"id": "sleep"}


class MemoryBody(Body):
    """A text to remember; the memory with the same id is replaced. With `ttl` it expires after so many seconds."""

    text: Text
    id: Name | UnsetType = UNSET
    importance: Importance = 1.0
    metadata: Metadata | None = None
    source: Name | None = None
    valid_from: Moment | None = None
    valid_to: Moment | None = None
    created: Moment | None = None
    pinned: bool = False
    ttl: Seconds | None = None

    def item(self, call: ApiCall) -> MemoryItem:
        """Return it as the library takes it."""
        given: dict[str, Any] = asdict(self)
        ttl = duration(given.pop("ttl"))
        given["id"] = "" if self.id is UNSET else self.id
        given["metadata"] = self.metadata or {}
        return MemoryItem(**given, expires=None if ttl is None else call.store.clock() + ttl)


class MemoryChanges(Body):
    """Fields to change; others stay. Null removes a source or a time of validity."""

    text: Text | UnsetType = UNSET
    importance: Importance | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    source: Name | None | UnsetType = UNSET
    valid_from: Moment | None | UnsetType = UNSET
    valid_to: Moment | None | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET


class RememberQuery(Query):
    """Policy for a text that is remembered already."""

    duplicates: Annotated[
        Duplicates, Meta(description="`keep` both, `merge` them, `skip` the new one, or `refuse` it with status 409.")
    ] = "keep"


class MemoriesQuery(PageQuery):
    """The page of the list of memories."""

    order: Order = "newest"


class FadingQuery(Query):
    """How far the memories have faded."""

    below: Number | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    half_life: Seconds | None = None


class SimilarQuery(Query):
    """A text, and how similar memories must be to it."""

    text: Text
    min_score: Number | None = None
    k: Annotated[int, Meta(ge=0, le=100)] = 5


class IdsBody(Body):
    """Ids of what was useful."""

    ids: Annotated[list[Name], Meta(min_length=1, max_length=1000)]


class RestoreMemoryBody(Body):
    """Id of an archived memory, and whether restoring it counts as a use."""

    id: Name
    used: bool = True


class MemoriesOut(Struct, kw_only=True):
    """Memories, in the order in which they were given."""

    memories: list[MemoryOut]


class FadingListOut(Struct, kw_only=True):
    """Memories that decay, weakest first."""

    fading: list[FadingOut]


class UsedOut(Struct, kw_only=True):
    """How many of them still exist."""

    used: int


def _out(record: Record) -> MemoryOut:
    return memory_out(to_item(record))


@endpoint(
    "GET", "/api/v1/memories", right="read", summary="List memories", tag="memories",
    example=Example(answer=examples.page(examples.MEMORY)),
)  # fmt: skip
async def list_memories(call: ApiCall, query: MemoriesQuery) -> Page[MemoryOut]:
    """The memories of the scope; the first page has the newest, unless `order=oldest`. Each page is oldest first."""
    return await read_page(call, Scan(scope=call.path, kinds=(MEMORY,)), query, _out, query.order)


@endpoint(
    "POST", "/api/v1/memories", right="write", summary="Remember", tag="memories", status=201,
    headers=("Idempotency-Key",), problems=(409,),
    example=Example(body={"text": "Alice sleeps badly after coffee.", "id": "sleep"},
                    answer={"memories": [examples.MEMORY]}),
)  # fmt: skip
async def remember(
    call: ApiCall, query: RememberQuery, body: MemoryBody | Annotated[list[MemoryBody], Meta(max_length=10_000)]
) -> MemoriesOut:
    """Remember one text in the scope, or several, all or none.

    Of calls with the same `Idempotency-Key` within 24 hours, only the first changes anything; with other content the
    status is 409.
    """
    given = body if isinstance(body, list) else [body]
    items = [one.item(call) for one in given]
    added = await call.scope.memories.add_many(items, once=call.once, duplicates=query.duplicates)
    return MemoriesOut(memories=list(map(memory_out, added)))


@endpoint(
    "GET", "/api/v1/memories/fading", right="read", summary="List fading memories", tag="memories",
    example=Example(
        query={"limit": 1},
        answer={"fading": [{"memory": examples.MEMORY, "strength": 0.9, "used": None, "uses": 0}]},
    ),
)  # fmt: skip
async def list_fading(call: ApiCall, query: FadingQuery) -> FadingListOut:
    """The memories of the scope that decay, weakest first, or only those weaker than `below`.

    Pinned memories do not decay. Importance halves after each `half_life`, in seconds, without use.
    """
    half_life = duration(query.half_life)
    found = await call.scope.memories.fading(query.below, limit=query.limit, half_life=half_life)
    return FadingListOut(fading=list(map(fading_out, found)))


@endpoint(
    "GET", "/api/v1/memories/archived", right="read", summary="List archived memories", tag="memories",
    example=Example(answer={"items": [], "cursor": None}),
)  # fmt: skip
async def list_archived_memories(call: ApiCall, query: PageQuery) -> Page[MemoryOut]:
    """The memories of the scope that `forget` archived, oldest first."""
    return await read_page(call, Scan(scope=call.path, kinds=(PRUNED,)), query, lambda one: _out(from_archive(one)))


@endpoint(
    "GET", "/api/v1/memories/similar", right="read", summary="Find memories that say the same", tag="memories",
    example=Example(query={"text": "Alice sleeps badly after coffee."}, answer={"hits": [examples.HIT]}),
)  # fmt: skip
async def list_similar(call: ApiCall, query: SimilarQuery) -> Recalled:
    """The memories of the scope that duplicate a text, most similar first."""
    given = {} if query.min_score is None else {"min_score": query.min_score}
    found = await call.scope.memories.similar(query.text, k=query.k, **given)
    return Recalled(hits=list(map(hit_out, found)))


@endpoint(
    "POST", "/api/v1/memories/used", right="write", summary="Report what was useful", tag="memories", problems=(404,),
    example=Example(body={"ids": ["sleep"]}, answer={"used": 1}),
)  # fmt: skip
async def report_used(call: ApiCall, body: IdsBody) -> UsedOut:
    """Report hits as useful, so that they fade more slowly, and count it as a success in the recall metrics.

    The ids are those of hits of any kind, in the scope or below.
    """
    return UsedOut(used=await call.scope.used(*body.ids))


@endpoint(
    "POST", "/api/v1/memories/restore", right="write", summary="Restore an archived memory", tag="memories",
    problems=(404, 409), example=Example(body={"id": "old"}, answer={**examples.MEMORY, "id": "old"}),
)  # fmt: skip
async def restore_memory(call: ApiCall, body: RestoreMemoryBody) -> MemoryOut:
    """Restore an archived memory of the scope, counted as used now, or else as if it had never been archived."""
    return memory_out(await call.scope.memories.restore(body.id, used=body.used))


@endpoint(
    "GET", "/api/v1/memories/{id:path}", right="read", summary="Get a memory", tag="memories", status=(200, 304),
    headers=("If-None-Match",), problems=(404,), example=Example(path=THIS, answer=examples.MEMORY),
)  # fmt: skip
async def get_memory(call: ApiCall, id: str) -> Answer[MemoryOut]:
    """A memory of the scope or below; its version is the `ETag`. `/items` finds those with the name of another path."""
    item = await call.scope.memories.get(id)
    return Answer(memory_out(item), version=item.version, status=304 if call.knows(item.version) else 200)


@endpoint(
    "PATCH", "/api/v1/memories/{id:path}", right="write", summary="Change a memory", tag="memories",
    headers=("If-Match",), problems=(404, 409, 412),
    example=Example(path=THIS, body={"importance": 5}, answer={**examples.MEMORY, "importance": 5.0, "version": 2}),
)  # fmt: skip
async def update_memory(call: ApiCall, id: str, body: MemoryChanges) -> Answer[MemoryOut]:
    """Change the given fields of a memory of the scope or below; with `If-Match: "1"` only if it has version 1."""
    given: dict[str, Any] = {name: value for name, value in asdict(body).items() if value is not UNSET}
    item = await call.scope.memories.update(id, **given, if_version=call.if_version)
    return Answer(memory_out(item), version=item.version)


@endpoint(
    "DELETE", "/api/v1/memories/{id:path}", right="write", summary="Delete a memory", tag="memories", status=204,
    headers=("If-Match",), problems=(404, 412), example=Example(path=THIS),
)  # fmt: skip
async def delete_memory(call: ApiCall, id: str) -> None:
    """Delete a memory of the scope or below; with `If-Match: "1"` only if it still has version 1."""
    if not await call.scope.memories.delete(id, if_version=call.if_version):
        raise NotFoundError(f"{call.path.path!r} has no memory with the id {shown(id)}")
