"""Values too large for an item, split into parts with unique names.

The parts are written before anything references them, and deleted after nothing does. So a reference always finds
its value, and what a crash leaves behind is never read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from . import addresses
from .layout import Layout
from .table import Fields, Item

SIZE = 350_000
"""Size of a part; an item may have 400 KB."""

PART = Fields("token", "number", "value")


class Chunks:
    """Large values of a table."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def cut(self, value: bytes, ttl: Item | None = None) -> tuple[str, list[Item]]:
        """Return the reference of a value, and the items to write first."""
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
        """Return values by their references, without missing ones."""
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
