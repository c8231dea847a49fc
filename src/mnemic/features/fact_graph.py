"""Graph search over facts, and export to networkx and GraphML."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from io import BytesIO
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec import json

from ..checks import check_count, check_names
from ..errors import MissingExtraError
from ..files import replace_file
from ..records import Record
from ..store.query import Condition

if TYPE_CHECKING:
    import networkx

    from .fact_items import Fact


NAMES_AT_ONCE = 50
"""How many names one scan looks up."""


class GraphSearch:
    """A breadth-first search over records of facts, one step at a time; `find` yields those that meet conditions."""

    def __init__(
        self,
        find: Callable[[tuple[Condition, ...]], AsyncIterator[Record]],
        start: str,
        predicates: Sequence[str] | str | None,
        max_facts: int,
    ) -> None:
        self._find = find
        self._where: tuple[Condition, ...] = ()
        if predicates is not None:
            self._where = (Condition("labels.predicate", "in", check_names(predicates, "predicates")),)
        self._max_facts = check_count(max_facts, "max_facts", least=1)
        self.found: dict[str, Record] = {}
        self._back: dict[str, tuple[str, Record]] = {}
        self.distances: dict[str, int] = {start: 0}
        self.frontier: list[str] = [start]
        self.complete: bool = True

    async def step(self) -> bool:
        """Extend the search by one step; return False if it found nothing new."""
        frontier, self.frontier = self.frontier, []
        for start in range(0, len(frontier), NAMES_AT_ONCE):
            here = tuple(frontier[start : start + NAMES_AT_ONCE])
            for end, other in (("subject", "object"), ("object", "subject")):
                async for fact in self._find((Condition(f"labels.{end}", "in", here), *self._where)):
                    if fact.key not in self.found and len(self.found) == self._max_facts:
                        self.complete = False
                        return bool(self.frontier)
                    self.found.setdefault(fact.key, fact)
                    name, origin = fact.labels[other], fact.labels[end]
                    if name not in self.distances:
                        self.distances[name] = self.distances[origin] + 1
                        self._back[name] = (origin, fact)
                        self.frontier.append(name)
        return bool(self.frontier)

    def path_from(self, name: str) -> list[Record]:
        """Return the facts from `name` back to the start."""
        path = []
        while name in self._back:
            name, fact = self._back[name]
            path.append(fact)
        return path


def build_graph(facts: Sequence[Fact]) -> networkx.MultiDiGraph[str]:
    """Return facts as a graph with their fields as edge attributes.

    Raises MissingExtraError if networkx is not installed.
    """
    try:
        import networkx
    except ModuleNotFoundError:
        raise MissingExtraError("exporting facts needs networkx: pip install 'mnemic[graph]'") from None
    graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
    for fact in facts:
        attributes = {name: getattr(fact, name) for name in fact.__struct_fields__ if name not in ("subject", "object")}
        graph.add_edge(fact.subject, fact.object, **attributes)
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
