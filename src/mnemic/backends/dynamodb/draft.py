"""Transaction actions of a batch: one per item."""

from __future__ import annotations

from ...store.planning import StreamName
from ..keyvalue.engine import Batch, Change
from ..keyvalue.kept import Kept
from . import addresses, items
from .addresses import Address
from .chunks import Chunks
from .layout import Layout
from .table import Item, size_of

MOST_ITEMS = 100
"""Maximum number of items in a transaction."""
WHOLE = 300_000
"""Maximum size of a journal entry in one item."""


class Draft:
    """Actions of a batch, by address, and the items to write first."""

    def __init__(self, layout: Layout, chunks: Chunks) -> None:
        self.records: dict[Address, Item] = {}
        """Actions on records, which may be applied one by one, in any order."""
        self.rest: dict[Address, Item] = {}
        """Heads."""
        self.entries: dict[Address, Item] = {}
        """Actions on the directory, which may turn out to be full."""
        self.before: list[Item] = []
        self.touched: list[tuple[StreamName, str]] = []
        """Existing records that are removed or changed."""
        self._layout = layout
        self._chunks = chunks

    async def add(self, batch: Batch) -> bool:
        """Add a batch; return False if a stream is known to have another revision."""
        for change in batch.changes:
            if not await self._add_head(change):
                return False
            self._add_records(change)
        self.entries = await self._layout.enter(
            [change.name for change in batch.changes if change.expected is None and change.head is not None],
            [change.name for change in batch.changes if change.expected is not None and change.head is None],
        )
        return True

    async def _add_head(self, change: Change) -> bool:
        key = self._layout.key(addresses.head(change.name))
        at = addresses.head(change.name)
        if change.same:
            self.rest[at] = {"ConditionCheck": {"Key": key, **expected(change.expected, self._layout)}}
            return True
        more = await self._layout.head(change)
        if more is None:
            return False
        if change.head is None:
            self.rest[at] = {"Delete": {"Key": key, **expected(change.expected, self._layout)}}
        else:
            item = {**key, **items.put_head(change.head), **more}
            self.rest[at] = {"Put": {"Item": item, **expected(change.expected, self._layout)}}
        return True

    def _add_records(self, change: Change) -> None:
        name, layout = change.name, self._layout
        for _, key in change.removed:
            at = addresses.record(name, key)
            self.records[at] = {"Delete": {"Key": layout.key(at)}}
            self.touched.append((name, key))
        if layout.labels:
            for seq, labels in change.lost_labels:
                for at in _labels(name, seq, labels):
                    self.records[at] = {"Delete": {"Key": layout.key(at)}}
        for at, place in layout.places(change).items():
            item = layout.key(at)
            self.records[at] = {"Delete": {"Key": item}} if place is None else {"Put": {"Item": item | place}}
        derived: dict[int, list[tuple[str, int, bytes | None]]] = {}
        for seq, attribute, version, value in change.derived:
            derived.setdefault(seq, []).append((attribute, version, value))
        absent = set(change.absent)
        for kept in change.put:
            self._put(change, kept, derived.pop(kept.seq, []), new=kept.key in absent)
            absent.discard(kept.key)
        for seq, values in derived.items():
            at = addresses.record(name, change.keys[seq])
            self.records[at] = _update(layout.key(at), *self._derived(values, None))
            self.touched.append((name, change.keys[seq]))
        for key in absent:
            at = addresses.record(name, key)
            self.records[at] = {"ConditionCheck": {"Key": layout.key(at), **expected(None, layout)}}

    def _put(self, change: Change, kept: Kept, derived: list[tuple[str, int, bytes | None]], *, new: bool) -> None:
        layout = self._layout
        at = addresses.record(change.name, kept.key)
        attributes, before = items.put_record(kept, self._chunks)
        self.before += before
        ttl = attributes.get("ttl")
        values, removed = self._derived(derived, ttl)
        if kept.seq in change.new:
            item = {**layout.key(at), **attributes, **values}
            self.records[at] = {"Put": {"Item": item, **(expected(None, layout) if new else {})}}
        else:
            # Derived values that are not named here stay.
            removed += [name for name in ("importance", "body", "ttl") if name not in attributes]
            self.records[at] = _update(layout.key(at), {**attributes, **values}, removed)
            self.touched.append((change.name, kept.key))
        if layout.labels:
            for place in _labels(change.name, kept.seq, kept.labels):
                label = {**layout.key(place), **({} if ttl is None else {"ttl": ttl})}
                self.records[place] = {"Put": {"Item": {**label, "key": {"S": kept.key}}}}

    def _derived(self, values: list[tuple[str, int, bytes | None]], ttl: Item | None) -> tuple[Item, list[str]]:
        """Return derived values as attributes, and the names of those to remove."""
        kept: Item = {}
        removed = []
        for name, version, value in values:
            attribute = items.derived_attribute(name)
            if value is None:
                removed.append(attribute)
                continue
            kept[attribute], before = items.put_derived(version, value, self._chunks, ttl)
            if before:
                kept["large"] = {"BOOL": True}
                self.before += before
        return kept, removed


def expected(revision: int | None, layout: Layout) -> Item:
    """Return the condition that a stream has a revision, or does not exist if that is None."""
    if revision is None:
        return {"ConditionExpression": "attribute_not_exists(#p)", "ExpressionAttributeNames": {"#p": layout.partition}}
    return {
        "ConditionExpression": "#revision = :revision",
        "ExpressionAttributeNames": {"#revision": "revision"},
        "ExpressionAttributeValues": {":revision": {"N": str(revision)}},
    }


def measure(batch: Batch, layout: Layout) -> tuple[int, int]:
    """Return an upper bound of the number of items in a batch, and their approximate size."""
    count = size = 0
    each = 1 if layout.labels else 2
    for change in batch.changes:
        absent = set(change.absent).difference(kept.key for kept in change.put)
        count += 2 + each * (len(change.put) + len(change.removed)) + len(absent)
        if layout.labels:
            count += sum(len(labels) for _, labels in change.lost_labels)
            count += sum(len(kept.labels) for kept in change.put)
        put = {kept.seq for kept in change.put}
        count += len({seq for seq, *_ in change.derived} - put)
        size += 400 * (len(change.put) + len(change.removed)) + 1000
        for kept in change.put:
            size += min(_size(kept), items.WHOLE)
        size += sum(min(len(value or b""), items.WHOLE_DERIVED) for *_, value in change.derived)
    return count, size


def _size(kept: Kept) -> int:
    texts = size_of(kept.text or "") + size_of(kept.title or "")
    return texts + 2 * (size_of(kept.data) + size_of(kept.meta) + size_of(kept.labels))


def _labels(name: StreamName, seq: int, labels: dict[str, str]) -> list[Address]:
    return [Address(addresses.label(name, label, value), f"{seq:019}") for label, value in labels.items()]


def _update(key: Item, values: Item, removed: list[str]) -> Item:
    names = {f"#a{n}": name for n, name in enumerate((*values, *removed))}
    held = list(names)
    sets = ", ".join(f"{name} = :{name[1:]}" for name in held[: len(values)])
    removes = ", ".join(held[len(values) :])
    update: Item = {
        "Key": key,
        "UpdateExpression": " ".join(
            part for part in (sets and f"SET {sets}", removes and f"REMOVE {removes}") if part
        ),
        "ExpressionAttributeNames": names,
    }
    if values:
        update["ExpressionAttributeValues"] = {
            f":{name[1:]}": value for name, value in zip(held, values.values(), strict=False)
        }
    return {"Update": update}
