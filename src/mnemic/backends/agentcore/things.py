"""Items of a session, and the events that contain them."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from ...store.planning import RecordState
from ..keyvalue.kept import Kept, KeptHead, Row, decode_kept, encode
from .events import Body, Content, Extra, Gone, Held


class Event:
    """One event, and its valid content."""

    __slots__ = ("at", "gone", "group", "groups", "id", "live", "mark", "order", "twins")

    def __init__(self, id: str, body: Body) -> None:
        self.id: str = id
        self.mark: int = crc32(id.encode())
        self.order: tuple[int, str, str] = order_of(id, body)
        self.at: int = body.at
        self.group: str | None = body.group
        self.groups: list[str] = body.groups
        self.live: set[Thing] = set()
        self.gone: dict[tuple[str, str, int], Gone] = {
            (gone.kind, gone.key, gone.born): gone for gone in body.gone if gone.at
        }
        """Deletions that other writers must learn about."""
        self.twins: dict[str, Gone] = {gone.twin: gone for gone in body.gone if gone.twin is not None}
        """Memory records to delete."""


def order_of(id: str, body: Body) -> tuple[int, str, str]:
    """Return the sort key of events; the events of one writer keep their order."""
    return (body.n, body.by, id)


class Thing:
    """An item in an event, while it is valid."""

    __slots__ = ("event",)
    event: Event

    def content(self) -> Content:
        """Return its content for an event."""
        raise NotImplementedError

    def order(self) -> tuple[bool, str, int, str]:
        """Return its sort key among moved content."""
        raise NotImplementedError


class Value(Thing):
    """A derived value."""

    __slots__ = ("item", "n", "name", "value", "version")

    def __init__(self, item: Item, extra: Extra, event: Event) -> None:
        assert extra.value is not None
        self.n: int = extra.n or event.order[0]
        self.item: Item = item
        self.name: str = extra.name
        self.version: int = extra.version
        self.value: bytes = extra.value
        self.event = event

    def content(self) -> Extra:
        """Return its content for an event."""
        item = self.item
        return Extra(item.kind, item.key, item.born, self.name, self.version, self.value, self.n)

    def order(self) -> tuple[bool, str, int, str]:
        """Return its sort key: after the records."""
        return (True, self.item.kind, self.item.seq, self.name)


class Item(Thing):
    """A record."""

    __slots__ = (
        "born", "created", "expires", "key", "kind", "labels", "raw", "seq", "twin", "updated", "values",
        "version", "weight", "written",
    )  # fmt: skip

    def __init__(self, held: Held, event: Event) -> None:
        self.kind: str = held.kind
        self.values: dict[str, Value] = {}
        self.take(held, event)

    def take(self, held: Held, event: Event) -> None:
        """Replace it by another version."""
        kept = held.kept
        self.raw: bytes = encode(kept)
        self.born: int = held.born
        self.key: str = kept.key
        self.seq: int = kept.seq
        self.written: int = kept.seq
        self.version: int = kept.version
        self.created: int = kept.created
        self.updated: int = kept.updated
        self.weight: int = kept.weight
        self.labels: dict[str, str] = kept.labels
        self.expires: int | None = kept.expires
        self.twin: str | None = held.twin
        self.event = event

    def slot(self) -> RecordState:
        """Return the state that the write path needs."""
        return RecordState(self.key, self.seq, self.version, self.created, self.weight, self.labels, self.expires)

    def kept(self) -> Kept:
        """Return an independent copy of the record."""
        kept = decode_kept(self.raw)
        kept.seq, kept.version = self.seq, self.version
        return kept

    def row(self, names: Iterable[str] = ()) -> Row:
        """Return the record with its derived values."""
        values = {n: (self.values[n].version, self.values[n].value) for n in names if n in self.values}
        return Row(self.kept(), values)

    def things(self) -> list[Thing]:
        """Return it and its derived values."""
        return [self, *self.values.values()]

    def content(self) -> Held:
        """Return its content for an event."""
        return Held(self.kind, self.kept(), 0, self.twin, self.born if self.born != self.seq else 0)

    def order(self) -> tuple[bool, str, int, str]:
        """Return its sort key: in conversation order."""
        return (False, self.kind, self.seq, "")


class Stream:
    """The records of one kind."""

    __slots__ = ("event", "floor", "head", "keys", "rows", "seqs")

    def __init__(self) -> None:
        self.floor: int = 0
        """Seq up to which all records are deleted."""
        self.head: KeptHead | None = None
        self.event: Event | None = None
        """The event with the head."""
        self.rows: dict[int, Item] = {}
        self.seqs: list[int] = []
        self.keys: dict[str, Item] = {}
