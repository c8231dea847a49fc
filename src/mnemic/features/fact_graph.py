"""Exports facts to networkx and GraphML."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec import json

from ..errors import MissingExtraError
from ..files import replace_file

if TYPE_CHECKING:
    import networkx

    from .facts import Fact


def build_graph(links: Sequence[Fact]) -> networkx.MultiDiGraph[str]:
    """Return facts as a graph with their fields as edge attributes.

    Raises MissingExtraError if networkx is not installed.
    """
    try:
        import networkx
    except ModuleNotFoundError:
        raise MissingExtraError("exporting facts needs networkx: pip install 'mnemic[graph]'") from None
    graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
    for link in links:
        graph.add_edge(
            link.subject,
            link.object,
            predicate=link.predicate,
            valid_from=link.valid_from,
            valid_to=link.valid_to,
            source=link.source,
            confidence=link.confidence,
            metadata=link.metadata,
        )
    return graph


def write_graphml(graph: networkx.MultiDiGraph[str], path: str | PathLike[str]) -> None:
    """Write a graph to a file; GraphML has only text and numbers, so times and metadata become text."""
    import networkx

    plain: Any = networkx.MultiDiGraph()
    plain.add_nodes_from(graph.nodes)
    for subject, object, attributes in graph.edges(data=True):
        plain.add_edge(subject, object, **{n: _plain(v) for n, v in attributes.items() if v not in (None, {})})
    content = BytesIO()
    networkx.write_graphml(plain, content)
    replace_file(path, content.getvalue())


def _plain(value: Any) -> str | float:
    if isinstance(value, str | float):
        return value
    return json.encode(value).decode() if isinstance(value, dict) else str(value.isoformat())
