"""The audit layer: records who changed what, and when.

Entries are in a stream of their own, either in the same store and transaction as the change, or in another store,
written after the change. They are append-only: no other write can modify them, and reads do not return them. What
a limit evicts is known only afterwards, so that entry follows the write in both cases. If an entry cannot be
written, it is buffered, the caller gets an error, and no further change is accepted until it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from hashlib import blake2b
from types import TracebackType
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import check_name, check_time, copy_json, shown
from ..errors import (
    AuditError,
    ConflictError,
    InvalidValueError,
    MnemicError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from ..records import AUDIT_KIND, Record, Ref, ScopePath, Stream, Value, new_id
from ..store.batches import write_each
from ..store.protocol import Page, Store, scan_all
from ..store.query import Condition, Delete, Limit, Op, Outcome, Purge, Put, Scan, StreamScan, Touch, Write
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
        _check_names(self.actor, self.session, self.address)
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


class Who(Struct, frozen=True):
    """The current actor, session and address."""

    actor: str | None = None
    session: str | None = None
    address: str | None = None

    def over(self, other: Who | Audit) -> Who:
        """Return this actor, with missing fields taken from `other`."""
        return Who(
            self.actor if self.actor is not None else other.actor,
            self.session if self.session is not None else other.session,
            self.address if self.address is not None else other.address,
        )


_NOBODY = Who()
_acting: ContextVar[Who] = ContextVar("mnemic_acting", default=_NOBODY)


class Acting:
    """Context manager, sync and async, that sets the actor; omitted fields keep their outer values."""

    def __init__(self, actor: str | None, session: str | None, address: str | None) -> None:
        """Raise InvalidValueError for an invalid name."""
        _check_names(actor, session, address)
        self._who = Who(actor, session, address)
        self._tokens: list[Token[Who]] = []

    def __enter__(self) -> None:
        self._tokens.append(_acting.set(self._who.over(_acting.get())))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _acting.reset(self._tokens.pop())

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def acting() -> Who:
    """Return the current actor."""
    return _acting.get()


def audit_of(given: Auditing) -> Audit | None:
    """Return the configuration as an `Audit`; None if auditing is off."""
    if given is None or isinstance(given, Audit):
        return given
    if isinstance(given, bool):
        return Audit() if given else None
    return Audit(store=given)


def _check_names(*names: str | None) -> None:
    for what, name in zip(("actor", "session", "address"), names, strict=True):
        if name is not None:
            check_name(name, what)


class AuditLayer(Layer):
    """Adds an entry for every change, and protects entries from any other write."""

    def __init__(self, below: Store, audit: Audit | None = None, apart: Store | None = None) -> None:
        """Take another store for the entries in `apart`, if it is not the one below; `close` closes both."""
        super().__init__(below)
        self._audit = audit or Audit()
        self.apart: Store | None = apart
        self._apart = apart
        self._held_back: list[Put] = []

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, with an entry for each operation that changes something.

        Raises StorePermissionError for a change of the audit log itself; AuditError if entries of earlier changes
        cannot be written (nothing is done), or if the change was made and its entry could not be written.
        """
        for op in write.ops:
            if _stream_of(op)[1] == AUDIT_KIND:
                raise StorePermissionError(
                    f"the kind {AUDIT_KIND!r} is reserved for the audit log, which is append-only"
                )
        await self._catch_up()
        who = acting().over(self._audit)
        entries: tuple[Put, ...] = ()
        if self._apart is None:
            told = [self._told(op, None, who) for op in _told_before(write.ops)]
            entries = tuple(_put(op, data, new_id(), None) for op, data in told)
        whole = replace(write, ops=(*write.ops, *entries)) if entries else write
        try:
            outcomes = (await self._below.write(whole))[: len(write.ops)]
        except BaseException as error:
            if self._apart is not None and _may_be_done(error):
                self._held_back += self._unsure(write, who)
            raise
        if late := self._late(write, outcomes, who):
            await self._add(late, "the change was made, but its audit entry could not be written yet")
        return outcomes

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        """Pass the call on; entries are hidden."""
        if not any(ref.kind == AUDIT_KIND for ref in refs):
            return await self._below.read(refs)
        found = await self._below.read(refs)
        return [None if ref.kind == AUDIT_KIND else one for ref, one in zip(refs, found, strict=True)]

    async def scan(self, scan: Scan) -> Page[Record]:
        """Pass the call on; entries are hidden."""
        if scan.kinds and AUDIT_KIND not in scan.kinds:
            return await self._below.scan(scan)
        return await filtered_scan(self._below, scan, _without_entries)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        """Pass the call on; entries are hidden."""
        page = await self._below.streams(scan)
        return Page(tuple(stream for stream in page.items if stream.kind != AUDIT_KIND), page.cursor)

    async def close(self) -> None:
        """Write buffered entries, and close; raises AuditError if they are lost."""
        try:
            await self._catch_up()
        finally:
            self._held_back = []
            try:
                await self._below.close()
            finally:
                if self._apart is not None:
                    await self._apart.close()

    async def trail(
        self,
        scope: ScopePath,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
        session: str | None = None,
        address: str | None = None,
        operation: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        flag: str | None = None,
    ) -> list[AuditEntry]:
        """Return the entries of a scope and below that pass every filter, oldest first."""
        where = [] if since is None else [Condition("created", "ge", check_time(since, "since"))]
        if until is not None:
            where.append(Condition("created", "le", check_time(until, "until")))
        said = {
            "actor": actor, "session": session, "address": address, "operation": operation, "kind": kind,
            "key": key,
        }  # fmt: skip
        where += [Condition(f"data.{name}", "eq", value) for name, value in said.items() if value is not None]
        scan = Scan(scope=scope, kinds=(AUDIT_KIND,), below=True, where=tuple(where))
        store = self._below if self._apart is None else self._apart
        found = [_entry(record) async for record in scan_all(store, scan)]
        return sorted((entry for entry in found if flag is None or flag in entry.flags), key=lambda entry: entry.time)

    def _told(self, op: Op, outcome: Outcome | None, who: Who) -> tuple[Op, dict[str, Any]]:
        """Return the content of an entry for an operation."""
        data: dict[str, Any] = {
            "operation": _name_of(op),
            "kind": _stream_of(op)[1],
            "actor": who.actor,
            "session": who.session,
            "address": who.address,
        }
        if isinstance(op, Put | Delete):
            data["key"] = op.record.key if isinstance(op, Put) else op.ref.key
            data["before"] = op.if_version
        if isinstance(op, Put) and self._audit.flags is not None:
            data["flags"] = _flags(self._audit.flags, op.record)
        if outcome is not None:
            data["after"] = outcome.version or None
            data["removed"] = list(outcome.removed) if isinstance(op, Limit) else None
            data["count"] = outcome.count if isinstance(op, Purge) else None
        return op, {name: value for name, value in data.items() if value not in (None, [])}

    def _late(self, write: Write, outcomes: list[Outcome], who: Who) -> list[Put]:
        """Return the entries that can only be written after the change."""
        found = []
        for n, (op, outcome) in enumerate(zip(write.ops, outcomes, strict=False)):
            if self._apart is not None:
                wanted = _changed(op, outcome) and (not isinstance(op, Touch) or _alone(op, write.ops))
            else:
                wanted = _told_after(op) and _changed(op, outcome)
            if wanted:
                found.append(_put(*self._told(op, outcome, who), _key(write, n), outcome.updated or self.clock()))
        return found

    def _unsure(self, write: Write, who: Who) -> list[Put]:
        """Return the entries of a write whose outcome is unknown."""
        found = []
        for n, op in enumerate(write.ops):
            if any(op is told for told in _told_before(write.ops)):
                _, data = self._told(op, None, who)
                found.append(_put(op, {**data, "unsure": True}, _key(write, n), self.clock()))
        return found

    async def _add(self, entries: list[Put], complaint: str) -> None:
        """Write entries; if that fails, buffer them and raise AuditError."""
        store = self._below if self._apart is None else self._apart
        try:
            await store.write(Write(tuple(entries)))
        except ConflictError:
            # Some were written earlier, by a write whose answer was lost.
            await write_each(store, [(entry,) for entry in entries])
        except StoreError as error:
            self._held_back += entries
            raise AuditError(f"{complaint}: {error}") from error
        except BaseException:
            self._held_back += entries
            raise

    async def _catch_up(self) -> None:
        if self._held_back:
            entries, self._held_back = self._held_back, []
            await self._add(
                entries, "nothing was changed, since audit entries of earlier changes could not be written yet"
            )


async def _without_entries(records: Sequence[Record]) -> list[Record | None]:
    return [None if record.kind == AUDIT_KIND else record for record in records]


def _told_before(ops: Sequence[Op]) -> list[Op]:
    """Return the operations whose entries are known before the write."""
    return [
        op
        for op in ops
        if isinstance(op, Put | Delete)
        or (isinstance(op, Purge) and not _told_after(op))
        or (isinstance(op, Touch) and _alone(op, ops))
    ]


def _told_after(op: Op) -> bool:
    """Return whether only the outcome shows if the operation changed anything."""
    return isinstance(op, Limit) or (isinstance(op, Purge) and op.expired_only and not op.drop)


def _alone(touch: Touch, ops: Sequence[Op]) -> bool:
    """Return whether a time to live is set on its own, not along with records."""
    return not any(isinstance(op, Put) for op in ops)


def _changed(op: Op, outcome: Outcome) -> bool:
    """Return whether an operation changed something."""
    if isinstance(op, Delete | Limit):
        return bool(outcome.removed)
    if isinstance(op, Purge):
        return bool(outcome.count) or op.drop
    return isinstance(op, Put | Touch)


def _name_of(op: Op) -> str:
    return "expire" if isinstance(op, Purge) and op.expired_only and not op.drop else type(op).__name__.lower()


def _stream_of(op: Op) -> tuple[ScopePath, str]:
    if isinstance(op, Put):
        return op.record.scope, op.record.kind
    return (op.ref.scope, op.ref.kind) if hasattr(op, "ref") else (op.scope, op.kind)


def _put(op: Op, data: dict[str, Any], key: str, time: datetime | None) -> Put:
    return Put(Record(_stream_of(op)[0], AUDIT_KIND, key, data=data, created=time), 0)


def _entry(record: Record) -> AuditEntry:
    assert record.created is not None
    data: Any = record.data
    return AuditEntry(time=record.created, scope=record.scope, **data)


def _flags(flags: AuditFlags, record: Record) -> list[str]:
    """Return the flags of a record, computed on a copy; raises InvalidValueError if they are not names."""
    twin = replace(
        record, data=copy_json(record.data), meta=copy_json(record.meta), labels=dict(record.labels), derived={}
    )
    found = flags(twin)
    if isinstance(found, str) or not all(isinstance(flag, str) for flag in found):
        raise InvalidValueError(f"flags must return a list of texts, not {shown(found)}")
    return list(found)


def _may_be_done(error: BaseException) -> bool:
    """Return whether a write that raised this error may have succeeded anyway."""
    return isinstance(error, StoreUnavailableError) or not isinstance(error, MnemicError)


def _key(write: Write, n: int) -> str:
    """Return the key of an entry: the same for a repeated write."""
    if write.id is None:
        return new_id()
    return f"{blake2b(write.id.encode(), digest_size=16).hexdigest()}-{n}"
