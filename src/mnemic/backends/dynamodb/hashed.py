"""Layout of a table with only a hash key, such as one made by another application."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ...store.planning import StreamName
from ..keyvalue.engine import Change, Reach, Span
from ..keyvalue.kept import KeptHead, decode_head
from . import addresses, runs
from .addresses import BREAK, Address
from .layout import Layout, bucket, buckets, wanted
from .runs import Runs
from .table import Fields, Item, Table, expiry

OURS = f"mnemic{BREAK}"
"""Prefix of Mnemic's keys: everything else in the table is ignored."""
ROOM = 8192
"""Maximum size of names in a part of the directory before it is split."""
REMEMBERED = 10_000
"""How many streams' seqs are cached."""

PLACE = Fields("key")
LISTED = Fields("names", "split", "part")


class HashedLayout(Layout):
    """A table in which every item is found by computing its key."""

    labels = False

    def __init__(self, table: Table, partition: str) -> None:
        super().__init__(table, partition)
        self._partition = partition
        self._runs: OrderedDict[StreamName, tuple[int, Runs]] = OrderedDict()
        """Cached seqs of streams, with the revision."""
        self._split: set[str] = set()
        """Directory parts known to be split."""

    def key(self, address: Address) -> Item:
        whole = f"{OURS}{address.partition}\x01{address.sort}"
        return {self._partition: {"S": OURS + addresses.short(whole, addresses.MAX_PARTITION - len(OURS))}}

    async def span(self, name: StreamName, span: Span, fields: Fields) -> tuple[Item | None, list[Item]]:
        if span.seqs is not None:
            return await self._at(name, list(span.seqs), fields)
        head = await self.read_head(name)
        if head is None or "pending" in head:
            return head, []
        found: list[Item] = []
        left = runs.seqs(runs.parse(head["runs"]["S"]), span.after, reverse=span.reverse)
        while len(found) < span.limit:
            some = [seq for _, seq in zip(range(span.limit - len(found)), left, strict=False)]
            if not some:
                break
            head, items = await self._at(name, some, fields)
            found += items
        return head, found

    async def names(self, reach: Reach) -> list[StreamName]:
        found: list[StreamName] = []
        parts = buckets(reach)
        while parts:
            items = await self.table.get([self.key(_part(part)) for part in parts], LISTED)
            parts = []
            for item in items:
                for text in item.get("names", {"SS": ()})["SS"]:
                    scope, _, kind = text.partition(BREAK)
                    found.append((scope, kind))
                if "split" in item:
                    parts += _within(item["part"]["S"])
        return sorted((n for n in set(found) if wanted(n, reach)), reverse=reach.reverse)[: reach.limit]

    async def enter(self, entered: Sequence[StreamName], left: Sequence[StreamName]) -> dict[Address, Item]:
        gone = await self._listing(left) if left else {}
        new: dict[str, list[StreamName]] = {}
        for name in entered:
            part = self._way(name)[-1]
            if part in gone:
                # One action cannot both add to and remove from a set, so the new name goes to a lower part.
                await self._split_up(part)
                part = self._way(name)[-1]
            new.setdefault(part, []).append(name)
        return {
            **{_part(part): {"Update": self._less(part, names)} for part, names in gone.items()},
            **{_part(part): {"Update": self._more(part, names)} for part, names in new.items()},
        }

    def _more(self, part: str, names: Sequence[StreamName]) -> Item:
        return {
            "Key": self.key(_part(part)),
            "UpdateExpression": "ADD #names :names, #size :size SET #part = :part",
            "ConditionExpression": "attribute_not_exists(#split) AND (attribute_not_exists(#size) OR #size < :room)",
            "ExpressionAttributeNames": {"#names": "names", "#size": "size", "#split": "split", "#part": "part"},
            "ExpressionAttributeValues": {
                ":names": {"SS": _texts(names)},
                ":size": {"N": str(_size(names))},
                ":part": {"S": part},
                ":room": {"N": str(ROOM)},
            },
        }

    def _less(self, part: str, names: Sequence[StreamName]) -> Item:
        return {
            "Key": self.key(_part(part)),
            "UpdateExpression": "DELETE #names :names ADD #size :size",
            "ExpressionAttributeNames": {"#names": "names", "#size": "size"},
            "ExpressionAttributeValues": {":names": {"SS": _texts(names)}, ":size": {"N": str(-_size(names))}},
        }

    async def _listing(self, names: Sequence[StreamName]) -> dict[str, list[StreamName]]:
        """Return the directory parts that list these streams."""
        found: dict[str, list[StreamName]] = {}
        for name in names:
            (text,) = _texts([name])
            way = await self._whole_way(name)
            for item in await self.table.get([self.key(_part(part)) for part in way], LISTED):
                if text in item.get("names", {"SS": ()})["SS"]:
                    found.setdefault(item["part"]["S"], []).append(name)
        return found

    async def make_room(self, address: Address) -> bool:
        found = await self.table.get([self.key(address)], Fields("split", "size"))
        if not found or ("split" not in found[0] and int(found[0].get("size", {"N": "0"})["N"]) < ROOM):
            return False
        await self._split_up(address.partition)
        return True

    async def _split_up(self, part: str) -> None:
        await self.table.call(
            "update_item",
            Key=self.key(_part(part)),
            UpdateExpression="SET #split = :yes, #part = :part",
            ExpressionAttributeNames={"#split": "split", "#part": "part"},
            ExpressionAttributeValues={":yes": {"BOOL": True}, ":part": {"S": part}},
        )
        self._split.add(part)

    async def head(self, change: Change) -> Item | None:
        held: Runs = []
        if change.expected is not None:
            known = self._runs.get(change.name)
            if known is None or known[0] != change.expected:
                item = await self.read_head(change.name)
                if item is None or "stream" not in item or decode_head(item["stream"]["S"]).revision != change.expected:
                    return None
                known = (change.expected, runs.parse(item["runs"]["S"]))
            held = known[1]
        if change.head is None:
            return {}
        held = runs.change(held, change.new, (seq for seq, _ in change.removed))
        return {"runs": {"S": runs.text(held)}}

    def notice(self, head: KeptHead, item: Item) -> None:
        self._runs[head.name] = (head.revision, runs.parse(item["runs"]["S"]))
        self._runs.move_to_end(head.name)
        while len(self._runs) > REMEMBERED:
            self._runs.popitem(last=False)

    def places(self, change: Change) -> dict[Address, Item | None]:
        items: dict[Address, Item | None] = {addresses.place(change.name, seq): None for seq, _ in change.removed}
        for kept in change.put:
            ttl = expiry(kept.expires)
            place = {"key": {"S": kept.key}, **({} if ttl is None else {"ttl": ttl})}
            items[addresses.place(change.name, kept.seq)] = place
        return items

    async def _at(self, name: StreamName, seqs: list[int], fields: Fields) -> tuple[Item | None, list[Item]]:
        """Return the head, and the records of some seqs, in order."""
        places = await self.table.get([self.key(addresses.place(name, seq)) for seq in seqs], PLACE)
        head, items = await self.find(name, [item["key"]["S"] for item in places], fields)
        by_seq = {int(item["seq"]["N"]): item for item in items}
        return head, [by_seq[seq] for seq in seqs if seq in by_seq]

    def _way(self, name: StreamName) -> list[str]:
        """Return the directory parts that may list a stream, as far as known."""
        place = addresses.digest(BREAK.join(name))
        way = [bucket(name[0])]
        while way[-1] in self._split:
            way.append(f"{way[-1]}{place[len(way) - 1]}")
        return way

    async def _whole_way(self, name: StreamName) -> list[str]:
        """Return all directory parts that may list a stream."""
        while True:
            way = self._way(name)
            found = await self.table.get([self.key(_part(way[-1]))], LISTED)
            if not found or "split" not in found[0]:
                return way
            self._split.add(way[-1])


def _texts(names: Sequence[StreamName]) -> list[str]:
    return [BREAK.join(name) for name in names]


def _size(names: Sequence[StreamName]) -> int:
    return sum(len(text.encode()) for text in _texts(names))


def _part(part: str) -> Address:
    return Address(part, "d")


def _within(part: str) -> list[str]:
    """Return the parts that a directory part is split into."""
    return [f"{part}{digit}" for digit in "0123456789abcdef"]
