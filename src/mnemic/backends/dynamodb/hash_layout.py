"""Layout of a table with only a hash key, such as one made by another application.

Every item is found by computing its key. The state of a stream has the ranges of seqs that may exist, and an item
for each seq has the key of its record. The list of streams is in parts, each a set of names; a full part is split
into sixteen by the hash of the names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import json

from ...records import StreamName
from ...store.codec import damaged
from ...store.stream_state import StreamChange, StreamState
from ..keyvalue.engine import RecordRange, StreamRange
from .client import Fields, Item, Table, attribute
from .codec import BREAK, MAX_PARTITION, Address, decode_state, digest, stream_partition, text_or_hash
from .layout import Layout, StreamItems, list_part, list_parts

OURS = f"mnemic{BREAK}"
"""Prefix of Mnemic's keys: everything else in the table is ignored."""
MOST_NAMES = 150
"""Maximum number of names in a part of the list before it is split."""
MOST_RANGES = 200
"""Maximum number of ranges of seqs; beyond it the narrowest gaps are closed."""
MOST_CACHED = 10_000
"""How many streams' ranges are cached."""

Ranges = list[tuple[int, int]]
"""First and last seq of each range, in order."""

POINTER = Fields("key")
LISTED = Fields("names", "split", "part")

_decode_ranges = json.Decoder(Ranges).decode


class HashLayout(Layout):
    """A table in which every item is found by computing its key."""

    def __init__(self, table: Table, partition: str) -> None:
        super().__init__(table, partition)
        self._partition = partition
        self._ranges: OrderedDict[StreamName, tuple[int, Ranges]] = OrderedDict()
        """Cached ranges of streams, with the revision."""
        self._split: set[str] = set()
        """Parts of the list known to be split."""

    def key(self, address: Address) -> Item:
        whole = f"{OURS}{address.partition}\x01{address.sort}"
        return {self._partition: {"S": OURS + text_or_hash(whole, MAX_PARTITION - len(OURS))}}

    async def span(self, name: StreamName, span: RecordRange, fields: Fields) -> StreamItems:
        if span.seqs is not None:
            return await self._at(name, span.seqs, fields)
        state = await self.state(name)
        if state is None or "pending" in state:
            return state, []
        found: list[Item] = []
        seqs = seqs_of(ranges_of(state), span.after, reverse=span.reverse)
        while some := list(islice(seqs, span.limit - len(found))):
            state, records = await self._at(name, some, fields)
            found += records
        return state, found

    async def _at(self, name: StreamName, seqs: Sequence[int], fields: Fields) -> StreamItems:
        addresses = (address for seq in seqs for address in self.pointers(name, seq, {}))
        pointers = await self.table.get([self.key(address) for address in addresses], POINTER)
        state, found = await self.find(name, [attribute(item, "key", "S") for item in pointers], fields)
        by_seq = {int(attribute(item, "seq", "N")): item for item in found}
        return state, [by_seq[seq] for seq in seqs if seq in by_seq]

    def pointers(self, name: StreamName, seq: int, labels: dict[str, str]) -> list[Address]:
        return [Address(stream_partition(name), f"p{seq:019}")]

    async def state_attributes(self, change: StreamChange) -> Item | None:
        before, ranges = change.before, Ranges()
        if before is not None and not change.dropped:
            revision, ranges = self._ranges.get(change.name, (0, ranges))
            if revision != before.revision:
                item = await self.state(change.name)
                if item is None or "stream" not in item or decode_state(item).revision != before.revision:
                    return None
                ranges = ranges_of(item)
        added = [record.seq for record in change.added]
        ranges = changed_ranges(ranges, added, [record.seq for record in change.removed])
        return {"ranges": {"S": json.encode(ranges).decode()}}

    def cache(self, state: StreamState, item: Item) -> None:
        self._ranges[state.name] = (state.revision, ranges_of(item))
        self._ranges.move_to_end(state.name)
        while len(self._ranges) > MOST_CACHED:
            self._ranges.popitem(last=False)

    async def names(self, reach: StreamRange) -> list[StreamName]:
        found: set[StreamName] = set()
        parts = list_parts(reach)
        while parts:
            items = await self.table.get([self.key(_part(part)) for part in parts], LISTED)
            parts = []
            for item in items:
                for text in _names(item):
                    scope, _, kind = text.partition(BREAK)
                    found.add((scope, kind))
                if "split" in item:
                    part = attribute(item, "part", "S")
                    parts += [f"{part}{digit:x}" for digit in range(16)]
        return sorted((name for name in found if reach.includes(name)), reverse=reach.reverse)[: reach.limit]

    def listing(self, names: Iterable[StreamName]) -> dict[Address, Item]:
        parts: dict[str, list[str]] = {}
        for name in names:
            parts.setdefault(self._path(name)[-1], []).append(BREAK.join(name))
        return {
            _part(part): {
                "Update": {
                    "Key": self.key(_part(part)),
                    "UpdateExpression": "ADD #names :names SET #part = :part",
                    "ConditionExpression": "attribute_not_exists(#split) AND "
                    "(attribute_not_exists(#names) OR size(#names) < :most)",
                    "ExpressionAttributeNames": {"#names": "names", "#split": "split", "#part": "part"},
                    "ExpressionAttributeValues": {
                        ":names": {"SS": texts},
                        ":part": {"S": part},
                        ":most": {"N": str(MOST_NAMES)},
                    },
                }
            }
            for part, texts in parts.items()
        }

    async def unlisting(self, name: StreamName) -> list[Item]:
        text = BREAK.join(name)
        parts = [self.key(_part(part)) for part in await self._whole_path(name)]
        return [
            {
                "Update": {
                    "Key": self.key(_part(attribute(item, "part", "S"))),
                    "UpdateExpression": "DELETE #names :names",
                    "ExpressionAttributeNames": {"#names": "names"},
                    "ExpressionAttributeValues": {":names": {"SS": [text]}},
                }
            }
            for item in await self.table.get(parts, LISTED)
            if text in _names(item)
        ]

    async def make_room(self, address: Address) -> bool:
        found = await self.table.get([self.key(address)], LISTED)
        if not found or ("split" not in found[0] and len(_names(found[0])) < MOST_NAMES):
            return False
        await self.table.call(
            "update_item",
            Key=self.key(address),
            UpdateExpression="SET #split = :yes, #part = :part",
            ExpressionAttributeNames={"#split": "split", "#part": "part"},
            ExpressionAttributeValues={":yes": {"BOOL": True}, ":part": {"S": address.partition}},
        )
        self._split.add(address.partition)
        return True

    def _path(self, name: StreamName) -> list[str]:
        """Return the parts that may list a stream, as far as known; the last one is where it is added."""
        place = digest(BREAK.join(name))
        path = [list_part(name[0])]
        while path[-1] in self._split:
            path.append(f"{path[-1]}{place[len(path) - 1]}")
        return path

    async def _whole_path(self, name: StreamName) -> list[str]:
        while True:
            path = self._path(name)
            found = await self.table.get([self.key(_part(path[-1]))], LISTED)
            if not found or "split" not in found[0]:
                return path
            self._split.add(path[-1])


def ranges_of(item: Item) -> Ranges:
    """Return the ranges of seqs in a stored state; raises UnreadableStoreError if they are damaged."""
    stored = attribute(item, "ranges", "S")
    try:
        return _decode_ranges(stored)
    except ValueError as error:
        raise damaged("list of seqs", stored, error) from error


def changed_ranges(ranges: Ranges, added: Iterable[int], removed: Iterable[int]) -> Ranges:
    """Return ranges without some seqs and with others, which are newer than all existing ones."""
    gone = sorted(removed)
    left: Ranges = []
    at = 0
    for first, last in ranges:
        while at < len(gone) and gone[at] < first:
            at += 1
        while at < len(gone) and gone[at] <= last:
            if gone[at] > first:
                left.append((first, gone[at] - 1))
            first = gone[at] + 1
            at += 1
        if first <= last:
            left.append((first, last))
    for seq in sorted(added):
        if left and left[-1][1] == seq - 1:
            left[-1] = (left[-1][0], seq)
        else:
            left.append((seq, seq))
    while len(left) > MOST_RANGES:
        gap = min(range(1, len(left)), key=lambda n: left[n][0] - left[n - 1][1])
        left[gap - 1 : gap + 1] = [(left[gap - 1][0], left[gap][1])]
    return left


def seqs_of(ranges: Ranges, after: int | None, *, reverse: bool) -> Iterator[int]:
    """Yield the seqs of ranges in order or in reverse, after a start."""
    for first, last in reversed(ranges) if reverse else ranges:
        if reverse:
            yield from range(last if after is None else min(last, after - 1), first - 1, -1)
        else:
            yield from range(first if after is None else max(first, after + 1), last + 1)


def _names(item: Item) -> list[str]:
    return list(attribute(item, "names", "SS")) if "names" in item else []


def _part(part: str) -> Address:
    return Address(part, "d")
