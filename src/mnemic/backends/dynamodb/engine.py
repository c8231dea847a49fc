"""The DynamoDB engine of the key-value store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec.structs import replace

from ...errors import TooLargeError, UnreadableStoreError
from ...store.planning import Needs, StreamName
from ...store.protocol import Capability
from ..keyvalue.engine import Batch, Change, Loaded, Reach, Span
from ..keyvalue.kept import KeptHead, Row
from . import addresses, items
from .addresses import Address
from .bulk import Bulk, Bulks
from .chunks import Chunks
from .draft import MOST_ITEMS, Draft
from .layout import Layout
from .table import ALL, MOST_BYTES, Fields, Item, size_of

AGAIN = 20
"""How often records are read again because they changed during the read."""
REMEMBERED_LARGE = 10_000
Read = Callable[[], Awaitable[tuple[Item | None, list[Item]]]]


class DynamoEngine:
    """Stores streams in a table."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED, Capability.ATOMIC})
    expires_streams = False
    spans = True

    def __init__(self, layout: Layout) -> None:
        self.url: str = str(layout.table.url)
        self._layout = layout
        self._table = layout.table
        self._chunks = Chunks(layout)
        self._slot = Fields(*layout.key(Address("", "")), "seq", "stream", "record", "body", "large")
        self._large: OrderedDict[tuple[StreamName, str], None] = OrderedDict()
        """Records known to have values outside their item."""
        self._bulks = Bulks(layout)

    def partition(self, name: StreamName) -> str:
        return name[0]

    def fits(self, batch: Batch) -> bool:
        return True

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
        places = {self._layout.tag(self._layout.key(addresses.head(name))): name for name in needs.streams}
        while places:
            found = await self._table.get([self._layout.tagged(tag) for tag in places], self._layout.head_fields)
            pending = {}
            for item in found:
                tag = self._layout.tag(item)
                if not await self._bulks.settled(places[tag], item):
                    pending[tag] = places[tag]
                elif "stream" in item:
                    head = loaded.heads[places[tag]] = items.get_head(item)
                    self._layout.notice(head, item)
            places = pending

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
            actions = [*draft.entries.values(), *draft.records.values()]
            count = len(batch.changes) + len(actions)
            bulk: Bulk | None = None
            if count > MOST_ITEMS or size_of(actions) > MOST_BYTES:
                if any(change.absent for change in batch.changes):
                    return False  # these keys must be loaded: they are too many to check
                bulk = Bulk(self._layout, list(draft.records.values()))
                actions = [*draft.entries.values()]
                if len(batch.changes) + len(actions) > MOST_ITEMS:
                    raise TooLargeError(f"{self.url}: a write changes too many streams ({len(batch.changes)}) at once")
                draft.before += bulk.items
            await self._table.write(draft.before)
            heads = draft.head_actions(None if bulk is None else bulk.token)
            failed = await self._table.transact([*heads.values(), *actions])
            if not failed:
                self._settle(batch.changes, draft)
                if bulk is not None:
                    await self._bulks.apply(bulk, {change.name: change.head is None for change in batch.changes})
                await self._table.write(deletes=stale)
                return True
            await self._table.write(deletes=map(self._layout.key_of, draft.before))
            places = [*heads, *draft.entries]
            full = [places[n] for n in failed if len(heads) <= n < len(places)]
            room = [await self._layout.make_room(address) for address in full]
            if len(full) < len(failed) or not any(room):
                return False

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
                self._layout.notice(change.head, draft.heads[change.name])

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        fields = items.record_fields(span.derived)
        return await self._read(name, lambda: self._layout.span(name, span, fields), span.derived)

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        fields = items.record_fields()
        return await self._read(name, lambda: self._layout.find(name, keys, fields), ())

    async def _read(self, name: StreamName, read: Read, derived: tuple[str, ...]) -> tuple[KeptHead | None, list[Row]]:
        """Read the head and records of a stream until no bulk was applied meanwhile, and no large value replaced."""
        for _ in range(AGAIN):
            head, found = await read()
            if not await self._bulks.settled(name, head):
                continue
            if head is None:
                return None, []
            rows = await self._whole(found, derived)
            if rows is not None:
                return items.get_head(head), rows
        raise UnreadableStoreError(
            f"{self.url}: a part of a large record of the {name[1]} stream of scope {name[0]!r} is missing"
        )

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

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        while True:
            seqs = await self._layout.labeled(name, label, values)
            if seqs is None or await self._bulks.settled(name, await self._layout.read_head(name)):
                return seqs

    async def heads(self, reach: Reach) -> list[KeptHead]:
        found: list[KeptHead] = []
        left = reach.limit
        while left:
            names = await self._layout.names(replace(reach, limit=left))
            keys = [self._layout.key(addresses.head(name)) for name in names]
            stored = await self._table.get(keys, self._layout.head_fields)
            heads = {head.name: head for head in (items.get_head(item) for item in stored if "stream" in item)}
            found += [heads[name] for name in names if name in heads]
            if len(names) < left:
                break
            left = reach.limit - len(found)
            reach = replace(reach, after=names[-1])
        return found

    async def note(self, key: str) -> bytes | None:
        raise NotImplementedError

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        raise NotImplementedError

    async def close(self) -> None:
        await self._table.requests.close()
