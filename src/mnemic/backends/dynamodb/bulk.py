"""Writes that are too large for one transaction.

The actions on records are written first, as steps that nobody reads. Then one transaction changes the heads of the
streams and marks them with the name of the bulk: with that, the write is done. Then each step is applied in a
transaction that also deletes the step, so it is applied once, whoever does it; at last the heads lose the mark.
Anyone who finds a marked head completes the bulk before using the stream.
"""

from __future__ import annotations

import secrets
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from msgspec import msgpack

from ...errors import TooLargeError
from ...store.planning import StreamName
from . import addresses
from .draft import MOST_ITEMS
from .layout import Layout
from .table import Fields, Item, lots, together

STEP_BYTES = 350_000
"""Approximate size of a step."""
MAX_STEP_BYTES = 390_000
"""Maximum size of a step; an item may have 400 KB."""
REMEMBERED = 10_000
"""How many streams' last bulks are cached."""
STEP = Fields("number", "value")


class Bulk:
    """Actions in steps, and the items to write first."""

    def __init__(self, layout: Layout, actions: Sequence[Item]) -> None:
        """Raise TooLargeError if an action does not fit into an item."""
        self.steps: list[list[Item]] = list(lots(actions, MOST_ITEMS - 1, STEP_BYTES))
        self.token: str = f"{secrets.token_hex(16)}.{len(self.steps)}"
        self.items: list[Item] = []
        for number, (key, step) in enumerate(zip(_keys(self.token, layout), self.steps, strict=True)):
            encoded = msgpack.encode(step)
            if len(encoded) > MAX_STEP_BYTES:
                raise TooLargeError(f"{layout.table.url}: what is stored of a record does not fit into an item")
            self.items.append({**key, "number": {"N": str(number)}, "value": {"B": zlib.compress(encoded, 1)}})


class Bulks:
    """Applies bulks, and notices those that others have applied during a read."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._last: OrderedDict[StreamName, str] = OrderedDict()
        """Last known bulks of streams."""

    async def settled(self, name: StreamName, head: Item | None) -> bool:
        """Return whether records that were read before a head are not in the middle of a bulk; complete a pending one.

        Also False if the stream had another bulk since the last call, as records may be of both sides of it.
        """
        token: str | None = None if head is None or "bulk" not in head else head["bulk"]["S"]
        if head is not None and token is not None and "pending" in head:
            found = await self._layout.table.get(_keys(token, self._layout), STEP)
            steps = {int(item["number"]["N"]): zlib.decompress(item["value"]["B"]) for item in found}
            await self._apply(token, {number: msgpack.decode(step) for number, step in steps.items()})
            await self._unmark(token, name, dropped="stream" not in head)
        elif self._last.get(name) == token:
            return True
        if token is None:
            self._last.pop(name, None)
        else:
            self._last[name] = token
            self._last.move_to_end(name)
            while len(self._last) > REMEMBERED:
                self._last.popitem(last=False)
        return False

    async def apply(self, bulk: Bulk, streams: Mapping[StreamName, bool]) -> None:
        """Apply a bulk whose heads are marked, of these streams, which are dropped or not."""
        await self._apply(bulk.token, dict(enumerate(bulk.steps)))
        await together(self._unmark(bulk.token, name, dropped=dropped) for name, dropped in streams.items())

    async def _apply(self, token: str, steps: Mapping[int, Sequence[Item]]) -> None:
        keys = _keys(token, self._layout)
        exists = {
            "ConditionExpression": "attribute_exists(#p)",
            "ExpressionAttributeNames": {"#p": self._layout.partition},
        }
        # A failed condition means that someone else has applied the step.
        await together(
            self._layout.table.transact([{"Delete": {"Key": keys[number], **exists}}, *step])
            for number, step in steps.items()
        )

    async def _unmark(self, token: str, name: StreamName, *, dropped: bool) -> None:
        action: Item = {
            "Key": self._layout.key(addresses.head(name)),
            "ConditionExpression": "#bulk = :bulk AND attribute_exists(#pending)",
            "ExpressionAttributeNames": {"#bulk": "bulk", "#pending": "pending"},
            "ExpressionAttributeValues": {":bulk": {"S": token}},
        }
        if dropped:
            await self._layout.table.transact([{"Delete": action}])
        else:
            await self._layout.table.transact([{"Update": {**action, "UpdateExpression": "REMOVE #pending"}}])


def _keys(token: str, layout: Layout) -> list[Item]:
    """Return the keys of the steps of a bulk."""
    name, _, count = token.partition(".")
    return [layout.key(addresses.chunk(name, number)) for number in range(int(count))]
