"""Writes that are too large for one transaction.

The actions on records are written first, as steps that nobody reads. Then one transaction changes the states of the
streams and marks them with the name of the bulk write: with that, the write is done. Then each step is applied in a
transaction that also deletes the step, so it is applied once, by any process; at last the states lose the mark.
Anyone who finds a marked state completes the bulk write before using the stream.
"""

from __future__ import annotations

import secrets
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from msgspec import msgpack

from ...errors import TooLargeError
from ...records import StreamName
from .client import Fields, Item, attribute, batches, gather_bounded
from .codec import chunk_addresses, state_at
from .layout import Layout

MOST_ITEMS = 100
"""Maximum number of items in a transaction."""
STEP_BYTES = 350_000
"""Approximate size of a step."""
MAX_STEP_BYTES = 390_000
"""Maximum size of a step; an item may have 400 KB."""
MOST_CACHED = 10_000
"""How many streams' last bulk writes are cached."""
STEP = Fields("number", "value")


class BulkWrite:
    """Actions in steps, and the items to write first."""

    def __init__(self, layout: Layout, actions: Sequence[Item]) -> None:
        """Raise TooLargeError if an action does not fit into an item."""
        self.steps: list[list[Item]] = list(batches(actions, MOST_ITEMS - 1, STEP_BYTES))
        self.token: str = f"{secrets.token_hex(16)}.{len(self.steps)}"
        self.items: list[Item] = []
        for number, (address, step) in enumerate(zip(chunk_addresses(self.token), self.steps, strict=True)):
            encoded = msgpack.encode(step)
            if len(encoded) > MAX_STEP_BYTES:
                raise TooLargeError(f"{layout.table.url}: a record does not fit into an item")
            value = {"B": zlib.compress(encoded, 1)}
            self.items.append({**layout.key(address), "number": {"N": str(number)}, "value": value})


class BulkWrites:
    """Applies bulk writes, and detects those that others have applied during a read."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._last: OrderedDict[StreamName, str] = OrderedDict()
        """Last known bulk writes of streams."""

    async def settled(self, name: StreamName, state: Item | None) -> bool:
        """Return whether records that were read before a state are not of the middle of a bulk write.

        A pending one is completed. Also False if the stream had another bulk write since the last call.
        """
        token: str | None = attribute(state, "bulk", "S") if state is not None and "bulk" in state else None
        if state is not None and token is not None and "pending" in state:
            keys = [self._layout.key(address) for address in chunk_addresses(token)]
            found = await self._layout.table.get(keys, STEP)
            steps = {
                int(attribute(item, "number", "N")): msgpack.decode(zlib.decompress(attribute(item, "value", "B")))
                for item in found
            }
            await self._apply(token, steps)
            await self._unmark(token, {name: "stream" not in state})
        elif self._last.get(name) == token:
            return True
        self._last.pop(name, None)
        if token is not None:
            self._last[name] = token
        while len(self._last) > MOST_CACHED:
            self._last.popitem(last=False)
        return False

    async def apply(self, bulk: BulkWrite, streams: Mapping[StreamName, bool]) -> None:
        """Apply a bulk write that has marked these streams, which are dropped or not."""
        await self._apply(bulk.token, dict(enumerate(bulk.steps)))
        await self._unmark(bulk.token, streams)

    async def _apply(self, token: str, steps: Mapping[int, Sequence[Item]]) -> None:
        addresses = chunk_addresses(token)
        condition = {
            "ConditionExpression": "attribute_exists(#p)",
            "ExpressionAttributeNames": {"#p": self._layout.keys[0]},
        }
        # A failed condition means that someone else has applied the step.
        await gather_bounded(
            self._layout.table.transact([{"Delete": {"Key": self._layout.key(addresses[number]), **condition}}, *step])
            for number, step in steps.items()
        )

    async def _unmark(self, token: str, streams: Mapping[StreamName, bool]) -> None:
        actions: list[Item] = []
        for name, dropped in streams.items():
            action: Item = {
                "Key": self._layout.key(state_at(name)),
                "ConditionExpression": "#bulk = :bulk AND attribute_exists(#pending)",
                "ExpressionAttributeNames": {"#bulk": "bulk", "#pending": "pending"},
                "ExpressionAttributeValues": {":bulk": {"S": token}},
            }
            update = {**action, "UpdateExpression": "REMOVE #pending"}
            actions.append({"Delete": action} if dropped else {"Update": update})
        if await self._layout.table.transact(actions):
            # Others have unmarked some of them.
            await gather_bounded(self._layout.table.transact([action]) for action in actions)
