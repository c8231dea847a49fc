"""The interface of table layouts: Mnemic's own, and tables with only a hash key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...records import known_scope
from ...store.matching import in_reach
from ...store.planning import StreamName
from ..keyvalue.engine import Change, Reach, Span
from ..keyvalue.kept import KeptHead
from . import addresses, items
from .addresses import Address
from .table import READ_AT_ONCE, Fields, Item, Table

BUCKETS = 4
"""Number of directory partitions; all streams of a tenant are in one."""


class Layout(ABC):
    """Maps addresses to keys, reads records in order, and lists streams."""

    labels: bool
    """Whether there is an index of labels."""

    def __init__(self, table: Table, *keys: str) -> None:
        self.table = table
        self.head_fields = Fields(*keys, *items.HEAD)

    @abstractmethod
    def key(self, address: Address) -> Item:
        """Return the key of an address."""

    @property
    def partition(self) -> str:
        """StreamName of the partition key attribute."""
        return next(iter(self.key(Address("", ""))))

    def key_of(self, item: Item) -> Item:
        """Return the key of an item."""
        return {name: item[name] for name in self.key(Address("", ""))}

    def tag(self, item: Item) -> tuple[str, ...]:
        """Return an identifier of an item's key."""
        return tuple(item[name]["S"] for name in self.key(Address("", "")))

    def tagged(self, tag: tuple[str, ...]) -> Item:
        """Return the key of an identifier."""
        return {name: {"S": part} for name, part in zip(self.key(Address("", "")), tag, strict=True)}

    @abstractmethod
    async def span(self, name: StreamName, span: Span, fields: Fields) -> tuple[Item | None, list[Item]]:
        """Return the records of a span, in order, and the head of the stream, no older than they are."""

    @abstractmethod
    async def names(self, reach: Reach) -> list[StreamName]:
        """Return the next streams in a range; fewer than the limit only at the end."""

    @abstractmethod
    async def enter(self, entered: Sequence[StreamName], left: Sequence[StreamName]) -> dict[Address, Item]:
        """Return the actions that add streams to the directory, and remove others."""

    @abstractmethod
    async def head(self, change: Change) -> Item | None:
        """Return additional attributes of a changed head; None if the stream has changed."""

    def places(self, change: Change) -> dict[Address, Item | None]:
        """Return the items that map seqs to records; None deletes one."""
        return {}

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        """Return the seqs of records with a label of these values; None without an index of labels."""
        return None

    def notice(self, head: KeptHead, item: Item) -> None:
        """Record a stored head in the cache."""
        return

    async def make_room(self, address: Address) -> bool:
        """Split a directory part whose condition has failed; return False if there was enough room."""
        return False

    async def find(self, name: StreamName, keys: Sequence[str], fields: Fields) -> tuple[Item | None, list[Item]]:
        """Return the records of some keys, in any order, and the head of the stream, no older than they are."""
        wanted = [self.key(address) for address in {addresses.record(name, key) for key in keys}]
        if len(wanted) >= READ_AT_ONCE:
            found = await self.table.get(wanted, fields)
            return await self.read_head(name), found
        found = await self.table.get([*wanted, self.key(addresses.head(name))], fields)
        heads = [item for item in found if "record" not in item]
        return heads[0] if heads else None, [item for item in found if "record" in item]

    async def read_head(self, name: StreamName) -> Item | None:
        """Return the head of a stream."""
        found = await self.table.get([self.key(addresses.head(name))], self.head_fields)
        return found[0] if found else None


def bucket(scope: str) -> str:
    """Return the directory partition of a scope's streams."""
    tenant = scope.partition("/")[0]
    return f"d{addresses.BREAK}{int(addresses.digest(tenant)[:8], 16) % BUCKETS}"


def buckets(reach: Reach) -> list[str]:
    """Return the directory partitions of a range."""
    if reach.scope or not reach.below:
        return [bucket(reach.scope)]
    return [f"d{addresses.BREAK}{n}" for n in range(BUCKETS)]


def wanted(name: StreamName, reach: Reach) -> bool:
    """Return whether a stream is requested."""
    if reach.after is not None and (name >= reach.after if reach.reverse else name <= reach.after):
        return False
    scope = known_scope(name[0])
    return in_reach(scope, name[1], known_scope(reach.scope), reach.kinds, reach.below)
