"""The graph of the reference memory server in a scope: entities are notes, relations are facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..checks import check_name, shown
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..scope import AsyncScope
from ..store.retry import retry_conflicts
from .graph_file import RELATION, Graph, Item, unknown, unknown_entity


class GraphInScope:
    """The graph of one scope. A note is an entity if its value has `entityType` and `observations`."""

    def __init__(self, scope: AsyncScope, source: str | None) -> None:
        self._scope = scope
        self._source = source

    async def read(self) -> Graph:
        """Return the whole graph."""
        values = await self._scope.notes.read_all()
        facts = await self._scope.facts.ask()
        return Graph(
            entities=[{"name": name, **value} for name, value in values.items() if _is_entity(value)],
            relations=[{"from": fact.subject, "to": fact.object, "relationType": fact.predicate} for fact in facts],
        )

    async def change(self, operation: str, items: Sequence[Any]) -> Any:
        """Run one of the operations below, which do what the methods of `Graph` do."""
        work: Callable[[Sequence[Any]], Any] = getattr(self, f"_{operation}")
        return await work(items)

    async def _create_entities(self, entities: Sequence[Item]) -> list[Item]:
        for entity in entities:
            check_name(entity["name"], "name")
        created = []
        for entity in entities:
            value = {"entityType": entity["entityType"], "observations": entity["observations"]}
            try:
                await self._write(entity["name"], value, 0)
                created.append(entity)
            except ConflictError:
                await self._entity(entity["name"])
        return created

    async def _create_relations(self, relations: Sequence[Item]) -> list[Item]:
        for link in relations:
            for field in RELATION:
                check_name(link[field], field)
        created = []
        for link in relations:
            names = (link["from"], link["relationType"], link["to"])
            if not await self._scope.facts.ask(*names):
                await self._scope.facts.add(*names, source=self._source)
                created.append(link)
        return created

    async def _add_observations(self, observations: Sequence[Item]) -> list[Item]:
        for given in observations:
            await self._entity(given["entityName"])
        return [
            {
                "entityName": given["entityName"],
                "addedObservations": await self._observe(given["entityName"], given["contents"]),
            }
            for given in observations
        ]

    async def _delete_entities(self, names: Sequence[str]) -> None:
        for name in names:
            facts = self._scope.facts
            # The entity goes last: if this is interrupted, it can be repeated.
            for fact in [*await facts.ask(name), *await facts.ask(object=name)]:
                await facts.delete(fact.subject, fact.predicate, fact.object)
            if _is_entity((await self._scope.notes.read_many([name])).get(name)):
                await self._scope.notes.delete(name)

    async def _delete_observations(self, deletions: Sequence[Item]) -> None:
        for given in deletions:
            with suppress(InvalidValueError, NotFoundError):
                await self._observe(given["entityName"], remove=given["observations"])

    async def _delete_relations(self, relations: Sequence[Item]) -> None:
        for link in relations:
            await self._scope.facts.delete(link["from"], link["relationType"], link["to"])

    async def _observe(self, name: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
        """Change the observations of an entity, again if another writer was faster; return the added ones."""

        async def observe() -> list[str]:
            value, version = await self._entity(name)
            kept = [text for text in value["observations"] if text not in remove]
            added = unknown(add, kept)
            await self._write(name, {**value, "observations": kept + added}, version)
            return added

        return await retry_conflicts(observe, f"changing the observations of {shown(name)}")

    async def _entity(self, name: str) -> tuple[Item, int]:
        """Return the value and version of an entity; raises NotFoundError, or InvalidValueError for another note."""
        try:
            note = await self._scope.notes.get(name)
        except NotFoundError:
            raise unknown_entity(name) from None
        if not _is_entity(note.value):
            raise InvalidValueError(f"{shown(name)} is the key of a note that is not an entity")
        return note.value, note.version

    async def _write(self, name: str, value: Item, version: int) -> None:
        await self._scope.notes.write(name, value, source=self._source, if_version=version)


def _is_entity(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"entityType", "observations"}
        and isinstance(value["entityType"], str)
        and isinstance(value["observations"], list)
        and all(isinstance(text, str) for text in value["observations"])
    )
