"""The paths of mem0's API: those of its own server (/memories, /search …) and of its platform (/v1, /v2, /v3)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from ...errors import InvalidValueError
from ..endpoint import Call, Example, endpoint
from . import requests as given
from .memories import Entity, Event, HistoryItem, Memories, Memory
from .requests import only

TAG = "mem0"
ID = "b1c1a8f0c4f54a3e9f0d5b7f1a2e3c4d"
ONE = Example(path={"memory_id": ID})
TYPES = {"user": "user_id", "agent": "agent_id", "app": "app_id", "run": "run_id"}
MEMORY: dict[str, Any] = {
    "id": ID, "memory": "Alice is a vegetarian.", "hash": "b4c6a5d4a4ccb3aafa3cd9ee04d1dc0b", "user_id": "alice",
    "agent_id": None, "app_id": None, "run_id": None, "session_id": None, "actor_id": None, "role": "user",
    "metadata": {}, "categories": [], "created_at": "2026-01-31T09:30:00Z", "updated_at": "2026-01-31T09:30:00Z",
    "expiration_date": None,
}  # fmt: skip
ADD = {"messages": [{"role": "user", "content": "Alice is a vegetarian."}], "user_id": "alice"}
EVENT = {
    "id": ID, "memory": "Alice is a vegetarian.", "event": "ADD", "role": "user", "actor_id": None,
    "data": {"memory": "Alice is a vegetarian."},
}  # fmt: skip
DEFAULT_K = 10
DEFAULT_PAGE = 100


class Results(Struct):
    """A list of memories."""

    results: list[Memory]


class Events(Struct):
    """Outcome of each text."""

    results: list[Event]


class Added(Struct, kw_only=True):
    """Outcome of each text, under the id of one event that is done."""

    results: list[Event]
    event_id: str
    status: str = "SUCCEEDED"
    message: str = "Memories were stored."


class Said(Struct):
    """A message for people."""

    message: str


class MemoryPage(Struct, kw_only=True):
    """A page of memories, how many there are, and the addresses of the pages around it."""

    count: int
    next: str | None
    previous: str | None
    results: list[Memory]


class EntityPage(Struct, kw_only=True):
    """A page of entities, how many there are, and the addresses of the pages around it."""

    count: int
    next: str | None
    previous: str | None
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
    results: list[Memory]
    event_type: str = "ADD"
    status: str = "SUCCEEDED"


class Feedback(Struct):
    """Feedback as it was stored."""

    id: str
    feedback: str | None
    feedback_reason: str | None


def _memories(call: Call) -> Memories:
    state = call.request.app.state
    if not hasattr(state, "mem0_places"):
        state.mem0_places = {}
    return Memories(call.scope, call.store, state.mem0_places)


async def _add(call: Call, body: given.AddBody) -> list[Event]:
    return await _memories(call).add(
        body.texts(),
        body.entities(body.filters),
        metadata=body.metadata,
        created=body.created(),
        expires=body.expires(),
        distinct=body.infer is not False,
    )


async def _list(call: Call, body: given.ListBody, most: int | None = None) -> list[Memory]:
    memories = _memories(call)
    limit = body.top_k if body.limit is None else body.limit
    _, found = await memories.find(memories.filters(*body.conditions()), limit=most if limit is None else limit)
    return only(found, body.fields)


async def _list_page(call: Call, body: given.ListBody) -> MemoryPage:
    page, size = body.page or 1, body.page_size or DEFAULT_PAGE
    memories = _memories(call)
    count, found = await memories.find(memories.filters(*body.conditions()), (page - 1) * size, size)
    after, before = _around(call, page, size, count)
    return MemoryPage(count=count, next=after, previous=before, results=only(found, body.fields))


def _around(call: Call, page: int, size: int, count: int) -> tuple[str | None, str | None]:
    """Return the addresses of the pages after and before one."""

    def address(number: int) -> str:
        others = [pair for pair in call.request.query_params.multi_items() if pair[0] not in ("page", "page_size")]
        return str(call.request.url.replace(query=urlencode([*others, ("page", number), ("page_size", size)])))

    return address(page + 1) if page * size < count else None, address(page - 1) if page > 1 else None


async def _search(call: Call, body: given.SearchBody, k: int = DEFAULT_K) -> list[Memory]:
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


async def _delete_all(call: Call, query: given.ListQuery) -> None:
    body = query.body()
    wanted = body.wanted()
    memories = _memories(call)
    filters = memories.filters(*body.conditions())
    if not (wanted or query.filters or query.metadata):
        raise InvalidValueError('name whose memories to delete: user_id, agent_id, app_id, run_id; "*" means any')
    await memories.delete_all(filters)


# ---------------------------------------------------------------- its own server


@endpoint(
    "POST", "/memories", right="write", summary="Add memories", tag=TAG, problems=(409,),
    example=Example(body=ADD, answer={"results": [EVENT]}),
)  # fmt: skip
async def mem0_add(call: Call, query: given.Ignored, body: given.AddBody) -> Events:
    """Store each message as a memory, as it is: no model extracts facts. System messages are left out.

    Unless `infer` is false, a text that the same user, agent, app and run have already is not stored again.
    """
    return Events(await _add(call, body))


@endpoint(
    "GET", "/memories", right="read", summary="List memories", tag=TAG,
    example=Example(query={"user_id": "alice"}, answer={"results": [MEMORY]}),
)  # fmt: skip
async def mem0_list(call: Call, query: given.ListQuery) -> Results:
    """The memories of a user, agent, app or run, by default of all: of each user, the newest first."""
    return Results(await _list(call, query.body(), 1000))


@endpoint("DELETE", "/memories", right="erase", summary="Delete memories", tag=TAG, problems=(409,))
async def mem0_delete_all(call: Call, query: given.ListQuery) -> Said:
    """Delete the memories of a user, agent, app or run, with their history."""
    await _delete_all(call, query)
    return Said("All relevant memories deleted")


@endpoint("GET", "/memories/{memory_id}", right="read", summary="Get a memory", tag=TAG, problems=(404,), example=ONE)
async def mem0_get(call: Call, memory_id: str, query: given.Ignored) -> Memory:
    """A memory of any user."""
    return await _memories(call).get(memory_id)


@endpoint(
    "PUT", "/memories/{memory_id}", right="write", summary="Change a memory", tag=TAG, problems=(404, 409), example=ONE
)
async def mem0_update(call: Call, memory_id: str, query: given.Ignored, body: given.UpdateBody) -> Memory:
    """Change the text, the metadata or the expiry of a memory; the old text stays in its history."""
    return await _memories(call).update(memory_id, body.changes())


@endpoint(
    "DELETE", "/memories/{memory_id}", right="write", summary="Delete a memory", tag=TAG, problems=(404, 409),
    example=ONE,
)  # fmt: skip
async def mem0_delete(call: Call, memory_id: str, query: given.Ignored) -> Said:
    """Delete a memory; its text stays in its history until the memories of its user are deleted."""
    await _memories(call).delete(memory_id)
    return Said("Memory deleted successfully")


@endpoint(
    "GET", "/memories/{memory_id}/history", right="read", summary="Get a memory's history", tag=TAG, problems=(404,),
    example=ONE,
)  # fmt: skip
async def mem0_history(call: Call, memory_id: str, query: given.Ignored) -> list[HistoryItem]:
    """The events of a memory through this API, oldest first, also after it was deleted."""
    return await _memories(call).history(memory_id)


@endpoint(
    "POST", "/search", right="read", summary="Search memories", tag=TAG,
    example=Example(
        body={"query": "What does Alice eat?", "filters": {"user_id": "alice"}},
        answer={"results": [{**MEMORY, "score": 0.83}]},
    ),
)  # fmt: skip
async def mem0_search(call: Call, query: given.Ignored, body: given.SearchBody) -> Results:
    """The memories that answer a question, best first, with a score from 0 to 1."""
    return Results(await _search(call, body, 20))


@endpoint("POST", "/reset", right="erase", summary="Delete all memories", tag=TAG, problems=(409,))
async def mem0_reset(call: Call, query: given.Ignored) -> Said:
    """Delete all memories of the scope and below, with their history."""
    await _memories(call).reset()
    return Said("All memories reset")


@endpoint("GET", "/configure", right="read", summary="Get mem0's configuration", tag=TAG)
async def mem0_configuration(call: Call, query: given.Ignored) -> dict[str, str]:
    """The version of the answers; there is nothing else to configure."""
    return {"version": "v1.1"}


@endpoint("POST", "/configure", right="admin", summary="Configure mem0", tag=TAG)
async def mem0_configure(call: Call, query: given.Ignored, body: dict[str, Any]) -> Said:
    """Change nothing: this server has no models, and its store is given when it starts."""
    return Said("Nothing was changed: this server has no models to configure")


@endpoint("GET", "/entities", right="read", summary="List entities", tag=TAG)
async def mem0_entities(call: Call, query: given.Ignored) -> list[Entity]:
    """The users, agents, apps and runs that have memories."""
    return await _memories(call).entities()


@endpoint(
    "DELETE", "/entities/{entity_type}/{entity_id:path}", right="erase", summary="Delete an entity", tag=TAG,
    problems=(409,), example=Example(path={"entity_type": "user", "entity_id": "alice"}),
)  # fmt: skip
async def mem0_delete_entity(call: Call, entity_type: str, entity_id: str, query: given.Ignored) -> Said:
    """Delete all memories of a user, agent, app or run, with their history."""
    return await _delete_entity(call, entity_type, entity_id)


# ---------------------------------------------------------------- its platform


@endpoint("GET", "/v1/ping/", right="read", summary="Check the key", tag=TAG)
async def mem0_v1_ping(call: Call, query: given.Ignored) -> Ping:
    """Whether the key is valid."""
    return Ping()


@endpoint(
    "POST", "/v3/memories/add/", right="write", summary="Add memories", tag=TAG, problems=(409,),
    example=Example(
        body=ADD,
        answer={"results": [EVENT], "event_id": ID, "status": "SUCCEEDED", "message": "Memories were stored."},
    ),
)  # fmt: skip
async def mem0_v3_add(call: Call, query: given.Ignored, body: given.AddBody) -> Added:
    """Store each message as a memory, as it is, before it answers. See `POST /memories`."""
    events = await _add(call, body)
    return Added(results=events, event_id=events[0].id if events else "")


@endpoint("POST", "/v1/memories/", right="write", summary="Add memories", tag=TAG, problems=(409,))
async def mem0_v1_add(call: Call, query: given.Ignored, body: given.AddBody) -> list[Event] | Events:
    """Store each message as a memory, as it is; with the `output_format` v1.1, the answer is an object."""
    events = await _add(call, body)
    return Events(events) if body.output_format == "v1.1" else events


@endpoint("GET", "/v1/memories/", right="read", summary="List memories", tag=TAG)
async def mem0_v1_list(call: Call, query: given.ListQuery) -> list[Memory] | MemoryPage:
    """The memories of a user, agent, app or run, by default of all; with `page` and `page_size`, one page."""
    body = query.body()
    return await (_list_page(call, body) if body.page and body.page_size else _list(call, body, DEFAULT_PAGE))


@endpoint("DELETE", "/v1/memories/", right="erase", summary="Delete memories", tag=TAG, problems=(409,))
async def mem0_v1_delete_all(call: Call, query: given.ListQuery) -> Said:
    """Delete the memories of a user, agent, app or run, with their history."""
    await _delete_all(call, query)
    return Said("Memories deleted successfully!")


@endpoint("POST", "/v2/memories/", right="read", summary="List memories by filters", tag=TAG)
async def mem0_v2_list(call: Call, query: given.PageOf, body: given.ListBody) -> list[Memory] | MemoryPage:
    """The memories that pass the filters; with `page` and `page_size`, one page."""
    _set_page(body, query)
    return await (_list_page(call, body) if body.page and body.page_size else _list(call, body, DEFAULT_PAGE))


@endpoint("POST", "/v3/memories/", right="read", summary="List memories by filters, in pages", tag=TAG)
async def mem0_v3_list(call: Call, query: given.PageOf, body: given.ListBody) -> MemoryPage:
    """One page of the memories that pass the filters: of each user, the newest first."""
    _set_page(body, query)
    return await _list_page(call, body)


@endpoint("POST", "/v1/memories/search/", right="read", summary="Search memories", tag=TAG)
async def mem0_v1_search(call: Call, query: given.Ignored, body: given.SearchBody) -> list[Memory] | Results:
    """The memories that answer a question; with the `output_format` v1.1, the answer is an object."""
    found = await _search(call, body)
    return Results(found) if body.output_format == "v1.1" else found


@endpoint("POST", "/v2/memories/search/", right="read", summary="Search memories by filters", tag=TAG)
async def mem0_v2_search(call: Call, query: given.Ignored, body: given.SearchBody) -> list[Memory] | Results:
    """The memories that pass the filters and answer a question; as `POST /v1/memories/search/`."""
    found = await _search(call, body)
    return Results(found) if body.output_format == "v1.1" else found


@endpoint("POST", "/v3/memories/search/", right="read", summary="Search memories by filters", tag=TAG)
async def mem0_v3_search(call: Call, query: given.Ignored, body: given.SearchBody) -> Results:
    """The memories that pass the filters and answer a question, best first, with a score from 0 to 1."""
    return Results(await _search(call, body))


@endpoint(
    "GET", "/v1/memories/{memory_id}/", right="read", summary="Get a memory", tag=TAG, problems=(404,), example=ONE
)
async def mem0_v1_get(call: Call, memory_id: str, query: given.Ignored) -> Memory:
    """A memory of any user."""
    return await _memories(call).get(memory_id)


@endpoint(
    "PUT", "/v1/memories/{memory_id}/", right="write", summary="Change a memory", tag=TAG, problems=(404, 409),
    example=ONE,
)  # fmt: skip
async def mem0_v1_update(call: Call, memory_id: str, query: given.Ignored, body: given.UpdateBody) -> Memory:
    """Change the text, metadata, timestamp or expiry of a memory; the old text stays in its history."""
    return await _memories(call).update(memory_id, body.changes())


@endpoint(
    "DELETE", "/v1/memories/{memory_id}/", right="write", summary="Delete a memory", tag=TAG, problems=(404, 409),
    example=ONE,
)  # fmt: skip
async def mem0_v1_delete(call: Call, memory_id: str, query: given.Ignored) -> Said:
    """Delete a memory; its text stays in its history until the memories of its user are deleted."""
    await _memories(call).delete(memory_id)
    return Said("Memory deleted successfully!")


@endpoint(
    "GET", "/v1/memories/{memory_id}/history/", right="read", summary="Get a memory's history", tag=TAG,
    problems=(404,), example=ONE,
)  # fmt: skip
async def mem0_v1_history(call: Call, memory_id: str, query: given.Ignored) -> list[HistoryItem]:
    """The events of a memory through this API, oldest first, also after it was deleted."""
    return await _memories(call).history(memory_id)


@endpoint("PUT", "/v1/batch/", right="write", summary="Change several memories", tag=TAG, problems=(404, 409))
async def mem0_v1_update_batch(call: Call, query: given.Ignored, body: given.BatchBody) -> Said:
    """Change up to 1,000 memories, one after the other; if one does not exist, those before it are changed."""
    for one in body.memories:
        await _memories(call).update(one.memory_id, one.changes())
    return Said(f"Successfully updated {len(body.memories)} memories")


@endpoint("DELETE", "/v1/batch/", right="write", summary="Delete several memories", tag=TAG, problems=(404, 409))
async def mem0_v1_delete_batch(call: Call, query: given.Ignored, body: given.BatchBody) -> Said:
    """Delete up to 1,000 memories, one after the other; if one does not exist, those before it are deleted."""
    for one in body.memories:
        await _memories(call).delete(one.memory_id)
    return Said(f"Successfully deleted {len(body.memories)} memories")


@endpoint("GET", "/v1/entities/", right="read", summary="List entities", tag=TAG)
async def mem0_v1_entities(call: Call, query: given.PageOf) -> EntityPage:
    """A page of the users, agents, apps and runs that have memories."""
    every = await _memories(call).entities()
    page, size = query.page or 1, query.page_size or DEFAULT_PAGE
    after, before = _around(call, page, size, len(every))
    totals = {f"total_{type}s": sum(one.type == type for one in every) for type in TYPES}
    found = every[(page - 1) * size : page * size]
    return EntityPage(count=len(every), next=after, previous=before, results=found, **totals)


@endpoint(
    "GET", "/v2/entities/{entity_type}/{entity_id:path}", right="read", summary="Get an entity", tag=TAG,
    example=Example(path={"entity_type": "user", "entity_id": "alice/"}),
)  # fmt: skip
async def mem0_v2_entity(call: Call, entity_type: str, entity_id: str, query: given.Ignored) -> list[Entity]:
    """A user, agent, app or run, if it has memories."""
    name = entity_id.removesuffix("/")
    return [one for one in await _memories(call).entities() if (one.type, one.name) == (entity_type, name)]


@endpoint(
    "DELETE", "/v1/entities/{entity_type}/{entity_id:path}", right="erase", summary="Delete an entity", tag=TAG,
    problems=(409,), example=Example(path={"entity_type": "user", "entity_id": "alice/"}),
)  # fmt: skip
async def mem0_v1_delete_entity(call: Call, entity_type: str, entity_id: str, query: given.Ignored) -> Said:
    """Delete all memories of a user, agent, app or run, with their history."""
    return await _delete_entity(call, entity_type, entity_id)


@endpoint(
    "DELETE", "/v2/entities/{entity_type}/{entity_id:path}", right="erase", summary="Delete an entity", tag=TAG,
    problems=(409,), example=Example(path={"entity_type": "user", "entity_id": "alice/"}),
)  # fmt: skip
async def mem0_v2_delete_entity(call: Call, entity_type: str, entity_id: str, query: given.Ignored) -> Said:
    """Delete all memories of a user, agent, app or run, with their history."""
    return await _delete_entity(call, entity_type, entity_id)


@endpoint(
    "GET", "/v1/event/{event_id}/", right="read", summary="Get an event", tag=TAG, problems=(404,),
    example=Example(path={"event_id": ID}),
)  # fmt: skip
async def mem0_v1_event(call: Call, event_id: str, query: given.Ignored) -> EventStatus:
    """An addition by its `event_id`: it is done, and its first memory is in `results`."""
    return EventStatus(id=event_id, results=[await _memories(call).get(event_id)])


@endpoint("POST", "/v1/feedback/", right="write", summary="Give feedback", tag=TAG, problems=(404, 409))
async def mem0_v1_feedback(call: Call, query: given.Ignored, body: given.FeedbackBody) -> Feedback:
    """Keep the feedback in the memory's metadata; POSITIVE also counts as a use, so that it fades more slowly."""
    memories = _memories(call)
    old = await memories.get(body.memory_id)
    assert isinstance(old.metadata, dict)
    said = {"feedback": body.feedback, "feedback_reason": body.feedback_reason}
    await memories.update(body.memory_id, {"metadata": {**old.metadata, **said}})
    if body.feedback == "POSITIVE":
        await memories.used(body.memory_id)
    return Feedback(body.memory_id, body.feedback, body.feedback_reason)


def _set_page(body: given.ListBody, query: given.PageOf) -> None:
    body.page, body.page_size = query.page or body.page, query.page_size or body.page_size


async def _delete_entity(call: Call, type: str, name: str) -> Said:
    name = name.removesuffix("/")
    if type not in TYPES:
        raise InvalidValueError(f"an entity is of the type {', '.join(TYPES)}, not {type!r}")
    memories = _memories(call)
    if type == "user":
        await memories.reset(name)
    else:
        await memories.delete_all(memories.filters({TYPES[type]: {"eq": name}}))
    return Said("Entity deleted successfully!")
