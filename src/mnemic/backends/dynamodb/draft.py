"""Transaction actions of a batch: one per item."""

from __future__ import annotations

from ...store.planning import StreamName
from ..keyvalue.engine import Batch, Change
from ..keyvalue.kept import Kept
from . import addresses, items
from .addresses import Address
from .chunks import Chunks
from .layout import Layout
from .table import Item

MOST_ITEMS = 100
"""Maximum number of items in a transaction."""


class Draft:
    """Actions of a batch, by address, and the items to write first."""

    def __init__(self, layout: Layout, chunks: Chunks) -> None:
        self.records: dict[Address, Item] = {}
        """Actions on records, which may be applied one by one, in any order."""
        self.heads: dict[StreamName, Item] = {}
        """Attributes of the new heads."""
        self.entries: dict[Address, Item] = {}
        """Actions on the directory, which may turn out to be full."""
        self.before: list[Item] = []
        self.touched: list[tuple[StreamName, str]] = []
        """Existing records that are removed or changed."""
        self._batch = Batch([])
        self._layout = layout
        self._chunks = chunks

    async def add(self, batch: Batch) -> bool:
        """Add a batch; return False if a stream is known to have another revision."""
        self._batch = batch
        for change in batch.changes:
            if change.head is not None and not change.same:
                more = await self._layout.head(change)
                if more is None:
                    return False
                self.heads[change.name] = items.put_head(change.head) | more
            self._add_records(change)
        self.entries = await self._layout.enter(
            [change.name for change in batch.changes if change.expected is None and change.head is not None],
            [change.name for change in batch.changes if change.expected is not None and change.head is None],
        )
        return True

    def head_actions(self, bulk: str | None = None) -> dict[Address, Item]:
        """Return the actions on heads; with a bulk, they mark its streams as waiting for it."""
        actions: dict[Address, Item] = {}
        mark: Item = {} if bulk is None else {"bulk": {"S": bulk}, "pending": {"BOOL": True}}
        for change in self._batch.changes:
            at = addresses.head(change.name)
            condition = expected(change.expected, self._layout)
            values = self.heads.get(change.name, {}) | mark
            if values:
                # A stream that a bulk drops keeps an item without a state until the bulk is applied.
                removed = ["stream", "revision"] if change.head is None else []
                actions[at] = _update(self._layout.key(at), values, removed, condition)
            else:
                kind = "ConditionCheck" if change.same else "Delete"
                actions[at] = {kind: {"Key": self._layout.key(at), **condition}}
        return actions

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
        "ConditionExpression": "#revision = :revision AND attribute_not_exists(#pending)",
        "ExpressionAttributeNames": {"#revision": "revision", "#pending": "pending"},
        "ExpressionAttributeValues": {":revision": {"N": str(revision)}},
    }


def _labels(name: StreamName, seq: int, labels: dict[str, str]) -> list[Address]:
    return [Address(addresses.label(name, label, value), f"{seq:019}") for label, value in labels.items()]


def _update(key: Item, values: Item, removed: list[str], condition: Item | None = None) -> Item:
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
    for part, value in (condition or {}).items():
        update[part] = update[part] | value if part in update else value
    return {"Update": update}
