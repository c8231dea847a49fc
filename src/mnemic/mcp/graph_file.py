"""The file of the reference memory server, memory.jsonl: read as it is, and changed by one process at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from json import JSONDecoder, dumps
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field

from ..checks import check_json
from ..errors import NotFoundError, StoreBusyError, StorePermissionError
from ..event_loop import off_loop
from ..files import read_file, replace_file
from .tools import LOG

Item: TypeAlias = dict[str, Any]
"""An entity or a relation, or what a call says of one."""

_reported: set[tuple[Path, str]] = set()
"""Lines that were reported as neither an entity nor a relation, by file."""
LOCK_TIMEOUT = 10.0
"""How long to wait for other processes that change the file, in seconds."""


class Graph(Struct):
    """Entities, relations, and the lines of a file that are neither, which are kept as they are."""

    entities: list[Item] = field(default_factory=list)
    relations: list[Item] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def create_entities(self, entities: Sequence[Item]) -> list[Item]:
        """Add those whose names are not known yet, and return them."""
        return _added(self.entities, entities, ("name",))

    def create_relations(self, relations: Sequence[Item]) -> list[Item]:
        """Add those that are not known yet, and return them."""
        return _added(self.relations, relations, RELATION)

    def add_observations(self, observations: Sequence[Item]) -> list[Item]:
        """Add those that are not known yet, and return them by entity; raises NotFoundError."""
        results = []
        for given in observations:
            entity = next((entity for entity in self.entities if entity["name"] == given["entityName"]), None)
            if entity is None:
                raise unknown_entity(given["entityName"])
            new = unknown(given["contents"], entity["observations"])
            entity["observations"] = [*entity["observations"], *new]
            results.append({"entityName": given["entityName"], "addedObservations": new})
        return results

    def delete_entities(self, names: Sequence[str]) -> None:
        """Delete entities and their relations."""
        self.entities = [entity for entity in self.entities if entity["name"] not in names]
        self.relations = [link for link in self.relations if link["from"] not in names and link["to"] not in names]

    def delete_observations(self, deletions: Sequence[Item]) -> None:
        """Delete observations of entities."""
        for given in deletions:
            for entity in self.entities:
                if entity["name"] == given["entityName"]:
                    entity["observations"] = [o for o in entity["observations"] if o not in given["observations"]]

    def delete_relations(self, relations: Sequence[Item]) -> None:
        """Delete relations."""
        gone = {_values(link, RELATION) for link in relations}
        self.relations = [link for link in self.relations if _values(link, RELATION) not in gone]


RELATION = ("from", "to", "relationType")


def unknown(texts: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the texts that are not among the known ones, each once."""
    return [text for text in dict.fromkeys(texts) if text not in known]


def unknown_entity(name: str) -> NotFoundError:
    """Return the error for an entity that does not exist."""
    return NotFoundError(f"Entity with name {name} not found")


def _added(known: list[Item], given: Sequence[Item], key: Sequence[str]) -> list[Item]:
    present = {_values(item, key) for item in known}
    added = []
    for item in given:
        if (values := _values(item, key)) not in present:
            present.add(values)
            added.append(item)
    known += [dict(item) for item in added]
    return added


def _values(item: Item, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(item[name] for name in key)


class GraphFile:
    """The graph in a file; each change is made under a lock, and replaces the file atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    async def read(self) -> Graph:
        """Return the graph; empty if there is no file yet."""
        return await off_loop(self._load)

    async def change(self, operation: str, items: Sequence[Any]) -> Any:
        """Run a method of `Graph`, and write what it has changed; if it raises, nothing is changed."""
        given, _ = check_json(items, operation)

        def work() -> Any:
            with self._locked():
                graph = self._load()
                before = self._dumped(graph)
                result = getattr(graph, operation)(given)
                if (after := self._dumped(graph)) != before:
                    replace_file(self._path, after, keep_mode=True)
                return result

        return await off_loop(work)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the file.

        The lock is that of an empty SQLite database beside it: it works on every system, and ends with its process.
        """
        import sqlite3

        lock = self._path.with_name(f".{self._path.name}.lock")
        try:
            with closing(sqlite3.connect(lock, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise StoreBusyError(f"{self._path} was locked for {LOCK_TIMEOUT:.0f} seconds") from error
            raise StorePermissionError(f"{self._path} cannot be locked: {lock}: {error}") from error

    def _load(self) -> Graph:
        graph = Graph()
        try:
            content = read_file(self._path)
        except NotFoundError:
            return graph
        for number, line in enumerate(content.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
            for item in _items(line.strip()):
                if isinstance(item, str):
                    if (self._path, item) not in _reported:
                        _reported.add((self._path, item))
                        LOG.warning("%s, line %d: neither an entity nor a relation; it is kept", self._path, number)
                    graph.others.append(item)
                else:
                    (graph.entities if item["type"] == "entity" else graph.relations).append(item)
        return graph

    @staticmethod
    def _dumped(graph: Graph) -> bytes:
        known = [{"type": "entity", **entity} for entity in graph.entities]
        known += [{"type": "relation", **relation} for relation in graph.relations]
        return "\n".join([*map(_dumped, known), *graph.others]).encode("utf-8", "surrogateescape")


_SPACE = re.compile(r"\s*")


def _items(line: str) -> Iterator[Item | str]:
    """Yield the entities and relations of a line, and what is neither as text.

    A line has one, but two processes of the reference server may have written several into one.
    """
    decoder = JSONDecoder()
    start = 0
    while start < len(line):
        try:
            item, end = decoder.raw_decode(line, start)
        except (ValueError, RecursionError):
            yield line[start:]
            return
        yield item if _is_known(item) else line[start:end]
        start = _SPACE.match(line, end).end()  # type: ignore[union-attr]


def _is_known(item: Any) -> bool:
    match item:
        case {"type": "entity", "name": str(), "entityType": str(), "observations": [*texts]}:
            return all(isinstance(text, str) for text in texts)
        case {"type": "relation", "from": str(), "to": str(), "relationType": str()}:
            return True
    return False


def _dumped(item: Item) -> str:
    text = dumps(item, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return dumps(item, separators=(",", ":"))
    return text
