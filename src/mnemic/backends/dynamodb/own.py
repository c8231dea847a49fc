"""Layout of Mnemic's own table: a partition per stream, with an index of seqs."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from ...store.planning import StreamName
from ..keyvalue.engine import Change, Reach, Span
from . import addresses
from .addresses import BREAK, Address
from .layout import Layout, bucket, buckets, wanted
from .table import Fields, Item, Table, together

INDEX = "seq"
"""StreamName of the index, and of its sort attribute."""
LAST = 10**17
"""Position of the head in the index: after all records, so that the newest are read along with it."""

CUT = 225
"""Length to which names are cut in the directory, to fit into a key."""
LISTED_AT_ONCE = 100
"""Minimum number of names per read, since some may not match."""
REMEMBERED = 50_000
"""How many keys are cached by seq."""
LISTED = Fields("scope", "kind")
TOP = "\U0010ffff"
"""The last Unicode character, which a name may contain."""
END = TOP * (CUT + 1)
"""Sorts after every name, cut or not."""


class OwnLayout(Layout):
    """A table with a hash key, a range key and an index of seqs within each partition."""

    labels = True

    def __init__(self, table: Table, partition: str, sort: str) -> None:
        super().__init__(table, partition, sort)
        self._partition = partition
        self._sort = sort
        self._labelled = Fields(sort, "key")
        self._keys: OrderedDict[tuple[StreamName, int], str] = OrderedDict()
        """Cached keys of records that were found by labels, by stream and seq."""

    def key(self, address: Address) -> Item:
        return {self._partition: {"S": address.partition}, self._sort: {"S": address.sort}}

    async def span(self, name: StreamName, span: Span, fields: Fields) -> tuple[Item | None, list[Item]]:
        within = {self._partition: {"S": addresses.stream(name)}}
        if span.seqs is not None:
            return await self._at(name, within, span.seqs, fields)
        if span.reverse and span.after is not None:
            items, _ = await self._query(within, 0, span.after - 1, fields, reverse=True, limit=span.limit)
            return await self.read_head(name), items
        # The head is last, so it is read with the newest records, or with all of a short stream.
        low = 0 if span.after is None else span.after + 1
        found, pages = await self._query(within, low, LAST, fields, reverse=span.reverse, limit=span.limit + 1)
        items = [item for item in found if "record" in item]
        if len(items) < len(found) and pages == 1:
            return found[0 if span.reverse else -1], items
        return await self.read_head(name), items[: span.limit]

    async def names(self, reach: Reach) -> list[StreamName]:
        found = await together(self._listed(part, reach) for part in buckets(reach))
        merged = heapq.merge(*found, reverse=reach.reverse)
        return [name for _, name in zip(range(reach.limit), merged, strict=False)]

    async def enter(self, entered: Sequence[StreamName], left: Sequence[StreamName]) -> dict[Address, Item]:
        actions: dict[Address, Item] = {}
        for name in (*entered, *left):
            at = Address(bucket(name[0]), _listed_as(name))
            item = {"scope": {"S": name[0]}, "kind": {"S": name[1]}}
            key = self.key(at)
            actions[at] = {"Put": {"Item": key | item}} if name in entered else {"Delete": {"Key": key}}
        return actions

    async def head(self, change: Change) -> Item | None:
        return {INDEX: {"N": str(LAST)}}

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        found = await together(
            self.table.query({self._partition: {"S": addresses.label(name, label, value)}}, None, self._labelled)
            for value in set(values)
        )
        seqs: list[int] = []
        for item in (item for some, _ in found for item in some):
            seq = int(item[self._sort]["S"])
            self._keys[name, seq] = item["key"]["S"]
            seqs.append(seq)
        while len(self._keys) > REMEMBERED:
            self._keys.popitem(last=False)
        return seqs

    async def _at(
        self, name: StreamName, within: Item, seqs: Sequence[int], fields: Fields
    ) -> tuple[Item | None, list[Item]]:
        """Return the head, and the records of some seqs, in order."""
        keys = [self._keys[name, seq] for seq in seqs if (name, seq) in self._keys]
        head, items = await self.find(name, keys, fields)
        by_seq = {int(item["seq"]["N"]): item for item in items}
        # The cached key may be of a dropped stream.
        if unknown := [seq for seq in seqs if seq not in by_seq]:
            for found, _ in await together(self._query(within, seq, seq, fields) for seq in unknown):
                by_seq |= {int(item["seq"]["N"]): item for item in found}
            head = await self.read_head(name)
        return head, [by_seq[seq] for seq in seqs if seq in by_seq]

    async def _query(self, within: Item, low: int, high: int, fields: Fields, **how: Any) -> tuple[list[Item], int]:
        between = (INDEX, {"N": str(low)}, {"N": str(high)}) if low or high < LAST else None
        return await self.table.query(within, between, fields, index=INDEX, **how)

    async def _listed(self, part: str, reach: Reach) -> list[StreamName]:
        """Return the next requested streams of one directory partition."""
        scope = reach.scope
        ranges = [(f"{scope}{BREAK}", f"{scope}\x01")]
        if reach.below:
            ranges = [*ranges, (f"{scope}/", f"{scope}0")] if scope else [(BREAK, END)]
        names: list[StreamName] = []
        for low, high in reversed(ranges) if reach.reverse else ranges:
            async with aclosing(self._walk(part, low, high, reach)) as walk:
                async for name in walk:
                    if len(names) == reach.limit:
                        return names
                    # A cut name may be outside the range.
                    if low <= BREAK.join(name) < high and wanted(name, reach):
                        names.append(name)
        return names

    async def _walk(self, part: str, low: str, high: str, reach: Reach) -> AsyncGenerator[StreamName, None]:
        """Yield the streams of a range of one directory partition, in order."""
        first, last = _cut(low), _cut(high) + TOP
        if reach.after is not None:
            edge = _cut(BREAK.join(reach.after))
            first, last = (first, min(last, edge + TOP)) if reach.reverse else (max(first, edge), last)
        if first > last:
            return
        within, between = {self._partition: {"S": part}}, (self._sort, {"S": first}, {"S": last})
        at_once = max(reach.limit, LISTED_AT_ONCE)
        run: list[StreamName] = []
        async with aclosing(self.table.pages(within, between, LISTED, reverse=reach.reverse, at_once=at_once)) as pages:
            async for page in pages:
                for item in page:
                    name = (item["scope"]["S"], item["kind"]["S"])
                    # Names cut to the same text are not in order among themselves.
                    if run and not (_is_cut(name) and _cut(BREAK.join(name)) == _cut(BREAK.join(run[-1]))):
                        for each in sorted(run, reverse=reach.reverse):
                            yield each
                        run = []
                    run.append(name)
        for each in sorted(run, reverse=reach.reverse):
            yield each


def _listed_as(name: StreamName) -> str:
    text = BREAK.join(name)
    return f"{_cut(text)}{BREAK}{BREAK}{addresses.digest(text)}" if _is_cut(name) else text


def _is_cut(name: StreamName) -> bool:
    return len(BREAK.join(name)) > CUT


def _cut(text: str) -> str:
    return text[:CUT]
