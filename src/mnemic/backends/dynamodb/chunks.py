"""Values that are too large for an item: kept in parts, under a name that nobody else can have.

The parts are written before anything refers to them, and removed after nothing does any more. So whoever
finds a reference finds the value, and what a crash leaves behind is never found.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from . import addresses
from .layout import Layout
from .table import Fields, Item

SIZE = 350_000
"""How many bytes a part holds; an item may have 400 KB."""

PART = Fields("token", "number", "value")


class Chunks:
    """Large values of a table."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def cut(self, value: bytes, ttl: Item | None = None) -> tuple[str, list[Item]]:
        """Return the reference to a value, and the items to be written before it is used."""
        token = secrets.token_hex(16)
        parts = [value[start : start + SIZE] for start in range(0, len(value), SIZE)] or [b""]
        items = [
            {
                **self._layout.key(addresses.chunk(token, number)),
                "token": {"S": token},
                "number": {"N": str(number)},
                "value": {"B": part},
                **({} if ttl is None else {"ttl": ttl}),
            }
            for number, part in enumerate(parts)
        ]
        return f"{token}.{len(parts)}", items

    async def read(self, references: Iterable[str]) -> dict[str, bytes]:
        """Return values by their references, without those that are no longer there."""
        wanted = set(references)
        if not wanted:
            return {}
        found: dict[str, dict[int, bytes]] = {}
        for item in await self._layout.table.get([key for one in wanted for key in self.keys(one)], PART):
            found.setdefault(item["token"]["S"], {})[int(item["number"]["N"])] = item["value"]["B"]
        whole = {}
        for reference in wanted:
            token, _, count = reference.partition(".")
            parts = found.get(token, {})
            if len(parts) == int(count):
                whole[reference] = b"".join(parts[number] for number in range(len(parts)))
        return whole

    def keys(self, reference: str) -> list[Item]:
        """Return the keys of the parts of a value."""
        token, _, count = reference.partition(".")
        return [self._layout.key(addresses.chunk(token, number)) for number in range(int(count))]
