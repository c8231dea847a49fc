"""The DynamoDB engine of the key-value store."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ...errors import UnreadableStoreError
from ...store.planning import Needs, StreamName
from ...store.protocol import Capability
from ..keyvalue.engine import Batch, Change, Loaded, Reach, Span
from ..keyvalue.kept import KeptHead, Row
from . import addresses, items
from .addresses import Address
from .chunks import Chunks
from .draft import MOST_ITEMS, WHOLE, Draft, expected, measure
from .layout import HEAD, Layout
from .table import ALL, MOST_BYTES, Fields, Item, lots, together

AGAIN = 5
"""How often a record is read again because it changed during the read."""
NOTES_LAST = 40 * 24 * 3600
"""After how many seconds a journal entry may expire: it is left over from an interrupted write."""
REMEMBERED_LARGE = 10_000
LANES = 4
"""Number of concurrent lanes for the steps of a large change."""

NOTE = Fields("value", "digest")


class DynamoEngine:
    """Stores streams in a table."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED, Capability.ATOMIC})
    expires_streams = False
    spans = True

    def __init__(self, layout: Layout) -> None:
        self.url: str = str(layout.table.url)
        self.most = (MOST_ITEMS - 2) // (1 if layout.labels else 2)
        self._layout = layout
        self._table = layout.table
        self._chunks = Chunks(layout)
        self._slot = Fields(*layout.key(Address("", "")), "seq", "stream", "record", "body", "large")
        self._large: OrderedDict[tuple[StreamName, str], None] = OrderedDict()
        """Records known to have values outside their item."""
        self._own: dict[str, bytes] = {}
        """The last large journal entry written here, cached."""

    def partition(self, name: StreamName) -> str:
        return name[0]

    def fits(self, batch: Batch) -> bool:
        count, size = measure(batch, self._layout)
        return count <= MOST_ITEMS and size <= MOST_BYTES

    async def load(self, needs: Needs) -> Loaded:
        loaded = Loaded(slots={name: dict.fromkeys(keys) for name, keys in needs.keys.items()})
        # Heads first: a slot may be newer than its head, never older.
        await self._load_heads(needs, loaded)
        gone = {name for name, head in loaded.heads.items() if head is None}
        places = {
            self._layout.tag(self._layout.key(addresses.record(name, key))): name
            for name, keys in needs.keys.items()
            for key in keys
            if name not in gone
        }
        found = await self._table.get([self._layout.tagged(tag) for tag in places], self._slot)
        self._take_slots(((places[self._layout.tag(item)], item) for item in found), loaded)
        for name in needs.whole:
            _, found = await self._layout.span(name, Span(limit=ALL), self._slot)
            self._take_slots(((name, item) for item in found), loaded)
            loaded.whole.add(name)
        return loaded

    async def _load_heads(self, needs: Needs, loaded: Loaded) -> None:
        loaded.heads = dict.fromkeys(needs.streams)
        places = map(addresses.head, needs.streams)
        for item in await self._table.get([self._layout.key(at) for at in places], HEAD):
            head = items.get_head(item)
            self._layout.notice(head, item)
            loaded.heads[head.name] = head

    def _take_slots(self, found: Iterable[tuple[StreamName, Item]], loaded: Loaded) -> None:
        for name, item in found:
            slot = items.get_slot(item)
            loaded.slots.setdefault(name, {})[slot.key] = slot
            if "body" in item or "large" in item:
                self._large[name, slot.key] = None
        while len(self._large) > REMEMBERED_LARGE:
            self._large.popitem(last=False)

    async def commit(self, batch: Batch) -> bool:
        while True:
            draft = Draft(self._layout, self._chunks)
            if not await draft.add(batch):
                return False
            stale = await self._stale(draft)
            await self._table.write(draft.before)
            actions = {**draft.rest, **draft.entries, **draft.records}
            deletes = [{"Delete": {"Key": key}} for key in stale]
            at_once = deletes[: MOST_ITEMS - len(actions)]
            failed = await self._table.transact([*actions.values(), *at_once])
            if not failed:
                self._settle(batch.changes, draft)
                await self._table.write(deletes=stale[len(at_once) :])
                return True
            await self._table.write(deletes=map(self._layout.key_of, draft.before))
            places = list(actions)
            full = [places[n] for n in failed if places[n] in draft.entries]
            room = [await self._layout.make_room(address) for address in full]
            if len(full) < len(failed) or not any(room):
                return False

    def check(self, batch: Batch) -> None:
        for change in batch.changes:
            for kept in change.put:
                items.check(kept)

    async def carry(self, change: Change, moment: int) -> None:
        draft = Draft(self._layout, self._chunks)
        if not await draft.add(Batch([change], moment)):
            return
        stale = await self._stale(draft)
        await self._table.write(draft.before)
        # Each item is changed once, so concurrent execution of the same steps is harmless.
        steps = list(lots(draft.records.values(), MOST_ITEMS - 1))
        guards = [addresses.head(change.name)]
        last = [*draft.rest.values(), *draft.entries.values()]
        if len(steps) > 2:
            # Transactions that check the same item conflict, so each lane has its own guard. The guards are
            # deleted with the change of the head, so late steps fail.
            head, guards = guards[0], [addresses.guard(change.name, n) for n in range(LANES)]
            at = [self._layout.key(guard) for guard in guards]
            held = {"revision": {"N": str(change.expected)}}
            if await self._table.transact([self._check(head, change), *({"Put": {"Item": key | held}} for key in at)]):
                return
            last += [{"Delete": {"Key": key}} for key in at]

        async def lane(number: int) -> bool:
            check = self._check(guards[number], change)
            for step in steps[number :: len(guards)]:
                if await self._table.transact([check, *step]):
                    return False  # someone else has completed it
            return True

        if all(await together(map(lane, range(len(guards))))) and not await self._table.transact(last):
            self._settle([change], draft)
            await self._table.write(deletes=stale)

    def _check(self, address: Address, change: Change) -> Item:
        return {"ConditionCheck": {"Key": self._layout.key(address), **expected(change.expected, self._layout)}}

    async def _stale(self, draft: Draft) -> list[Item]:
        """Return the keys of parts of large values that are unreferenced after a draft."""
        known = [place for place in draft.touched if place in self._large]
        stale: list[Item] = []
        for name, key in known:
            at = addresses.record(name, key)
            ((_, action),) = draft.records[at].items()
            changed = set(action.get("ExpressionAttributeNames", {}).values())
            for item in await self._table.get([self._layout.key(at)], Fields()):
                for attribute, reference in items.references(item).items():
                    if "UpdateExpression" not in action or attribute in changed:
                        stale += self._chunks.keys(reference)
        return stale

    def _settle(self, changes: Sequence[Change], draft: Draft) -> None:
        """Record what was done."""
        for change in changes:
            if change.head is not None and not change.same:
                item = draft.rest[addresses.head(change.name)]["Put"]["Item"]
                self._layout.notice(change.head, item)

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        fields = items.record_fields(span.derived)
        for _ in range(AGAIN):
            head, found = await self._layout.span(name, span, fields)
            rows = await self._whole(found, span.derived)
            if rows is not None:
                return None if head is None else items.get_head(head), rows
        raise self._damaged(name)

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        fields = items.record_fields()
        places = {addresses.head(name), *(addresses.record(name, key) for key in keys)}
        for _ in range(AGAIN):
            found = await self._table.get([self._layout.key(at) for at in places], fields)
            heads = [items.get_head(item) for item in found if "stream" in item]
            rows = await self._whole([item for item in found if "record" in item], ())
            if rows is not None:
                return heads[0] if heads else None, rows
        raise self._damaged(name)

    async def _whole(self, found: Iterable[Item], derived: tuple[str, ...]) -> list[Row] | None:
        """Return records with their large values; None if one of these is gone by now."""
        found = [item for item in found if "record" in item]
        large = await self._chunks.read(one for item in found for one in items.references(item).values())
        rows = []
        for item in found:
            kept = items.get_record(item, large)
            if kept is None:
                return None
            row = Row(kept)
            for name in derived:
                if (attribute := item.get(items.derived_attribute(name))) is not None:
                    value = items.get_derived(attribute, large)
                    if value is None:
                        return None
                    row.derived[name] = value
            rows.append(row)
        return rows

    def _damaged(self, name: StreamName) -> UnreadableStoreError:
        return UnreadableStoreError(
            f"{self.url}: a part of a large record of the {name[1]} stream of scope {name[0]!r} is missing"
        )

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        return await self._layout.labeled(name, label, values)

    async def heads(self, reach: Reach) -> list[KeptHead]:
        found: list[KeptHead] = []
        left = reach.limit
        while left:
            names = await self._layout.names(replace(reach, limit=left))
            keys = [self._layout.key(addresses.head(name)) for name in names]
            heads = {head.name: head for head in map(items.get_head, await self._table.get(keys, HEAD))}
            found += [heads[name] for name in names if name in heads]
            if len(names) < left:
                break
            left = reach.limit - len(found)
            reach = replace(reach, after=names[-1])
        return found

    async def note(self, key: str) -> bytes | None:
        if key in self._own:
            return self._own[key]
        for _ in range(AGAIN):
            found = await self._table.get([self._layout.key(addresses.note(key))], NOTE)
            if not found:
                return None
            value: Item = found[0]["value"]
            if "B" in value:
                return bytes(value["B"])
            if (large := (await self._chunks.read([value["S"]])).get(value["S"])) is not None:
                return large
        raise UnreadableStoreError(f"{self.url}: a part of the note {key!r} is missing")

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        at = self._layout.key(addresses.note(key))
        condition = expected(None, self._layout)
        stale: list[Item] = []
        if before is not None:
            condition = {
                "ConditionExpression": "#digest = :digest",
                "ExpressionAttributeNames": {"#digest": "digest"},
                "ExpressionAttributeValues": {":digest": {"B": _digest(before)}},
            }
            if len(before) > WHOLE:
                for item in await self._table.get([at], NOTE):
                    stale += self._chunks.keys(item["value"]["S"]) if "S" in item["value"] else []
        parts: list[Item] = []
        if after is None:
            action: Item = {"Delete": {"Key": at, **condition}}
        else:
            ttl = {"N": str(int(time.time()) + NOTES_LAST)}
            value: Item = {"B": after}
            if len(after) > WHOLE:
                reference, parts = self._chunks.cut(after, ttl)
                value = {"S": reference}
                await self._table.write(parts)
            item = {**at, "value": value, "digest": {"B": _digest(after)}, "ttl": ttl}
            action = {"Put": {"Item": item, **condition}}
        swapped = not await self._table.transact([action])
        self._own.pop(key, None)
        if swapped and after is not None and parts:
            self._own = {key: after}
        await self._table.write(deletes=stale if swapped else map(self._layout.key_of, parts))
        return swapped

    async def close(self) -> None:
        await self._table.requests.close()


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
