"""The profile graph: the nine tools of the reference memory server, with its schemas and results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from json import dumps
from typing import Any

from .graph_file import RELATION, Graph, GraphFile, Item
from .graph_in_scope import GraphInScope
from .tools import TEXT, Schema, Tool, ToolContext, ToolResult

ENTITY = ("name", "entityType", "observations")


def graph_of(call: ToolContext) -> GraphFile | GraphInScope:
    """Return the graph that a call is about: that of a file, or that of the scope."""
    return GraphInScope(call.scope, call.client) if call.graph_file is None else GraphFile(call.graph_file)


def graph_json(graph: Graph) -> Item:
    """Return a graph in the form of the tools' results."""
    return {
        "entities": [{name: entity[name] for name in ENTITY} for entity in graph.entities],
        "relations": [{name: link[name] for name in RELATION} for link in graph.relations],
    }


def _text(value: Any) -> str:
    return dumps(value, ensure_ascii=False, indent=2)


def _adding(operation: str, result: str, *fields: str) -> Callable[..., Awaitable[ToolResult]]:
    async def add(call: ToolContext, **arguments: Any) -> ToolResult:
        (given,) = arguments.values()
        items = [{name: item[name] for name in fields} for item in given]
        added = await graph_of(call).change(operation, items)
        return ToolResult(_text(added), {result: added})

    return add


def _deleting(operation: str, what: str) -> Callable[..., Awaitable[ToolResult]]:
    async def delete(call: ToolContext, **arguments: Any) -> ToolResult:
        (items,) = arguments.values()
        await graph_of(call).change(operation, items)
        message = f"{what} deleted successfully"
        return ToolResult(message, {"success": True, "message": message})

    return delete


async def read_graph(call: ToolContext) -> ToolResult:
    """Return the whole graph."""
    return _shown(await graph_of(call).read())


async def search_nodes(call: ToolContext, query: str) -> ToolResult:
    """Return the entities that contain a text, in any case, and their relations."""
    graph = await graph_of(call).read()
    wanted = query.lower()

    def found(entity: Item) -> bool:
        return any(wanted in text.lower() for text in (entity["name"], entity["entityType"], *entity["observations"]))

    return _shown(_part(graph, list(filter(found, graph.entities))))


async def open_nodes(call: ToolContext, names: list[str]) -> ToolResult:
    """Return the entities of these names, and their relations."""
    graph = await graph_of(call).read()
    return _shown(_part(graph, [entity for entity in graph.entities if entity["name"] in names]))


def _part(graph: Graph, entities: list[Item]) -> Graph:
    names = {entity["name"] for entity in entities}
    return Graph(entities, [link for link in graph.relations if link["from"] in names or link["to"] in names])


def _shown(graph: Graph) -> ToolResult:
    data = graph_json(graph)
    return ToolResult(_text(data), data)


def _texts(description: str) -> Schema:
    return {"type": "array", "items": TEXT, "description": description}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _closed(schema: Schema) -> Schema:
    return {**schema, "additionalProperties": False}


def _several(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_ENTITY = _object(
    name={**TEXT, "description": "The name of the entity"},
    entityType={**TEXT, "description": "The type of the entity"},
    observations=_texts("An array of observation contents associated with the entity"),
)
_RELATION = _object(
    **{
        "from": {**TEXT, "description": "The name of the entity where the relation starts"},
        "to": {**TEXT, "description": "The name of the entity where the relation ends"},
        "relationType": {**TEXT, "description": "The type of the relation"},
    }
)
_ADDED = _object(
    entityName={**TEXT, "description": "The name of the entity to add the observations to"},
    contents=_texts("An array of observation contents to add"),
)
_DELETED = _object(
    entityName={**TEXT, "description": "The name of the entity containing the observations"},
    observations=_texts("An array of observations to delete"),
)
_RESULTS = _object(entityName=TEXT, addedObservations={"type": "array", "items": TEXT})
_ENTITIES, _RELATIONS = _several(_closed(_ENTITY)), _several(_closed(_RELATION))
_GRAPH = _closed(_object(entities=_ENTITIES, relations=_RELATIONS))
_DONE = _closed(_object(success={"type": "boolean"}, message=TEXT))


def _tool(
    name: str,
    description: str,
    run: Callable[..., Awaitable[ToolResult]],
    input: Schema,
    output: Schema,
    *,
    read_only: bool = False,
    destructive: bool = False,
) -> Tool:
    return Tool(
        name,
        description,
        run,
        input,
        output,
        title=name.replace("_", " ").title(),
        read_only=read_only,
        destructive=destructive,
        idempotent=read_only or destructive,
    )


GRAPH_TOOLS = [
    _tool(
        "create_entities",
        "Create multiple new entities in the knowledge graph",
        _adding("create_entities", "entities", *ENTITY),
        _object(entities=_several(_ENTITY)),
        _closed(_object(entities=_ENTITIES)),
    ),
    _tool(
        "create_relations",
        "Create multiple new relations between entities in the knowledge graph. Relations should be in active voice",
        _adding("create_relations", "relations", *RELATION),
        _object(relations=_several(_RELATION)),
        _closed(_object(relations=_RELATIONS)),
    ),
    _tool(
        "add_observations",
        "Add new observations to existing entities in the knowledge graph",
        _adding("add_observations", "results", "entityName", "contents"),
        _object(observations=_several(_ADDED)),
        _closed(_object(results=_several(_closed(_RESULTS)))),
    ),
    _tool(
        "delete_entities",
        "Delete multiple entities and their associated relations from the knowledge graph",
        _deleting("delete_entities", "Entities"),
        _object(entityNames=_texts("An array of entity names to delete")),
        _DONE,
        destructive=True,
    ),
    _tool(
        "delete_observations",
        "Delete specific observations from entities in the knowledge graph",
        _deleting("delete_observations", "Observations"),
        _object(deletions=_several(_DELETED)),
        _DONE,
        destructive=True,
    ),
    _tool(
        "delete_relations",
        "Delete multiple relations from the knowledge graph",
        _deleting("delete_relations", "Relations"),
        _object(relations={**_several(_RELATION), "description": "An array of relations to delete"}),
        _DONE,
        destructive=True,
    ),
    _tool(
        "read_graph",
        "Read the entire knowledge graph",
        read_graph,
        {"type": "object", "properties": {}},
        _GRAPH,
        read_only=True,
    ),
    _tool(
        "search_nodes",
        "Search for nodes in the knowledge graph based on a query",
        search_nodes,
        _object(
            query={
                **TEXT,
                "description": "The search query to match against entity names, types, and observation content",
            }
        ),
        _GRAPH,
        read_only=True,
    ),
    _tool(
        "open_nodes",
        "Open specific nodes in the knowledge graph by their names",
        open_nodes,
        _object(names=_texts("An array of entity names to retrieve")),
        _GRAPH,
        read_only=True,
    ),
]
