"""The paths of mem0's API: those of its own server (/memories, /search …) and of its platform (/v1, /v2, /v3).

They are not in the OpenAPI document, since their reference is mem0's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from msgspec import UNSET, Struct

from ...checks import shown
from ...errors import InvalidValueError
from ...layers.restricted import Right
from ...mem0.memories import AddOutcome, Entity, HistoryItem, Mem0Memory, Memories
from ..endpoint import ApiCall, Example, Method, endpoint
from . import requests as given
from .requests import only

Run = TypeVar("Run", bound=Callable[..., Any])

TYPES = {"user": "user_id", "agent": "agent_id", "app": "app_id", "run": "run_id"}
"""Types of entities, and the fields of their ids."""
DEFAULT_K = 10
DEFAULT_PAGE = 100
MOST_LISTED = 1000


ID = "b1c1a8f0c4f54a3e9f0d5b7f1a2e3c4d"
NAMES = {"memory_id": ID, "event_id": ID, "entity_type": "user", "entity_id": "carol"}
CAROL = {"user_id": "carol"}
ADD = {"messages": [{"role": "user", "content": "Carol is a vegetarian."}], **CAROL}
FIND = {"query": "Who sleeps badly?", "filters": {"OR": [CAROL, {"user_id": "*"}]}}
BATCH = {"memories": [{"memory_id": ID, "text": "Carol eats fish."}]}


def path(method: Method, path: str, right: Right, body: Any = UNSET, **query: str) -> Callable[[Run], Run]:
    """Declare a path, with an example for tests of all endpoints; several paths can have the same function."""
    names = {name: NAMES[name] for name in re.findall(r"{(\w+)", path)}
    example = Example(path=names, body=body, query=query)
    return endpoint(method, path, right=right, summary="Of mem0", tag="mem0", example=example)


class Results(Struct):
    """A list of memories."""

    results: list[Mem0Memory]


class Events(Struct):
    """Outcome of each text."""

    results: list[AddOutcome]


class Added(Struct, kw_only=True):
    """Outcome of each text, under the id of one event that is done."""

    results: list[AddOutcome]
    event_id: str
    status: str = "SUCCEEDED"
    message: str = "Memories were stored."


class Notice(Struct):
    """A message for people."""

    message: str


class PageOf(Struct, kw_only=True):
    """A page of a list, the length of the list, and the addresses of the pages around it."""

    count: int
    next: str | None
    previous: str | None


class MemoryPage(PageOf, kw_only=True):
    """A page of memories."""

    results: list[Mem0Memory]


class EntityPage(PageOf, kw_only=True):
    """A page of entities."""

    results: list[Entity]
    total_users: int
    total_agents: int
    total_apps: int
    total_runs: int


class Ping(Struct):
    """Whether the key is valid; there is one organization and one project, which clients want to know."""

    status: str = "ok"
    org_id: str = "mnemic"
    project_id: str = "default"
    user_email: str | None = None


class EventStatus(Struct, kw_only=True):
    """An addition of memories, which is done when it is answered."""

    id: str
    results: list[Mem0Memory]
    event_type: str = "ADD"
    status: str = "SUCCEEDED"


class Feedback(Struct):
    """Feedback as it was stored."""

    id: str
    feedback: str | None
    feedback_reason: str | None


def _memories(call: ApiCall) -> Memories:
    return Memories(call.scope, call.request.app.state.mem0_places)


async def _add(call: ApiCall, body: given.AddBody) -> list[AddOutcome]:
    return await _memories(call).add(
        body.texts(),
        body.entities(body.filters),
        metadata=body.metadata,
        created=body.created(),
        expires=body.expires(),
        distinct=body.infer is not False,
    )


async def _list(call: ApiCall, body: given.ListBody, most: int) -> list[Mem0Memory]:
    memories = _memories(call)
    limit = body.top_k if body.limit is None else body.limit
    found = await memories.first(memories.filters(*body.conditions()), most if limit is None else limit)
    return only(found, body.fields)


async def _list_page(call: ApiCall, body: given.ListBody) -> MemoryPage:
    page, size = body.page or 1, body.page_size or DEFAULT_PAGE
    memories = _memories(call)
    count, found = await memories.find(memories.filters(*body.conditions()), (page - 1) * size, size)
    after, before = _around(call, page, size, count)
    return MemoryPage(count=count, next=after, previous=before, results=only(found, body.fields))


def _around(call: ApiCall, page: int, size: int, count: int) -> tuple[str | None, str | None]:
    """Return the addresses of the pages after and before one."""

    def address(number: int) -> str:
        others = [pair for pair in call.request.query_params.multi_items() if pair[0] not in ("page", "page_size")]
        return str(call.request.url.replace(query=urlencode([*others, ("page", number), ("page_size", size)])))

    return address(page + 1) if page * size < count else None, address(page - 1) if page > 1 else None


async def _search(call: ApiCall, body: given.Mem0SearchBody, k: int = DEFAULT_K) -> list[Mem0Memory]:
    if not body.query.strip():
        raise InvalidValueError("query is empty")
    memories = _memories(call)
    limit = body.limit if body.top_k is None else body.top_k
    found = await memories.search(
        body.query,
        memories.filters(*body.conditions()),
        k if limit is None else limit,
        min_score=body.threshold,
        explain=bool(body.explain),
    )
    return only(found, body.fields)


# ---------------------------------------------------------------- add, list, search


@path("POST", "/memories", "write", ADD)
async def mem0_add(call: ApiCall, query: given.IgnoredQuery, body: given.AddBody) -> Events:
    """Store each message as a memory, as it is: no model extracts facts. System messages are left out.

    Unless `infer` is false, a text that the same user, agent, app and run have already is not stored again.
    """
    return Events(await _add(call, body))


@path("POST", "/v1/memories/", "write", ADD)
async def mem0_add_v1(call: ApiCall, query: given.IgnoredQuery, body: given.AddBody) -> list[AddOutcome] | Events:
    """Add memories; with the `output_format` v1.1, the answer is an object."""
    events = await _add(call, body)
    return Events(events) if body.output_format == "v1.1" else events


@path("POST", "/v3/memories/add/", "write", ADD)
async def mem0_add_v3(call: ApiCall, query: given.IgnoredQuery, body: given.AddBody) -> Added:
    """Add memories, before it answers."""
    events = await _add(call, body)
    return Added(results=events, event_id=events[0].id if events else "")


@path("GET", "/memories", "read")
async def mem0_list(call: ApiCall, query: given.ListQuery) -> Results:
    """List the memories of a user, agent, app or run, by default of all: of each user, the newest first."""
    return Results(await _list(call, query.body(), MOST_LISTED))


@path("GET", "/v1/memories/", "read")
async def mem0_list_v1(call: ApiCall, query: given.ListQuery) -> list[Mem0Memory] | MemoryPage:
    """List memories; with `page` and `page_size`, one page."""
    body = query.body()
    return await (_list_page(call, body) if body.page and body.page_size else _list(call, body, DEFAULT_PAGE))


@path("POST", "/v2/memories/", "read", {"filters": CAROL})
async def mem0_list_v2(
    call: ApiCall, query: given.Mem0PageQuery, body: given.ListBody
) -> list[Mem0Memory] | MemoryPage:
    """List the memories that pass filters; with `page` and `page_size`, one page."""
    body.page, body.page_size = query.page or body.page, query.page_size or body.page_size
    return await (_list_page(call, body) if body.page and body.page_size else _list(call, body, DEFAULT_PAGE))


@path("POST", "/v3/memories/", "read", {"filters": CAROL})
async def mem0_list_v3(call: ApiCall, query: given.Mem0PageQuery, body: given.ListBody) -> MemoryPage:
    """List one page of the memories that pass filters: of each user, the newest first."""
    body.page, body.page_size = query.page or body.page, query.page_size or body.page_size
    return await _list_page(call, body)


@path("POST", "/search", "read", FIND)
async def mem0_search(call: ApiCall, query: given.IgnoredQuery, body: given.Mem0SearchBody) -> Results:
    """Find the memories that pass filters and answer a question, best first, with a score from 0 to 1."""
    return Results(await _search(call, body, 20))


@path("POST", "/v1/memories/search/", "read", FIND)
@path("POST", "/v2/memories/search/", "read", FIND)
async def mem0_search_v2(
    call: ApiCall, query: given.IgnoredQuery, body: given.Mem0SearchBody
) -> list[Mem0Memory] | Results:
    """Find memories; with the `output_format` v1.1, the answer is an object."""
    found = await _search(call, body)
    return Results(found) if body.output_format == "v1.1" else found


@path("POST", "/v3/memories/search/", "read", FIND)
async def mem0_search_v3(call: ApiCall, query: given.IgnoredQuery, body: given.Mem0SearchBody) -> Results:
    """Find memories."""
    return Results(await _search(call, body))


# ---------------------------------------------------------------- one memory


@path("GET", "/memories/{memory_id}", "read")
@path("GET", "/v1/memories/{memory_id}/", "read")
async def mem0_get(call: ApiCall, memory_id: str, query: given.IgnoredQuery) -> Mem0Memory:
    """Get a memory of any user."""
    return await _memories(call).get(memory_id)


@path("PUT", "/memories/{memory_id}", "write", {"text": "Carol eats fish."})
@path("PUT", "/v1/memories/{memory_id}/", "write", {"text": "Carol eats fish."})
async def mem0_update(call: ApiCall, memory_id: str, query: given.IgnoredQuery, body: given.UpdateBody) -> Mem0Memory:
    """Change the text, metadata, timestamp or expiry of a memory; the old text stays in its history."""
    return await _memories(call).update(memory_id, body.changes())


@path("DELETE", "/memories/{memory_id}", "write")
@path("DELETE", "/v1/memories/{memory_id}/", "write")
async def mem0_delete(call: ApiCall, memory_id: str, query: given.IgnoredQuery) -> Notice:
    """Delete a memory; its text stays in its history until the memories of its user are deleted."""
    await _memories(call).delete(memory_id)
    return Notice("Memory deleted successfully!")


@path("GET", "/memories/{memory_id}/history", "read")
@path("GET", "/v1/memories/{memory_id}/history/", "read")
async def mem0_history(call: ApiCall, memory_id: str, query: given.IgnoredQuery) -> list[HistoryItem]:
    """List the events of a memory through this API, oldest first, also after it was deleted."""
    return await _memories(call).history(memory_id)


@path("POST", "/v1/feedback/", "write", {"memory_id": ID, "feedback": "POSITIVE"})
async def mem0_feedback(call: ApiCall, query: given.IgnoredQuery, body: given.FeedbackBody) -> Feedback:
    """Keep feedback in the memory's metadata; POSITIVE also counts as a use, so that it fades more slowly."""
    memories = _memories(call)
    old = await memories.get(body.memory_id)
    assert isinstance(old.metadata, dict)
    said = {"feedback": body.feedback, "feedback_reason": body.feedback_reason}
    await memories.update(body.memory_id, {"metadata": {**old.metadata, **said}})
    if body.feedback == "POSITIVE":
        await memories.used(body.memory_id)
    return Feedback(body.memory_id, body.feedback, body.feedback_reason)


@path("GET", "/v1/event/{event_id}/", "read")
async def mem0_event(call: ApiCall, event_id: str, query: given.IgnoredQuery) -> EventStatus:
    """Get an addition by its `event_id`: it is done, and its first memory is in `results`."""
    return EventStatus(id=event_id, results=[await _memories(call).get(event_id)])


# ---------------------------------------------------------------- several memories


@path("DELETE", "/memories", "erase", user_id="carol")
@path("DELETE", "/v1/memories/", "erase", user_id="carol")
async def mem0_delete_all(call: ApiCall, query: given.ListQuery) -> Notice:
    """Delete the memories of a user, agent, app or run, with their history."""
    memories = _memories(call)
    filters = memories.filters(*query.body().conditions())
    if not (query.wanted() or query.filters or query.metadata):
        raise InvalidValueError('name whose memories to delete: user_id, agent_id, app_id, run_id; "*" means any')
    await memories.delete_all(filters)
    return Notice("Memories deleted successfully!")


@path("PUT", "/v1/batch/", "write", BATCH)
async def mem0_update_batch(call: ApiCall, query: given.IgnoredQuery, body: given.BatchBody) -> Notice:
    """Change up to 1,000 memories, one after the other; if one does not exist, those before it are changed."""
    for one in body.memories:
        await _memories(call).update(one.memory_id, one.changes())
    return Notice(f"Successfully updated {len(body.memories)} memories")


@path("DELETE", "/v1/batch/", "write", BATCH)
async def mem0_delete_batch(call: ApiCall, query: given.IgnoredQuery, body: given.BatchBody) -> Notice:
    """Delete up to 1,000 memories, one after the other; if one does not exist, those before it are deleted."""
    for one in body.memories:
        await _memories(call).delete(one.memory_id)
    return Notice(f"Successfully deleted {len(body.memories)} memories")


@path("POST", "/reset", "erase")
async def mem0_reset(call: ApiCall, query: given.IgnoredQuery) -> Notice:
    """Delete all memories of the scope and below, with their history."""
    await _memories(call).reset()
    return Notice("All memories reset")


# ---------------------------------------------------------------- users, agents, apps and runs


@path("GET", "/entities", "read")
async def mem0_entities(call: ApiCall, query: given.IgnoredQuery) -> list[Entity]:
    """List the users, agents, apps and runs that have memories."""
    return await _memories(call).entities()


@path("GET", "/v1/entities/", "read")
async def mem0_entities_v1(call: ApiCall, query: given.Mem0PageQuery) -> EntityPage:
    """List one page of the users, agents, apps and runs that have memories."""
    every = await _memories(call).entities()
    page, size = query.page or 1, query.page_size or DEFAULT_PAGE
    after, before = _around(call, page, size, len(every))
    totals = {f"total_{type}s": sum(one.type == type for one in every) for type in TYPES}
    found = every[(page - 1) * size : page * size]
    return EntityPage(count=len(every), next=after, previous=before, results=found, **totals)


@path("GET", "/v2/entities/{entity_type}/{entity_id:path}", "read")
async def mem0_entity(call: ApiCall, entity_type: str, entity_id: str, query: given.IgnoredQuery) -> list[Entity]:
    """Get a user, agent, app or run, if it has memories."""
    name = entity_id.removesuffix("/")
    return [one for one in await _memories(call).entities() if (one.type, one.name) == (entity_type, name)]


@path("DELETE", "/entities/{entity_type}/{entity_id:path}", "erase")
@path("DELETE", "/v1/entities/{entity_type}/{entity_id:path}", "erase")
@path("DELETE", "/v2/entities/{entity_type}/{entity_id:path}", "erase")
async def mem0_delete_entity(call: ApiCall, entity_type: str, entity_id: str, query: given.IgnoredQuery) -> Notice:
    """Delete all memories of a user, agent, app or run, with their history."""
    if entity_type not in TYPES:
        raise InvalidValueError(f"an entity is of the type {', '.join(TYPES)}, not {shown(entity_type)}")
    memories = _memories(call)
    name = entity_id.removesuffix("/")
    if entity_type == "user":
        await memories.reset(name)
    else:
        await memories.delete_all(memories.filters({TYPES[entity_type]: {"eq": name}}))
    return Notice("Entity deleted successfully!")


# ---------------------------------------------------------------- the server


@path("GET", "/v1/ping/", "read")
async def mem0_ping(call: ApiCall, query: given.IgnoredQuery) -> Ping:
    """Check the key."""
    return Ping()


@path("GET", "/configure", "read")
async def mem0_configuration(call: ApiCall, query: given.IgnoredQuery) -> dict[str, str]:
    """Return the version of the answers; there is nothing else to configure."""
    return {"version": "v1.1"}


@path("POST", "/configure", "admin", {})
async def mem0_configure(call: ApiCall, query: given.IgnoredQuery, body: dict[str, Any]) -> Notice:
    """Change nothing: this server has no models, and its store is given when it starts."""
    return Notice("Nothing was changed: this server has no models to configure")
