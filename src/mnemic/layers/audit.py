"""The audit layer: records who changed what, and when.

Entries are in a stream of their own, either in the same store and transaction as the change, or in another store,
written after the change. They are append-only: no other write can modify them, and reads do not return them. What
a limit evicts is known only afterwards, so that entry follows the write in both cases. If an entry cannot be
written, it is buffered, the caller gets an error, and no further change is accepted until it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from hashlib import blake2b
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import check_count, check_name, check_time, copy_json, new_id, shown
from ..errors import AuditError, InvalidValueError, MnemicError, StoreError, StorePermissionError, StoreUnavailableError
from ..records import AUDIT_KIND, VERSION, Record, Ref, ScopePath, Stream, Value
from ..store.newest import newest
from ..store.protocol import Page, Store, scan_all
from ..store.query import Condition, Delete, Limit, Op, Outcome, Purge, Put, Scan, StreamScan, Touch, Write, place_of
from ..store.retry import write_each
from .layer import Layer, filtered_scan

AuditFlags: TypeAlias = Callable[[Record], Sequence[str]]
"""Returns flags for a record being written, such as `["personal data"]`."""


class Audit(Struct, frozen=True, kw_only=True):
    """Audit configuration: where to write entries, a function for flags, and the default actor.

    `store` is a store, or the URL of one; None is the memory's own store.
    """

    store: Store | str | None = None
    flags: AuditFlags | None = None
    actor: str | None = None
    session: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an invalid name."""
        _actor(self.actor, self.session, self.address)
        if self.flags is not None and not callable(self.flags):
            raise InvalidValueError("flags is a function from a record to a list of texts")


Auditing: TypeAlias = Audit | Store | str | bool | None
"""Whether and how to audit: True for the memory's own store, another store or its URL, or an `Audit`."""
OPERATIONS = ("put", "delete", "purge", "limit", "expire", "touch")
"""Operations that an entry can record."""


class AuditEntry(Value, frozen=True, kw_only=True):
    """One change; `operation` is one of OPERATIONS.

    `before` and `after` are the record's versions, where known; `removed` are the keys that a limit evicted,
    `count` is the number of records that a purge deleted. The answer of an `unsure` change was lost: it may not
    have happened.
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


class AuditPage(Value, frozen=True, kw_only=True):
    """Entries, newest first; `cursor` requests those before them, and is None if there are none."""

    entries: list[AuditEntry]
    cursor: str | None = None


_current_actor: ContextVar[dict[str, str]] = ContextVar("mnemic_actor")


class Acting:
    """Context manager, sync and async, that sets the actor; omitted fields keep their outer values."""

    def __init__(self, actor: str | None, session: str | None, address: str | None) -> None:
        """Raise InvalidValueError for an invalid name."""
        self._actor = _actor(actor, session, address)
        self._tokens: list[Token[dict[str, str]]] = []

    def __enter__(self) -> None:
        self._tokens.append(_current_actor.set(_current_actor.get({}) | self._actor))

    def __exit__(self, *error: object) -> None:
        _current_actor.reset(self._tokens.pop())

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()


def current_actor() -> dict[str, str]:
    """Return the actor, session and address that `Acting` has set, as far as it has."""
    return _current_actor.get({})


def _actor(actor: str | None, session: str | None, address: str | None) -> dict[str, str]:
    """Return the fields that are given; raises InvalidValueError for an invalid name."""
    given = {"actor": actor, "session": session, "address": address}
    return {field: check_name(name, field) for field, name in given.items() if name is not None}


def audit_of(given: Auditing) -> Audit | None:
    """Return the configuration as an `Audit`; None if auditing is off."""
    if given is None or isinstance(given, Audit):
        return given
    if isinstance(given, bool):
        return Audit() if given else None
    return Audit(store=given)


class AuditLayer(Layer):
    """Adds an entry for every change, and protects entries from any other write."""

    def __init__(self, below: Store, audit: Audit | None = None, separate: Store | None = None) -> None:
        """Take another store for the entries, if it is not the one below; `close` closes both."""
        super().__init__(below)
        self._audit = audit or Audit()
        self._default_actor = _actor(self._audit.actor, self._audit.session, self._audit.address)
        self.separate: Store | None = separate
        self._log = below if separate is None else separate
        self._unwritten: list[Put] = []

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, with an entry for each operation that changes something.

        Raises StorePermissionError for a change of the audit log itself; AuditError if entries of earlier changes
        cannot be written (nothing is done), or if the change was made and its entry could not be written.
        """
        if any(place_of(op)[1] == AUDIT_KIND for op in write.ops):
            raise StorePermissionError(f"the kind {AUDIT_KIND!r} is reserved for the audit log, which is append-only")
        await self._write_buffered()
        logged = _logged(write.ops)
        before = [(n, op) for n, op in logged if not _needs_outcome(op)]
        whole = write
        if self.separate is None and before:
            whole = replace(write, ops=(*write.ops, *(self._entry(op, new_id()) for _, op in before)))
        try:
            outcomes = (await self._below.write(whole))[: len(write.ops)]
        except BaseException as error:
            unsure = isinstance(error, StoreUnavailableError) or not isinstance(error, MnemicError)
            if self.separate is not None and unsure:
                self._unwritten += [self._entry(op, _key(write, n), time=self.clock(), unsure=True) for n, op in before]
            raise
        after = [
            self._entry(op, _key(write, n), time=_done_at(op, outcomes[n]) or self.clock(), **_result(op, outcomes[n]))
            for n, op in logged
            # With an id, the write may be a retry of one that had fewer operations.
            if (self.separate is not None or _needs_outcome(op)) and n < len(outcomes) and _changed(op, outcomes[n])
        ]
        await self._append(after, "the change was made, but its audit entry could not be written yet")
        return outcomes

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        found = await self._below.read(refs)
        return [None if ref.kind == AUDIT_KIND else one for ref, one in zip(refs, found, strict=True)]

    async def scan(self, scan: Scan) -> Page[Record]:
        if scan.kinds and AUDIT_KIND not in scan.kinds:
            return await self._below.scan(scan)
        return await filtered_scan(self._below, scan, _without_entries)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        page = await self._below.streams(scan)
        return Page(tuple(stream for stream in page.items if stream.kind != AUDIT_KIND), page.cursor)

    async def close(self) -> None:
        """Write buffered entries, and close; raises AuditError if they are lost."""
        try:
            await self._write_buffered()
        finally:
            self._unwritten = []
            try:
                await self._below.close()
            finally:
                if self.separate is not None:
                    await self.separate.close()

    async def trail(
        self,
        scope: ScopePath,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        flag: str | None = None,
        **fields: str | None,
    ) -> list[AuditEntry]:
        """Return the entries of a scope and below that have these fields and times, oldest first."""
        records = scan_all(self._log, _scan(scope, since, until, fields))
        found = [_to_entry(record) async for record in records if _has_flag(record, flag)]
        return sorted(found, key=lambda entry: entry.time)

    async def page(
        self,
        scope: ScopePath,
        *,
        limit: int,
        cursor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        flag: str | None = None,
        **fields: str | None,
    ) -> AuditPage:
        """Return a page of such entries, newest first; raises InvalidValueError for an invalid cursor."""
        scan = replace(_scan(scope, since, until, fields), limit=check_count(limit, "limit", least=1), cursor=cursor)
        page = await newest(self._log, scan, lambda record: _has_flag(record, flag))
        return AuditPage(entries=[_to_entry(record) for record in page.items], cursor=page.cursor)

    def _entry(self, op: Op, key: str, *, time: datetime | None = None, **result: Any) -> Put:
        """Return the operation that adds the entry of an operation."""
        scope, kind, changed = place_of(op)
        actor = self._default_actor | current_actor()
        data: dict[str, Any] = {"operation": _name_of(op), "kind": kind, "key": changed, **actor, **result}
        if isinstance(op, Put | Delete):
            data["before"] = op.if_version
        if isinstance(op, Put) and self._audit.flags is not None:
            data["flags"] = _flags(self._audit.flags, op.record)
        data = {name: value for name, value in data.items() if value not in (None, [])}
        return Put(Record(scope, AUDIT_KIND, key, data=data, created=time), 0)

    async def _append(self, entries: list[Put], complaint: str) -> None:
        """Write entries, scope by scope; if that fails, buffer them and raise AuditError."""
        while entries:
            scope = entries[0].record.scope
            try:
                # An entry that conflicts was written earlier, by a write whose answer was lost.
                await write_each(self._log, [(entry,) for entry in entries if entry.record.scope == scope])
            except BaseException as error:
                self._unwritten += entries
                if isinstance(error, StoreError):
                    raise AuditError(f"{complaint}: {error}") from error
                raise
            entries = [entry for entry in entries if entry.record.scope != scope]

    async def _write_buffered(self) -> None:
        if self._unwritten:
            entries, self._unwritten = self._unwritten, []
            await self._append(
                entries, "nothing was changed, since audit entries of earlier changes could not be written yet"
            )


async def _without_entries(records: Sequence[Record]) -> list[Record | None]:
    return [None if record.kind == AUDIT_KIND else record for record in records]


def _scan(scope: ScopePath, since: datetime | None, until: datetime | None, fields: Mapping[str, str | None]) -> Scan:
    where = [Condition(f"data.{name}", "eq", value) for name, value in fields.items() if value is not None]
    if since is not None:
        where.append(Condition("created", "ge", check_time(since, "since")))
    if until is not None:
        where.append(Condition("created", "le", check_time(until, "until")))
    return Scan(scope=scope, kinds=(AUDIT_KIND,), below=True, where=tuple(where))


def _to_entry(record: Record) -> AuditEntry:
    data: Any = record.data
    assert record.created is not None
    return AuditEntry(time=record.created, scope=record.scope, **data)


def _has_flag(record: Record, flag: str | None) -> bool:
    data: Any = record.data
    return flag is None or flag in data.get("flags", ())


def _logged(ops: Sequence[Op]) -> list[tuple[int, Op]]:
    """Return the operations that have an entry, with their positions; a Touch only if it comes without records."""
    alone = not any(isinstance(op, Put) for op in ops)
    return [
        (n, op)
        for n, op in enumerate(ops)
        if (isinstance(op, Put | Delete | Limit | Purge) or (alone and isinstance(op, Touch)))
        and place_of(op)[1] != VERSION
    ]


def _needs_outcome(op: Op) -> bool:
    """Return whether only the outcome shows if the operation changed anything."""
    return isinstance(op, Limit) or (isinstance(op, Purge) and op.expired_only and not op.drop)


def _changed(op: Op, outcome: Outcome) -> bool:
    if isinstance(op, Delete | Limit):
        return bool(outcome.removed)
    return not isinstance(op, Purge) or bool(outcome.count) or op.drop


def _done_at(op: Op, outcome: Outcome) -> datetime | None:
    """Return when an operation was done, if its outcome tells; a copied record has the time of the original."""
    return None if isinstance(op, Put) and op.updated is not None else outcome.updated


def _result(op: Op, outcome: Outcome) -> dict[str, Any]:
    return {
        "after": outcome.version or None,
        "removed": list(outcome.removed) if isinstance(op, Limit) else None,
        "count": outcome.count if isinstance(op, Purge) else None,
    }


def _name_of(op: Op) -> str:
    return "expire" if isinstance(op, Purge) and op.expired_only and not op.drop else type(op).__name__.lower()


def _flags(flags: AuditFlags, record: Record) -> list[str]:
    """Return the flags of a record, computed on a copy; raises InvalidValueError if they are not names."""
    copied = replace(
        record, data=copy_json(record.data), meta=copy_json(record.meta), labels=dict(record.labels), derived={}
    )
    found = flags(copied)
    if isinstance(found, str) or not all(isinstance(flag, str) for flag in found):
        raise InvalidValueError(f"flags must return a list of texts, not {shown(found)}")
    return list(found)


def _key(write: Write, n: int) -> str:
    """Return the key of an entry: the same for a repeated write."""
    if write.id is None:
        return new_id()
    return f"{blake2b(write.id.encode(), digest_size=16).hexdigest()}-{n}"
