"""An entry of the audit log: its fields, its form as a record, its link in a hash chain, and reads around damaged ones.

The link of an entry is a keyed hash (BLAKE2b) of the link before it, its number, its time and its fields. Names and
content are not hashed themselves: a salted hash of them is. So an erasure can remove the names and the salt, and the
chain still verifies.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any

from msgspec import Struct, field, json
from msgspec.structs import replace

from ..checks import to_microseconds
from ..errors import UnreadableStoreError
from ..records import AUDIT_KIND, Record, ScopePath, Value, unreadable
from ..signing import SigningKey
from ..store.damage import records_around
from ..store.matching import matches
from ..store.protocol import Page, Store, all_streams
from ..store.query import Scan, StreamScan
from .layer import Layer

CHANGES = ("put", "delete", "purge", "limit", "expire", "touch")
"""Operations that change something."""
READS = ("read", "scan", "recall")
"""Operations that are recorded with `Audit(reads=True)`."""
OPERATIONS = (*CHANGES, *READS)
"""Operations that an entry can record."""

NAMES = ("key", "actor", "session", "address", "removed", "keys", "content")
"""Fields that an erasure removes, besides the scope."""
SALT, NAMES_HASH, LINK, SIGNED, BEGUN = "salt", "names_hash", "link", "signed", "begun"
"""Fields of the stored form alone: the salt and the hash of the names, the link, the id of its key, and in the first
entry of a chain how many entries its first write had."""
_UNLINKED = frozenset((*NAMES, SALT, LINK))

_encode = json.Encoder(order="sorted").encode


class AuditEntry(Value, frozen=True, kw_only=True):
    """One change or read; `operation` is one of OPERATIONS, `number` its place in the log of its scope.

    `before` and `after` are the record's versions, where known; `removed` are the keys that a limit evicted, `count`
    is the number of records that a purge deleted or a read returned, `keys` are theirs. `content` is the text that
    was written or asked for, if the log keeps it. The answer of an `unsure` change was lost: it may not have
    happened. Without names (key, actor, session, address), they were erased.
    """

    time: datetime
    operation: str
    scope: ScopePath
    kind: str
    key: str | None = None
    actor: str | None = None
    session: str | None = None
    address: str | None = None
    before: int | None = None
    after: int | None = None
    flags: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    count: int | None = None
    unsure: bool = False
    keys: list[str] = field(default_factory=list)
    content: str | None = None
    number: int = 0


_SHOWN = frozenset(AuditEntry.__struct_fields__) - {"time", "scope", "number"}


class AuditPage(Value, frozen=True, kw_only=True):
    """Entries, newest first; `cursor` requests those before them, and is None if there are none."""

    entries: list[AuditEntry]
    cursor: str | None = None


def to_entry(record: Record) -> AuditEntry:
    """Return the entry in a stored record; raises UnreadableStoreError if it holds none."""
    data: Any = record.data
    try:
        if record.created is None:
            raise TypeError("it has no time")
        given = {name: value for name, value in data.items() if name in _SHOWN}
        return AuditEntry(time=record.created, scope=record.scope, number=number_of(record) or 0, **given)
    except (AttributeError, TypeError) as error:
        raise unreadable(record, error) from None


def number_of(record: Record) -> int | None:
    """Return the number of a stored entry; None if its key is not one."""
    return int(record.key) if record.key.isdecimal() else None


class ChainKey:
    """The key of a chain's links; its id is part of every entry."""

    def __init__(self, key: SigningKey) -> None:
        self.secret: bytes = key.derive("audit chain")

    @cached_property
    def id(self) -> str:
        """Eight hexadecimal digits that name the key."""
        return blake2b(b"id" + self.secret, digest_size=4).hexdigest()


class Head(Struct, frozen=True):
    """The last entry of a chain, kept in the settings of its stream: number, id of the chain, link.

    `begun` is how many entries the first write of the chain had.
    """

    number: int
    chain: str
    link: str
    begun: int

    @property
    def text(self) -> str:
        """The form in which it is stored."""
        return f"{self.number} {self.chain} {self.link} {self.begun}"

    @property
    def shown(self) -> tuple[str, int, str]:
        """Id of the chain, number and link, as checkpoints have them."""
        return self.chain, self.number, self.link

    @classmethod
    def parse(cls, text: str | None) -> Head | None:
        """Return a stored head; None for anything else."""
        parts = (text or "").split(" ")
        if len(parts) != 4 or not (parts[0].isdecimal() and parts[3].isdecimal()):
            return None
        return cls(int(parts[0]), parts[1], parts[2], int(parts[3]))


def _text(hashed: bytes) -> str:
    return b2a_base64(hashed, newline=False).decode()


def names_hash(scope: ScopePath, data: Mapping[str, Any]) -> str:
    """Return the salted hash of the names in an entry."""
    names = {name: data[name] for name in NAMES if name in data}
    return _text(blake2b(_encode((data[SALT], scope.path, names)), digest_size=32).digest())


def link_of(secret: bytes, before: Head, number: int, time: datetime, data: Mapping[str, Any]) -> str:
    """Return the link of an entry after the entry `before`."""
    linked = {name: value for name, value in data.items() if name not in _UNLINKED}
    content = _encode((before.link, before.chain, number, to_microseconds(time), linked))
    return _text(blake2b(content, digest_size=32, key=secret).digest())


def linked(record: Record, before: Head, key: ChainKey, begun: int = 0) -> tuple[Record, Head]:
    """Return an entry as it is stored after the entry `before`, and itself as the head; `begun` in the first one."""
    assert record.created is not None
    given: Any = record.data
    data = {**given, NAMES_HASH: names_hash(record.scope, given), SIGNED: key.id}
    number = before.number + 1
    if number == 1:
        data[BEGUN] = begun
    data[LINK] = link = link_of(key.secret, before, number, record.created, data)
    head = Head(number, before.chain, link, before.begun or begun)
    return replace(record, key=f"{number:010d}", data=data), head


def without_names(record: Record, scope: ScopePath) -> Record:
    """Return a stored entry without its names, for another scope; its link stays the same."""
    data: Any = record.data
    kept = {name: value for name, value in data.items() if name not in (*NAMES, SALT)}
    return replace(record, scope=scope, data=kept)


class DamagedEntry(Struct, frozen=True):
    """An entry that cannot be read: the scope of its log, and its number, as far as the entry before it tells."""

    scope: ScopePath
    number: int


async def entries_around(
    store: Store, scope: ScopePath, kind: str = AUDIT_KIND
) -> AsyncGenerator[Record | DamagedEntry, None]:
    """Yield the records of a log in order, and in place of each that is damaged its number."""
    number = 0
    async for part in records_around(store, scope, kind):
        for record in part if isinstance(part, tuple) else (None,):
            if record is None or not isinstance(record.data, dict):
                number += 1
                yield DamagedEntry(scope, number)
            else:
                number = number_of(record) or number
                yield record


class ReadableEntries(Layer):
    """A view of a store of which scans return the entries of the audit log that can be read, on one page."""

    async def scan(self, scan: Scan) -> Page[Record]:
        found: list[Record] = []
        streams = StreamScan(scope=scan.scope, kinds=(AUDIT_KIND,), below=scan.below)
        async for stream in all_streams(self._below, streams):
            records = entries_around(self._below, stream.scope)
            found += [one async for one in records if isinstance(one, Record) and _is_entry(one)]
        return Page(tuple(one for one in found if matches(one, scan.where)))


def _is_entry(record: Record) -> bool:
    try:
        to_entry(record)
    except UnreadableStoreError:
        return False
    return True
