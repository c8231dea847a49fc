"""Facts: subject, predicate and object with the time of validity, and searches in their graph."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...errors import InvalidValueError
from ...features.fact_items import Fact, fact_conditions, to_fact
from ...records import FACT
from ...store.protocol import Page
from ...store.query import Scan
from ..endpoint import ApiCall, Body, Example, PageQuery, Query, endpoint
from . import examples
from .paging import read_page
from .response_types import FactOut, Metadata, Moment, Name, Share, fact_out

MostFacts = Annotated[int, Meta(ge=1, le=100_000, description="Largest number of facts that are read.")]


class FactBody(Body):
    """A fact; without `valid_from` it is valid from now on.

    With `single`, the predicate has one object at a time: the fact that is valid ends when this one begins.
    """

    subject: Name
    predicate: Name
    object: Name
    single: bool = False
    valid_from: Moment | None = None
    valid_to: Moment | None = None
    source: Name | None = None
    confidence: Share = 1.0
    metadata: Metadata | None = None


class EndBody(Body):
    """The facts to end: of a subject and a predicate and, if given, an object; by default now."""

    subject: Name
    predicate: Name
    object: Name | None = None
    valid_to: Moment | None = None


class FactsQuery(PageQuery):
    """Fields that facts must have."""

    subject: Name | None = None
    predicate: Name | None = None
    object: Name | None = None
    as_of: Annotated[Moment, Meta(description="Those that were valid then, instead of now.")] | None = None
    history: Annotated[bool, Meta(description="Those of all times.")] = False


class DeleteQuery(Query):
    """The facts to delete: of a subject and a predicate and, if given, an object."""

    subject: Name
    predicate: Name
    object: Name | None = None


class NeighborsQuery(Query):
    """Where a search in the graph begins, and how far it goes."""

    name: Name
    depth: Annotated[int, Meta(ge=1, le=100)] = 1
    predicates: list[Name] | None = None
    as_of: Moment | None = None
    max_facts: MostFacts = 1000


class PathQuery(Query):
    """The two ends of a path, and how long it may be."""

    start: Name
    end: Name
    max_depth: Annotated[int, Meta(ge=1, le=100)] = 6
    predicates: list[Name] | None = None
    as_of: Moment | None = None
    max_facts: MostFacts = 10_000


class GraphQuery(Query):
    """How large the graph may be."""

    max_facts: MostFacts = 1000


class NeighborsOut(Struct, kw_only=True):
    """How many steps away each name is, the facts between them, and whether these are all."""

    distances: dict[str, int]
    facts: list[FactOut]
    complete: bool


class PathOut(Struct, kw_only=True):
    """The facts from one end to the other; null if they are not connected."""

    path: list[FactOut] | None


class GraphOut(Struct, kw_only=True):
    """The facts with their history, and how many there are."""

    facts: list[FactOut]
    total: int


class ChangedOut(Struct, kw_only=True):
    """How many facts were changed."""

    changed: int


class DeletedOut(Struct, kw_only=True):
    """How many facts were deleted."""

    deleted: int


def _all(facts: list[Fact]) -> list[FactOut]:
    return list(map(fact_out, facts))


@endpoint(
    "GET", "/api/v1/facts", right="read", summary="Ask for facts", tag="facts",
    example=Example(query={"subject": "Alice"}, answer=examples.page(examples.FACT)),
)  # fmt: skip
async def list_facts(call: ApiCall, query: FactsQuery) -> Page[FactOut]:
    """The facts of the scope that are valid now, in the order in which they were added."""
    if query.history and query.as_of is not None:
        raise InvalidValueError("ask for a moment with as_of, or for all times with history, not both")
    moment = None if query.history else query.as_of or call.store.clock()
    where = fact_conditions(query.subject, query.predicate, query.object)
    scan = Scan(scope=call.path, kinds=(FACT,), where=where, as_of=moment)
    return await read_page(call, scan, query, lambda record: fact_out(to_fact(record)))


@endpoint(
    "POST", "/api/v1/facts", right="write", summary="Add a fact", tag="facts", status=201, problems=(409,),
    example=Example(body={"subject": "Alice", "predicate": "lives_in", "object": "Oslo"}, answer=examples.FACT),
)  # fmt: skip
async def add_fact(call: ApiCall, body: FactBody) -> FactOut:
    """Add a fact to the scope; adding it again updates it."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    return fact_out(await call.scope.facts.add(**given))


@endpoint(
    "DELETE", "/api/v1/facts", right="write", summary="Delete facts", tag="facts",
    example=Example(query={"subject": "Alice", "predicate": "lives_in"}, answer={"deleted": 1}),
)  # fmt: skip
async def delete_facts(call: ApiCall, query: DeleteQuery) -> DeletedOut:
    """Delete facts of the scope with their history."""
    return DeletedOut(deleted=await call.scope.facts.delete(query.subject, query.predicate, query.object))


@endpoint(
    "POST", "/api/v1/facts/end", right="write", summary="End facts", tag="facts", problems=(409,),
    example=Example(body={"subject": "Alice", "predicate": "lives_in"}, answer={"changed": 1}),
)  # fmt: skip
async def end_facts(call: ApiCall, body: EndBody) -> ChangedOut:
    """End the facts of the scope that are valid; they stay as history."""
    changed = await call.scope.facts.update(body.subject, body.predicate, body.object, valid_to=body.valid_to)
    return ChangedOut(changed=changed)


@endpoint(
    "GET", "/api/v1/facts/neighbors", right="read", summary="Find what is connected", tag="facts",
    example=Example(
        query={"name": "Alice"},
        answer={"distances": {"Alice": 0, "Oslo": 1}, "facts": [examples.FACT], "complete": True},
    ),
)  # fmt: skip
async def list_neighbors(call: ApiCall, query: NeighborsQuery) -> NeighborsOut:
    """Everything in the scope that is connected with a name, in either direction, within `depth` steps."""
    found = await call.scope.facts.neighbors(
        query.name, query.depth, predicates=query.predicates, as_of=query.as_of, max_facts=query.max_facts
    )
    return NeighborsOut(distances=found.distances, facts=_all(found.facts), complete=found.complete)


@endpoint(
    "GET", "/api/v1/facts/path", right="read", summary="Find a path", tag="facts", problems=(409,),
    example=Example(query={"start": "Alice", "end": "Oslo"}, answer={"path": [examples.FACT]}),
)  # fmt: skip
async def find_path(call: ApiCall, query: PathQuery) -> PathOut:
    """A shortest path between two names in the scope, in either direction; status 409 if it takes too many facts."""
    found = await call.scope.facts.path(
        query.start,
        query.end,
        max_depth=query.max_depth,
        predicates=query.predicates,
        as_of=query.as_of,
        max_facts=query.max_facts,
    )
    return PathOut(path=None if found is None else _all(found))


@endpoint(
    "GET", "/api/v1/facts/graph", right="read", summary="Get the graph of facts", tag="facts",
    example=Example(answer={"facts": [examples.FACT], "total": 1}),
)  # fmt: skip
async def get_graph(call: ApiCall, query: GraphQuery) -> GraphOut:
    """The facts of the scope with their history, by start of validity; of too many, those that were added last."""
    graph = await call.scope.facts.graph(max_facts=query.max_facts)
    return GraphOut(facts=_all(graph.facts), total=graph.total)
