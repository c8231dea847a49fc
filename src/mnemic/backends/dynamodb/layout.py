"""Layouts of a table: what both have in common, and the one of a table that Mnemic has made."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from ...records import StreamName
from ...store.stream_state import StreamChange, StreamState
from ..keyvalue.engine import RecordRange, StreamRange
from .client import MOST_READ, Fields, Item, Table, attribute, gather_bounded
from .codec import BREAK, STATE, Address, digest, label_partition, record_at, state_at, stream_partition

INDEX = "seq"
"""Name of the index, and of its sort attribute."""
LAST = 10**17
"""Position of the state in the index: after all records, so that the newest are read along with it."""
PARTS = 4
"""Number of parts of the list of streams; all streams of a tenant are in one."""
CUT = 225
"""Length to which names are cut in the list of streams, to fit into a key."""
LISTED_AT_ONCE = 100
"""Minimum number of names per read, since some may not match."""
MOST_CACHED = 50_000
"""How many keys of records are cached by seq."""
TOP = "\U0010ffff"
"""The last Unicode character, which a name may contain."""
LISTED = Fields("scope", "kind")

StreamItems = tuple[Item | None, list[Item]]
"""The state of a stream, no older than its records that were read with it; and these."""


class Layout(ABC):
    """Maps addresses to keys, reads records in order, and lists streams."""

    def __init__(self, table: Table, *keys: str) -> None:
        self.table = table
        self.keys = keys
        """Names of the key attributes."""
        self.state_fields: Fields = Fields(*keys, *STATE)

    @abstractmethod
    def key(self, address: Address) -> Item:
        """Return the key of an address."""

    def tag(self, item: Item) -> tuple[str, ...]:
        """Return an identifier of an item's key."""
        return tuple(item[name]["S"] for name in self.keys)

    @abstractmethod
    async def span(self, name: StreamName, span: RecordRange, fields: Fields) -> StreamItems:
        """Return the records of a range, in order, and the state of the stream."""

    @abstractmethod
    async def names(self, reach: StreamRange) -> list[StreamName]:
        """Return the next streams in a range; fewer than the limit only at the end."""

    @abstractmethod
    def listing(self, names: Iterable[StreamName]) -> dict[Address, Item]:
        """Return the actions that list new streams."""

    @abstractmethod
    async def unlisting(self, name: StreamName) -> list[Item]:
        """Return the actions that remove a stream from the list."""

    @abstractmethod
    def pointers(self, name: StreamName, seq: int, labels: dict[str, str]) -> list[Address]:
        """Return the addresses of the items that point to a record."""

    @abstractmethod
    async def state_attributes(self, change: StreamChange) -> Item | None:
        """Return additional attributes of a changed state; None if the stream has changed."""

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        """Return the seqs of records with a label of these values; None without an index of labels."""
        return None

    def cache(self, state: StreamState, item: Item) -> None:
        """Cache the additional attributes of a stored state."""
        return

    async def make_room(self, address: Address) -> bool:
        """Split a part of the list whose condition has failed; return False if there was enough room."""
        return False

    async def find(self, name: StreamName, keys: Iterable[str], fields: Fields) -> StreamItems:
        """Return the records of some keys, in any order, and the state of the stream."""
        wanted = [self.key(address) for address in {record_at(name, key) for key in keys}]
        first = max(len(wanted) - MOST_READ + 1, 0)
        found = await self.table.get(wanted[:first], fields)
        found += await self.table.get([*wanted[first:], self.key(state_at(name))], fields)
        state = next((item for item in found if "record" not in item), None)
        return state, [item for item in found if "record" in item]

    async def state(self, name: StreamName) -> Item | None:
        found = await self.table.get([self.key(state_at(name))], self.state_fields)
        return found[0] if found else None


class IndexedLayout(Layout):
    """A table with a hash key, a range key and an index of seqs: a stream is one partition."""

    def __init__(self, table: Table, partition: str, sort: str) -> None:
        super().__init__(table, partition, sort)
        self._partition = partition
        self._sort = sort
        self._labeled = Fields(sort, "key")
        self._keys: OrderedDict[tuple[StreamName, int], str] = OrderedDict()
        """Cached keys of records that were found by labels, by stream and seq."""

    def key(self, address: Address) -> Item:
        return {self._partition: {"S": address.partition}, self._sort: {"S": address.sort}}

    async def span(self, name: StreamName, span: RecordRange, fields: Fields) -> StreamItems:
        if span.seqs is not None:
            return await self._at(name, span.seqs, fields)
        if span.reverse and span.after is not None:
            found, _ = await self._query(name, 0, span.after - 1, fields, reverse=True, limit=span.limit)
            return await self.state(name), found
        # The state is last, so it is read with the newest records, or with all of a short stream.
        low = 0 if span.after is None else span.after + 1
        found, pages = await self._query(name, low, LAST, fields, reverse=span.reverse, limit=span.limit + 1)
        records = [item for item in found if "record" in item]
        if len(records) < len(found) and pages == 1:
            return found[0 if span.reverse else -1], records
        return await self.state(name), records[: span.limit]

    async def _at(self, name: StreamName, seqs: Sequence[int], fields: Fields) -> StreamItems:
        keys = [self._keys[name, seq] for seq in seqs if (name, seq) in self._keys]
        state, found = await self.find(name, keys, fields)
        by_seq = _by_seq(found)
        # The cached key may be of a dropped stream.
        if unknown := [seq for seq in seqs if seq not in by_seq]:
            for more, _ in await gather_bounded(self._query(name, seq, seq, fields) for seq in unknown):
                by_seq |= _by_seq(more)
            state = await self.state(name)
        return state, [by_seq[seq] for seq in seqs if seq in by_seq]

    async def _query(self, name: StreamName, low: int, high: int, fields: Fields, **how: Any) -> tuple[list[Item], int]:
        within = {self._partition: {"S": stream_partition(name)}}
        between = (INDEX, {"N": str(low)}, {"N": str(high)}) if low or high < LAST else None
        return await self.table.query(within, between, fields, index=INDEX, **how)

    async def state_attributes(self, change: StreamChange) -> Item | None:
        return {INDEX: {"N": str(LAST)}}

    def pointers(self, name: StreamName, seq: int, labels: dict[str, str]) -> list[Address]:
        return [Address(label_partition(name, *label), f"{seq:019}") for label in labels.items()]

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        found = await gather_bounded(
            self.table.query({self._partition: {"S": label_partition(name, label, value)}}, None, self._labeled)
            for value in set(values)
        )
        seqs: list[int] = []
        for item in (item for some, _ in found for item in some):
            seqs.append(int(item[self._sort]["S"]))
            self._keys[name, seqs[-1]] = attribute(item, "key", "S")
        while len(self._keys) > MOST_CACHED:
            self._keys.popitem(last=False)
        return seqs

    def listing(self, names: Iterable[StreamName]) -> dict[Address, Item]:
        actions = {}
        for name in names:
            address = Address(list_part(name[0]), listed_as(name))
            item = {**self.key(address), "scope": {"S": name[0]}, "kind": {"S": name[1]}}
            actions[address] = {"Put": {"Item": item}}
        return actions

    async def unlisting(self, name: StreamName) -> list[Item]:
        return [{"Delete": {"Key": self.key(Address(list_part(name[0]), listed_as(name)))}}]

    async def names(self, reach: StreamRange) -> list[StreamName]:
        found = await gather_bounded(self._listed(part, reach) for part in list_parts(reach))
        return list(heapq.merge(*found, reverse=reach.reverse))[: reach.limit]

    async def _listed(self, part: str, reach: StreamRange) -> list[StreamName]:
        """Return the next requested streams of one part of the list."""
        scope = reach.scope
        ranges = [(f"{scope}{BREAK}", f"{scope}\x01")]
        if reach.below:
            ranges = [*ranges, (f"{scope}/", f"{scope}0")] if scope else [(BREAK, TOP * (CUT + 1))]
        names: list[StreamName] = []
        for low, high in reversed(ranges) if reach.reverse else ranges:
            async with aclosing(self._walk(part, low, high, reach)) as walk:
                async for name in walk:
                    if len(names) == reach.limit:
                        return names
                    # A cut name may be outside the range.
                    if low <= BREAK.join(name) < high and reach.includes(name):
                        names.append(name)
        return names

    async def _walk(self, part: str, low: str, high: str, reach: StreamRange) -> AsyncGenerator[StreamName, None]:
        """Yield the streams of a range of one part of the list, in order."""
        first, last = low[:CUT], high[:CUT] + TOP
        if reach.after is not None:
            edge = BREAK.join(reach.after)[:CUT]
            first, last = (first, min(last, edge + TOP)) if reach.reverse else (max(first, edge), last)
        if first > last:
            return
        within, between = {self._partition: {"S": part}}, (self._sort, {"S": first}, {"S": last})
        page = max(reach.limit, LISTED_AT_ONCE)
        same: list[StreamName] = []
        async with aclosing(self.table.pages(within, between, LISTED, reverse=reach.reverse, page=page)) as pages:
            async for items in pages:
                for item in items:
                    name = (attribute(item, "scope", "S"), attribute(item, "kind", "S"))
                    # Names that are cut to the same text are not in order among themselves.
                    if same and BREAK.join(name)[:CUT] != BREAK.join(same[-1])[:CUT]:
                        for each in sorted(same, reverse=reach.reverse):
                            yield each
                        same = []
                    same.append(name)
        for each in sorted(same, reverse=reach.reverse):
            yield each


def listed_as(name: StreamName) -> str:
    """Return the position of a stream in the list: its name, cut if it is too long."""
    text = BREAK.join(name)
    return text if len(text) <= CUT else f"{text[:CUT]}{BREAK}{BREAK}{digest(text)}"


def list_part(scope: str) -> str:
    tenant = scope.partition("/")[0]
    return f"d{BREAK}{int(digest(tenant)[:8], 16) % PARTS}"


def list_parts(reach: StreamRange) -> list[str]:
    if reach.scope or not reach.below:
        return [list_part(reach.scope)]
    return [f"d{BREAK}{n}" for n in range(PARTS)]


def _by_seq(items: Iterable[Item]) -> dict[int, Item]:
    return {int(attribute(item, "seq", "N")): item for item in items}
