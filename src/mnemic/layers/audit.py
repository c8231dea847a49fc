"""The audit layer: records who changed what, and when; with `reads`, also who read what.

Entries are in a stream of their own, either in the same store and transaction as the change, or in another store,
written after the change. A layer below links them to a hash chain. They are append-only: no other write can modify
them, and reads do not return them. What a limit evicts is known only afterwards, so that entry follows the write in
both cases. If an entry cannot be written, it is buffered, the caller gets an error, and no further change is accepted
until it is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from hmac import digest
from typing import Any, TypeVar

from msgspec.structs import replace

from ..checks import check_choice, check_count, check_time, copy_json, shown
from ..errors import AuditError, InvalidValueError, MnemicError, StoreError, StorePermissionError
from ..kinds import KINDS
from ..records import AUDIT_KIND, AUDIT_KINDS, AUDITED, SIGNING_KIND, VERSION, Match, Record, Ref, ScopePath, Stream
from ..store.confinement import Unconfined
from ..store.newest import newest
from ..store.protocol import Page, Scrubbed, Store, scan_all, scrub
from ..store.query import (
    Condition,
    Delete,
    Limit,
    Op,
    Outcome,
    Purge,
    Put,
    Scan,
    Search,
    StreamScan,
    Touch,
    Write,
    place_of,
)
from .audit_chain import ChainLayer, new_entry, put_entry
from .audit_entry import OPERATIONS, SALT, AuditEntry, AuditPage, ReadableEntries, to_entry
from .audit_settings import Audit, AuditFlags, actor_fields, current_actor
from .layer import Layer, filtered_scan, find_layer
from .redact import redact_query, redact_text

Result = TypeVar("Result")

HIDDEN = (*AUDIT_KINDS, SIGNING_KIND)
"""Kinds that are neither read nor written through this layer."""
CONTENTS = frozenset(name for name, kind in KINDS.items() if kind.written and kind.counted)
"""Kinds whose reads are recorded."""
MAX_KEYS = 100
"""How many keys of the records that a read returned are recorded."""


class AuditLayer(Layer):
    """Adds an entry for every change, and protects entries from any other write."""

    def __init__(
        self, below: Store, chain: ChainLayer, audit: Audit | None = None, separate: Store | None = None
    ) -> None:
        """Take the layer that links the entries: one of those below, or over `separate`, another store for the entries.

        `close` closes both stores.
        """
        super().__init__(below)
        self.chain: ChainLayer = chain
        self.separate: Store | None = separate
        self._log: Store = below if separate is None else chain
        self._audit = audit or Audit()
        self._default_actor = actor_fields(self._audit.actor, self._audit.session, self._audit.address)
        self._unwritten: list[Write] = []
        self._pseudonym_keys: list[bytes] = []
        """Of each signing key, the one in use first; none if the log has no pseudonyms."""

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, with an entry for each operation that changes something.

        Raises StorePermissionError for a change of the audit log itself; AuditError if entries of earlier changes
        cannot be written (nothing is done), or if the change was made and its entry could not be written.
        """
        if any(place_of(op)[1] in HIDDEN for op in write.ops):
            raise StorePermissionError("the audit log is append-only: its kinds are reserved for its entries")
        await self._write_buffered()
        await self._prepare()
        logged = _logged(write.ops)
        before = [(n, op) for n, op in logged if not _needs_outcome(op)]
        whole = write
        if self.separate is None and before:
            now = self.clock()
            whole = replace(write, ops=(*write.ops, *(self._entry(op, now) for _, op in before)))
        try:
            outcomes = (await self._below.write(whole))[: len(write.ops)]
        except BaseException as error:
            unsure = not isinstance(error, MnemicError) or error.unsure
            if self.separate is not None and unsure:
                unsaid = tuple(self._entry(op, self.clock(), unsure=True) for _, op in before)
                self._unwritten += [_log_write(unsaid, write.id)] if unsaid else []
            raise
        after = tuple(
            self._entry(op, _done_at(op, outcomes[n]) or self.clock(), **_result(op, outcomes[n]))
            for n, op in logged
            # With an id, the write may be a retry of one that had fewer operations.
            if (self.separate is not None or _needs_outcome(op)) and n < len(outcomes) and _changed(op, outcomes[n])
        )
        if after:
            complaint = "the change was made, but its audit entry could not be written yet"
            await self._append(_log_write(after, write.id), complaint)
        return outcomes

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        found = await self._below.read(refs)
        found = [None if ref.kind in HIDDEN else one for ref, one in zip(refs, found, strict=True)]
        if self._audit.reads:
            asked: dict[tuple[ScopePath, str], list[str]] = {}
            for ref, one in zip(refs, found, strict=True):
                asked.setdefault((ref.scope, ref.kind), []).extend([ref.key] if one is not None else [])
            for (scope, kind), keys in asked.items():
                await self._record_read("read", scope, (kind,), keys)
        return found

    async def scan(self, scan: Scan) -> Page[Record]:
        if scan.kinds and not set(HIDDEN) & set(scan.kinds):
            page = await self._below.scan(scan)
        else:
            page = await filtered_scan(self._below, scan, _without_entries)
        if self._audit.reads and scan.limit:
            await self._record_read("scan", scan.scope, scan.kinds, [record.key for record in page.items])
        return page

    async def search(self, search: Search) -> list[Match]:
        found = await super().search(search)
        if self._audit.reads:
            keys = [match.record.key for match in found]
            query = redact_query(self._below, search.scope, search.query) if self._audit.content else None
            await self._record_read("recall", search.scope, search.kinds, keys, content=query)
        return found

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        page = await self._below.streams(scan)
        return Page(tuple(stream for stream in page.items if stream.kind not in HIDDEN), page.cursor)

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        done = await super().scrub(finish=finish)
        if self.separate is not None:
            done.unreached += (await scrub(self.separate, finish=finish)).unreached
        return done

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
        scan = await self._scan(scope, since, until, fields)

        async def read(store: Store) -> list[AuditEntry]:
            return [to_entry(record) async for record in scan_all(store, scan) if _has_flag(record, flag)]

        return sorted(await self._around_damage(read), key=lambda entry: entry.time)

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
        scan = await self._scan(scope, since, until, fields)
        scan = replace(scan, limit=check_count(limit, "limit", least=1), cursor=cursor)

        async def read(store: Store) -> AuditPage:
            page = await newest(store, scan, lambda record: _has_flag(record, flag))
            return AuditPage(entries=[to_entry(record) for record in page.items], cursor=page.cursor)

        return await self._around_damage(read)

    async def _around_damage(self, read: Callable[[Store], Awaitable[Result]]) -> Result:
        """Read the log; if it has damaged entries, then again without them, which takes longer."""
        try:
            return await read(self.chain)
        except StoreError as error:
            if error.retry:
                raise
            return await read(ReadableEntries(self.chain))

    async def _scan(
        self, scope: ScopePath, since: datetime | None, until: datetime | None, fields: Mapping[str, str | None]
    ) -> Scan:
        where = []
        choices_of = {"operation": OPERATIONS, "kind": AUDITED}
        for name, value in fields.items():
            if value is not None:
                if name in choices_of:
                    check_choice(value, name, choices_of[name])
                hidden = name in ("actor", "session", "address", "key")
                choices = await self.stored_names(value) if hidden else (value,)
                where.append(Condition(f"data.{name}", "in", choices))
        if since is not None:
            where.append(Condition("created", "ge", check_time(since, "since")))
        if until is not None:
            where.append(Condition("created", "le", check_time(until, "until")))
        return Scan(scope=scope, kinds=(AUDIT_KIND,), below=True, where=tuple(where))

    async def _prepare(self) -> None:
        """Load the keys of the pseudonyms, if the log has them."""
        if self._audit.pseudonyms and not self._pseudonym_keys:
            await self.chain.keys.key()  # generated if there is none
            self._pseudonym_keys = [key.derive("audit pseudonyms") for key in await self.chain.keys.keys()]

    async def stored_actor(self) -> dict[str, str]:
        """Return who acts now, as an entry names them."""
        await self._prepare()
        names = self._default_actor | current_actor()
        return {field: self._pseudonym(name) for field, name in names.items()}

    async def stored_names(self, name: str) -> tuple[str, ...]:
        """Return the forms in which a name can be stored: itself, and its pseudonym under each key."""
        await self._prepare()
        return (name, *(_pseudonym(key, name) for key in self._pseudonym_keys))

    def _pseudonym(self, name: str) -> str:
        return _pseudonym(self._pseudonym_keys[0], name) if self._pseudonym_keys else name

    def _entry(self, op: Op, time: datetime, **result: Any) -> Put:
        """Return the operation that adds the entry of an operation."""
        scope, kind, changed = place_of(op)
        data: dict[str, Any] = {"operation": _name_of(op), "kind": kind, "key": changed, **result}
        if isinstance(op, Put | Delete):
            data["before"] = op.if_version
        if isinstance(op, Put):
            if self._audit.flags is not None:
                data["flags"] = _flags(self._audit.flags, op.record)
            if op.record.text and self._audit.content:
                data["content"] = redact_text(self._below, scope, kind, op.record.text)
        return self._put(scope, data, time, checked=isinstance(op, Put))

    def _put(self, scope: ScopePath, data: dict[str, Any], time: datetime, *, checked: bool = False) -> Put:
        """Return the operation that adds an entry with these fields and the actor's; `checked` if they are valid."""
        names = self._default_actor | current_actor()
        data = {name: value for name, value in (data | names).items() if value not in (None, [])}
        if self._pseudonym_keys:
            for name in ("key", "actor", "session", "address"):
                if name in data:
                    data[name] = self._pseudonym(data[name])
            for name in ("removed", "keys"):
                if name in data:
                    data[name] = [self._pseudonym(one) for one in data[name]]
        entry = new_entry(scope, AUDIT_KIND, data, time)
        return put_entry(entry) if checked and "flags" not in data else Put(entry, 0)

    async def _record_read(
        self, operation: str, scope: ScopePath, kinds: Sequence[str], keys: list[str], content: str | None = None
    ) -> None:
        """Write the entry of a read before its result is returned; raises AuditError if that is not possible."""
        if kinds and not CONTENTS & set(kinds):
            return
        await self._prepare()
        data: dict[str, Any] = {
            "operation": operation, "kind": ",".join(kinds) or "*", "keys": keys[:MAX_KEYS],
            "content": content or None,
        }  # fmt: skip
        entry = self._put(scope, data | {"count": len(keys)}, self.clock())
        try:
            await self._log.write(Write((entry,)))
        except StoreError as error:
            complaint = "nothing was returned, since the audit entry could not be written"
            raise AuditError(f"{complaint}: {error}", retry=error.retry) from error

    async def _append(self, write: Write, complaint: str) -> None:
        """Write entries; if that fails, buffer them and raise AuditError."""
        try:
            await self._log.write(write)
        except BaseException as error:
            self._unwritten.append(write)
            if isinstance(error, StoreError):
                raise AuditError(f"{complaint}: {error}", retry=error.retry, unsure=True) from error
            raise

    async def _write_buffered(self) -> None:
        """Write entries of earlier changes, also of callers who are confined to other scopes."""
        while self._unwritten:
            complaint = "nothing was changed, since audit entries of earlier changes could not be written yet"
            write = self._unwritten.pop(0)
            try:
                with Unconfined():
                    if not await self._is_written(write):
                        await self._log.write(write)
            except BaseException as error:
                self._unwritten.insert(0, write)
                if isinstance(error, StoreError):
                    raise AuditError(f"{complaint}: {error}", retry=error.retry) from error
                raise

    async def _is_written(self, write: Write) -> bool:
        """Return whether entries are stored already, by a write whose answer was lost."""
        op = write.ops[0]
        assert isinstance(op, Put)
        data: Any = op.record.data
        where = (Condition(f"data.{SALT}", "eq", data[SALT]),)
        scan = Scan(scope=op.record.scope, kinds=(AUDIT_KIND,), where=where)

        async def read(store: Store) -> bool:
            return bool([record async for record in scan_all(store, scan)])

        return await self._around_damage(read)


def actor_of(store: Store) -> dict[str, str]:
    """Return who acts now, as the audit log of a store would say: actor, session and address, where known."""
    layer = find_layer(store, AuditLayer)
    return ({} if layer is None else layer._default_actor) | current_actor()


def _pseudonym(key: bytes, name: str) -> str:
    return "~" + digest(key, name.encode(), "sha256")[:12].hex()


async def _without_entries(records: Sequence[Record]) -> list[Record | None]:
    return [None if record.kind in HIDDEN else record for record in records]


def _has_flag(record: Record, flag: str | None) -> bool:
    data: Any = record.data
    return flag is None or (isinstance(data, dict) and flag in data.get("flags", ()))


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


def _log_write(entries: tuple[Put, ...], id: str | None) -> Write:
    """Return the write of a change's entries; the repetition of a change with an id adds none."""
    if id is None:
        return Write(entries)
    return Write(entries, f"audit-{blake2b(id.encode(), digest_size=16).hexdigest()}", digest="audit")
