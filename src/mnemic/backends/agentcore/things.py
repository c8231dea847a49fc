"""What the events of a session hold, and which of them holds it."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from ...store.planning import Slot
from ..keyvalue.kept import Kept, KeptHead, Row, decode_kept, encode
from .events import Body, Content, Extra, Held


class Event:
    """One event, and what of it counts."""

    __slots__ = ("at", "gone", "group", "groups", "id", "live", "mark", "order", "twins")

    def __init__(self, id: str, body: Body) -> None:
        self.id = id
        self.mark = crc32(id.encode())
        self.order = order_of(id, body)
        self.at = body.at
        self.group = body.group
        self.groups = body.groups
        self.live: set[Thing] = set()
        self.gone = {(gone.kind, gone.key, gone.born): gone for gone in body.gone if gone.at}
        """Records of which others have to be told that they are gone."""
        self.twins = {gone.twin: gone for gone in body.gone if gone.twin is not None}
        """Memory records that are to be deleted."""


def order_of(id: str, body: Body) -> tuple[int, str, str]:
    """Return what events are put in order by; what one writer did stays in its order whatever others did."""
    return (body.n, body.by, id)


class Thing:
    """What an event holds, as long as it counts."""

    __slots__ = ("event",)
    event: Event

    def content(self) -> Content:
        """Return it as an event holds it."""
        raise NotImplementedError

    def order(self) -> tuple[bool, str, int, str]:
        """Return its place among what moves from one event to another."""
        raise NotImplementedError


class Value(Thing):
    """What was derived from a record."""

    __slots__ = ("item", "n", "name", "value", "version")

    def __init__(self, item: Item, extra: Extra, event: Event) -> None:
        assert extra.value is not None
        self.n = extra.n or event.order[0]
        self.item = item
        self.name = extra.name
        self.version = extra.version
        self.value = extra.value
        self.event = event

    def content(self) -> Extra:
        """Return it as an event holds it."""
        item = self.item
        return Extra(item.kind, item.key, item.born, self.name, self.version, self.value, self.n)

    def order(self) -> tuple[bool, str, int, str]:
        """Return its place: after the records."""
        return (True, self.item.kind, self.item.seq, self.name)


class Item(Thing):
    """A record."""

    __slots__ = (
        "born", "created", "expires", "key", "kind", "labels", "raw", "seq", "twin", "updated", "values",
        "version", "weight", "written",
    )  # fmt: skip

    def __init__(self, held: Held, event: Event) -> None:
        self.kind = held.kind
        self.values: dict[str, Value] = {}
        self.take(held, event)

    def take(self, held: Held, event: Event) -> None:
        """Become another version."""
        kept = held.kept
        self.raw = encode(kept)
        self.born = held.born
        self.key = kept.key
        self.seq = self.written = kept.seq
        self.version = kept.version
        self.created = kept.created
        self.updated = kept.updated
        self.weight = kept.weight
        self.labels = kept.labels
        self.expires = kept.expires
        self.twin = held.twin
        self.event = event

    def slot(self) -> Slot:
        """Return what the write path needs to know of it."""
        return Slot(self.key, self.seq, self.version, self.created, self.weight, self.labels, self.expires)

    def kept(self) -> Kept:
        """Return the record, shared with nobody."""
        kept = decode_kept(self.raw)
        kept.seq, kept.version = self.seq, self.version
        return kept

    def row(self, names: Iterable[str] = ()) -> Row:
        """Return the record with what was derived from it."""
        values = {n: (self.values[n].version, self.values[n].value) for n in names if n in self.values}
        return Row(self.kept(), values)

    def things(self) -> list[Thing]:
        """Return it and what was derived from it."""
        return [self, *self.values.values()]

    def content(self) -> Held:
        """Return it as an event holds it."""
        return Held(self.kind, self.kept(), 0, self.twin, self.born if self.born != self.seq else 0)

    def order(self) -> tuple[bool, str, int, str]:
        """Return its place: as it was said."""
        return (False, self.kind, self.seq, "")


class Stream:
    """The records of one kind."""

    __slots__ = ("event", "floor", "head", "keys", "rows", "seqs")

    def __init__(self) -> None:
        self.floor = 0
        """Up to which seq all records are gone for good, whoever holds them."""
        self.head: KeptHead | None = None
        self.event: Event | None = None
        """The event that holds the head."""
        self.rows: dict[int, Item] = {}
        self.seqs: list[int] = []
        self.keys: dict[str, Item] = {}
