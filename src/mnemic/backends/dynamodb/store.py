"""Streams in a DynamoDB table: the engine of its key-value store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec.structs import replace

from ...errors import TooLargeError, UnreadableStoreError
from ...records import Record, StreamName
from ...store.codec import decode_record_state
from ...store.protocol import Capability, Scrubbed, Unreached
from ...store.stream_state import Derived, Loaded, Needs, StreamChange, StreamState
from ..calls import mark_errors
from ..keyvalue.engine import RecordRange, StreamRange
from . import codec
from .client import ALL, MOST_BYTES, Fields, Item, attribute, size_of
from .codec import Address, Chunks, record_at, state_at
from .large_writes import MOST_ITEMS, BulkWrite, BulkWrites
from .layout import Layout, StreamItems

MOST_READS = 20
"""How often records are read that change during the read."""
MOST_CACHED = 10_000
"""How many records with large values are cached."""


class DynamoEngine:
    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED, Capability.ATOMIC})

    def __init__(self, layout: Layout) -> None:
        self.url: str = str(layout.table.url)
        self._layout = layout
        self._table = layout.table
        self._bulks = BulkWrites(layout)
        self._record_state = Fields(*layout.keys, "seq", "record", "body", "large", *codec.STATE)
        self._large: OrderedDict[tuple[StreamName, str], None] = OrderedDict()
        """Records known to have values outside their item."""

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Name what the service may keep."""
        return Scrubbed(
            unreached=[
                Unreached(
                    what=f"backups of the table {self._table.name}, if it has some",
                    until="for up to 35 days with point-in-time recovery; until they are deleted, if made on demand",
                    finish="delete the backups; turn point-in-time recovery off and on, which drops its history",
                )
            ]
        )

    def commit_group(self, scope: str) -> str:
        return scope

    async def load(self, needs: Needs) -> Loaded:
        loaded = Loaded(records={name: dict.fromkeys(keys) for name, keys in needs.keys.items()})
        # States of streams first: a record may be newer than its stream, never older.
        loaded.streams = await self._states(needs.streams)
        records = {
            record_at(name, key): name
            for name, keys in needs.keys.items()
            for key in keys
            if loaded.streams.get(name, ...) is not None
        }
        for name, item in await self._get(records, self._record_state):
            self._take(name, item, loaded)
        for name in needs.whole:
            state, found = await self._layout.span(name, RecordRange(limit=ALL), self._record_state)
            while not await self._bulks.settled(name, state):
                state, found = await self._layout.span(name, RecordRange(limit=ALL), self._record_state)
            for item in found:
                self._take(name, item, loaded)
            loaded.whole.add(name)
        return loaded

    async def _states(self, names: Iterable[StreamName]) -> dict[StreamName, StreamState | None]:
        states: dict[StreamName, StreamState | None] = dict.fromkeys(names)
        left = {state_at(name): name for name in states}
        while left:
            pending = {}
            for name, item in await self._get(left, self._layout.state_fields):
                if not await self._bulks.settled(name, item):
                    pending[state_at(name)] = name
                elif "stream" in item:
                    state = states[name] = codec.decode_state(item)
                    self._layout.cache(state, item)
            left = pending
        return states

    async def _get(self, addresses: dict[Address, StreamName], fields: Fields) -> list[tuple[StreamName, Item]]:
        """Return the items of some addresses, with what these are mapped to."""
        keys = [self._layout.key(address) for address in addresses]
        names = {self._layout.tag(key): name for key, name in zip(keys, addresses.values(), strict=True)}
        return [(names[self._layout.tag(item)], item) for item in await self._table.get(keys, fields)]

    def _take(self, name: StreamName, item: Item, loaded: Loaded) -> None:
        record = decode_record_state(attribute(item, "record", "S"))
        loaded.records.setdefault(name, {})[record.key] = record
        if "body" in item or "large" in item:
            self._large[name, record.key] = None
            if len(self._large) > MOST_CACHED:
                self._large.popitem(last=False)

    async def commit(self, changes: Sequence[StreamChange], moment: int) -> bool:
        unchecked = sum(len(change.absent) for change in changes)
        while unchecked <= MOST_ITEMS:
            transaction = Transaction(self._layout, changes)
            if not await transaction.prepare():
                return False
            stale = await self._stale(transaction)
            before = [{**self._layout.key(address), **item} for address, item in transaction.chunks.items.items()]
            listing, records = transaction.listing, list(transaction.records.values())
            bulk: BulkWrite | None = None
            if len(changes) + len(listing) + len(records) > MOST_ITEMS or size_of(records) > MOST_BYTES:
                if unchecked:
                    break
                if len(changes) + len(listing) > MOST_ITEMS:
                    raise TooLargeError(f"{self.url}: a write changes too many streams ({len(changes)}) at once")
                bulk = BulkWrite(self._layout, records)
                before += bulk.items
                records = []
            with mark_errors(unsure=False):  # nothing names these items yet
                await self._table.write(before)
            states = transaction.state_actions(None if bulk is None else bulk.token)
            failed = await self._table.transact([*states, *listing.values(), *records])
            if not failed:
                with mark_errors(unsure=True):
                    await self._finish(transaction, bulk)
                    await self._table.write(deletes=stale)
                return True
            await self._table.write(deletes=[{key: item[key] for key in self._layout.keys} for item in before])
            full = [list(listing)[n - len(states)] for n in failed if 0 <= n - len(states) < len(listing)]
            room = [await self._layout.make_room(address) for address in full]
            if len(full) < len(failed) or not any(room):
                return False
        return False  # the keys that must not exist are too many to check: they must be loaded

    async def _finish(self, transaction: Transaction, bulk: BulkWrite | None) -> None:
        for change in transaction.changes:
            if change.after is not None and change.name in transaction.states:
                self._layout.cache(change.after, transaction.states[change.name])
        if bulk is not None:
            changed = (change for change in transaction.changes if not change.only_checks)
            await self._bulks.apply(bulk, {change.name: change.after is None for change in changed})
        for change in transaction.changes:
            if change.after is None and change.before is not None:
                # Unless someone else has made it again.
                absent = {"Key": self._layout.key(state_at(change.name)), **expected(None, self._layout)}
                actions = await self._layout.unlisting(change.name)
                await self._table.transact([{"ConditionCheck": absent}, *actions])

    async def _stale(self, transaction: Transaction) -> list[Item]:
        """Return the keys of chunks of large values that nothing references after a transaction."""
        stale: list[Item] = []
        for name, key in transaction.touched:
            if (name, key) not in self._large:
                continue
            address = record_at(name, key)
            ((_, action),) = transaction.records[address].items()
            changed = set(action.get("ExpressionAttributeNames", {}).values())
            for item in await self._table.get([self._layout.key(address)], Fields()):
                for field, reference in codec.references(item).items():
                    if "UpdateExpression" not in action or field in changed:
                        stale += [self._layout.key(chunk) for chunk in codec.chunk_addresses(reference)]
        return stale

    async def rows(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]]:
        fields = codec.record_fields(span.derived)
        return await self._read(name, lambda: self._layout.span(name, span, fields), span.derived)

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[StreamState | None, list[Record]]:
        fields = codec.record_fields()
        return await self._read(name, lambda: self._layout.find(name, keys, fields), ())

    async def _read(
        self, name: StreamName, read: Callable[[], Awaitable[StreamItems]], derived: Sequence[str]
    ) -> tuple[StreamState | None, list[Record]]:
        """Read until no bulk write was applied meanwhile, and no large value replaced."""
        for _ in range(MOST_READS):
            state, found = await read()
            if not await self._bulks.settled(name, state):
                continue
            if state is None:
                return None, []
            references = {one for item in found for one in codec.references(item).values()}
            chunks = [self._layout.key(address) for one in references for address in codec.chunk_addresses(one)]
            large = codec.join_chunks(references, await self._table.get(chunks, codec.CHUNK_FIELDS))
            records = [codec.decode_item(item, name, large, derived) for item in found]
            complete = [record for record in records if record is not None]
            if len(complete) == len(records):
                return codec.decode_state(state), complete
        raise UnreadableStoreError(
            f"{self.url}: the {name[1]} stream of scope {name[0]!r} changed during each of {MOST_READS} reads, "
            "or a part of a large record is missing"
        )

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        while True:
            seqs = await self._layout.labeled(name, label, values)
            if seqs is None or await self._bulks.settled(name, await self._layout.state(name)):
                return seqs

    async def streams(self, reach: StreamRange) -> list[StreamState]:
        found: list[StreamState] = []
        left = reach.limit
        while left:
            names = await self._layout.names(replace(reach, limit=left))
            addresses = {state_at(name): name for name in names}
            items = dict(await self._get(addresses, self._layout.state_fields))
            found += [codec.decode_state(items[name], name) for name in names if "stream" in items.get(name, {})]
            if len(names) < left:
                break
            left = reach.limit - len(found)
            reach = replace(reach, after=names[-1])
        return found

    async def close(self) -> None:
        await self._table.requests.close()


class Transaction:
    """Actions of changes, one for each item; and the chunks of large values to write before."""

    def __init__(self, layout: Layout, changes: Sequence[StreamChange]) -> None:
        self.changes = changes
        self.chunks: Chunks = Chunks()
        self.states: dict[StreamName, Item] = {}
        """Attributes of the new states of streams."""
        self.listing: dict[Address, Item] = {}
        """Actions that list new streams, which fail if a part of the list is full."""
        self.records: dict[Address, Item] = {}
        """Actions on records and on what points to them."""
        self.touched: list[tuple[StreamName, str]] = []
        """Existing records that are removed or changed."""
        self._layout = layout

    async def prepare(self) -> bool:
        """Add all actions; return False if a stream is known to have another revision."""
        for change in self.changes:
            if change.after is not None and change.after is not change.before:
                more = await self._layout.state_attributes(change)
                if more is None:
                    return False
                self.states[change.name] = codec.encode_state(change.after) | more
            self._add(change)
        new = (change.name for change in self.changes if change.before is None and change.after is not None)
        self.listing = self._layout.listing(new)
        return True

    def state_actions(self, bulk: str | None) -> list[Item]:
        """Return the actions on states; those of a bulk write mark its streams as waiting for it."""
        actions: list[Item] = []
        mark: Item = {} if bulk is None else {"bulk": {"S": bulk}, "pending": {"BOOL": True}}
        for change in self.changes:
            key = self._layout.key(state_at(change.name))
            condition = expected(change.before, self._layout)
            values = {} if change.only_checks else self.states.get(change.name, {}) | mark
            if values:
                # A stream that a bulk write drops keeps an item without a state until the write is applied.
                removed = ["stream", "revision"] if change.after is None else []
                actions.append(_update(key, values, removed, condition))
            else:
                kind = "Delete" if change.before is not change.after else "ConditionCheck"
                actions.append({kind: {"Key": key, **condition}})
        return actions

    def _add(self, change: StreamChange) -> None:
        name, layout = change.name, self._layout
        lost = [*change.lost_labels.items(), *((record.seq, record.labels) for record in change.removed)]
        for address in (address for seq, labels in lost for address in layout.pointers(name, seq, labels)):
            self.records[address] = {"Delete": {"Key": layout.key(address)}}
        for removed in change.removed:
            address = record_at(name, removed.key)
            self.records[address] = {"Delete": {"Key": layout.key(address)}}
            self.touched.append((name, removed.key))
        derived: dict[str, list[Derived]] = {}
        for one in change.derived:
            derived.setdefault(one.key, []).append(one)
        absent = set(change.absent)
        for record in change.added:
            address = record_at(name, record.key)
            item = codec.encode_item(record, self.chunks)
            values, _ = self._derived(derived.pop(record.key, []), codec.ttl_of(record))
            condition = expected(None, layout) if record.key in absent else {}
            self.records[address] = {"Put": {"Item": {**layout.key(address), **item, **values}, **condition}}
            absent.discard(record.key)
        for record in change.replaced:
            item = codec.encode_item(record, self.chunks)
            values, gone = self._derived(derived.pop(record.key, []), codec.ttl_of(record))
            # Derived values that are not named here stay.
            self._change(name, record.key, item | values, [*gone, *({"body", "ttl"} - item.keys())])
        for record in (*change.added, *change.replaced):
            pointer = {"key": {"S": record.key}, **codec.ttl_of(record)}
            for address in layout.pointers(name, record.seq, record.labels):
                self.records[address] = {"Put": {"Item": {**layout.key(address), **pointer}}}
        for key, some in derived.items():
            self._change(name, key, *self._derived(some, {}))
        for address in (record_at(name, key) for key in absent):
            self.records[address] = {"ConditionCheck": {"Key": layout.key(address), **expected(None, layout)}}

    def _change(self, name: StreamName, key: str, values: Item, removed: Sequence[str]) -> None:
        address = record_at(name, key)
        self.records[address] = _update(self._layout.key(address), values, removed)
        self.touched.append((name, key))

    def _derived(self, derived: Sequence[Derived], ttl: Item) -> tuple[Item, list[str]]:
        """Return derived values as attributes, and the names of those to remove."""
        values: Item = {}
        for one in derived:
            if one.value is not None:
                stored = codec.encode_derived(one.version, one.value, self.chunks, ttl)
                values[codec.derived_attribute(one.name)] = stored
                if "S" in stored["L"][1]:
                    values["large"] = {"BOOL": True}
        return values, [codec.derived_attribute(one.name) for one in derived if one.value is None]


def expected(state: StreamState | None, layout: Layout) -> Item:
    """Return the condition that a stream has the revision of a state and no pending bulk write, or does not exist."""
    if state is None:
        return {"ConditionExpression": "attribute_not_exists(#p)", "ExpressionAttributeNames": {"#p": layout.keys[0]}}
    return {
        "ConditionExpression": "#revision = :revision AND attribute_not_exists(#pending)",
        "ExpressionAttributeNames": {"#revision": "revision", "#pending": "pending"},
        "ExpressionAttributeValues": {":revision": {"N": str(state.revision)}},
    }


def _update(key: Item, values: Item, removed: Sequence[str], condition: Item | None = None) -> Item:
    names = {f"#a{n}": name for n, name in enumerate((*values, *removed))}
    placeholders = {f":a{n}": value for n, value in enumerate(values.values())}
    parts = []
    if values:
        parts.append("SET " + ", ".join(f"#a{n} = :a{n}" for n in range(len(values))))
    if removed:
        parts.append("REMOVE " + ", ".join(list(names)[len(values) :]))
    update: Item = {"Key": key, "UpdateExpression": " ".join(parts), "ExpressionAttributeNames": names}
    if placeholders:
        update["ExpressionAttributeValues"] = placeholders
    for part, value in (condition or {}).items():
        update[part] = update[part] | value if part in update else value
    return {"Update": update}
