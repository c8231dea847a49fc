"""Erasure of names from the audit log: what was done stays, to whom and by whom does not, and the chains verify.

A chain whose scope is erased moves to a scope without a name, beside the erased one. The register notes what is erased
before it happens, so that a verification tells an erasure from an attack; after an interruption, call it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ..checks import check_names
from ..errors import ConflictError, StoreError
from ..records import AUDIT_KIND, CHAINS_KIND, Record, ScopePath, Stream
from ..store.matching import matches
from ..store.protocol import Store, all_streams, scan_all, scan_pages
from ..store.query import Condition, Expect, Purge, Put, Scan, StreamScan, Touch, Write
from .audit import AuditLayer
from .audit_chain import REGISTER, ChainLayer
from .audit_entry import SALT, DamagedEntry, Head, entries_around, number_of, without_names
from .layer import find_layer

NO_CHAIN = ""
"""Id of a chain whose head, which has its id, is missing."""
NAMELESS = "~"
"""Begins the last segment of the scope of a chain without names."""
AT_ONCE = 200
"""How many entries are moved in one write."""
NAMED_BY = ("actor", "session", "address")
"""Fields in which the names of a subject are looked for in the logs of other scopes."""


class DroppedNames(Struct, frozen=True):
    """How many entries had names that were removed, and what keeps its own.

    `damaged` are entries that could not be read. The logs of the `headless` scopes have lost their heads: they stay
    there, without the names in their entries.
    """

    entries: int = 0
    damaged: Sequence[DamagedEntry] = ()
    headless: Sequence[ScopePath] = ()


async def drop_names(
    store: Store,
    scope: ScopePath,
    names: Sequence[str] = (),
    root: ScopePath | None = None,
    *,
    certificate: str | None = None,
) -> DroppedNames:
    """Remove the names in the audit log of a scope and below.

    Entries of other scopes, at `root` and below, lose their names if their actor, session or address is one of `names`.
    `certificate` is the id of the certificate of the erasure, which the register notes. Who erases is named by an entry
    that is added after the others. A log with a damaged entry, or without a head, stays in its scope. Does nothing
    without an audit log.
    """
    layer = find_layer(store, AuditLayer)
    if layer is None:
        return DroppedNames()
    given = [one for name in check_names(names, "name") for one in await layer.stored_names(name)]
    actor = {field: name for field, name in (await layer.stored_actor()).items() if name not in given}
    erasure = _NameErasure(layer.chain, actor, certificate)
    streams = StreamScan(scope=scope, kinds=(AUDIT_KIND,), empty=True)
    for stream in [stream async for stream in all_streams(layer.chain, streams)]:
        if not stream.scope.name.startswith(NAMELESS):
            await erasure.move(stream, scope)
    if given:
        await erasure.elsewhere(given, root or ScopePath())
    return DroppedNames(erasure.erased, erasure.damaged, erasure.headless)


class _NameErasure:
    """One erasure; it writes to the store below the chains, which would number what it writes."""

    def __init__(self, chain: ChainLayer, actor: dict[str, str], certificate: str | None) -> None:
        self._chain = chain
        self._store: Store = chain._below
        self._actor = actor
        self._fields: dict[str, Any] = {"operation": "erase", **actor}
        self._entry: dict[str, Any] = {"operation": "purge", "kind": AUDIT_KIND, **actor}
        if certificate is not None:
            self._fields["certificate"] = self._entry["key"] = certificate
        self.erased = 0
        self.damaged: list[DamagedEntry] = []
        self.headless: list[ScopePath] = []

    async def move(self, stream: Stream, erased: ScopePath) -> None:
        """Move a chain to a scope without a name; a damaged one loses its names in its place."""
        entries = entries_around(self._chain, stream.scope)
        damaged = [one async for one in entries if isinstance(one, DamagedEntry)]
        head = await self._chain.stored_head(stream.scope, AUDIT_KIND)
        if damaged or head is None:
            self.damaged += damaged
            entries = entries_around(self._chain, stream.scope)
            named = [one async for one in entries if isinstance(one, Record) and _has_names(one)]
            if named:
                await self._in_place(NO_CHAIN if head is None else head.chain, named)
            if head is not None:
                await self._add_entry(head, stream.scope)
            elif stream.count:
                self.headless.append(stream.scope)
            return
        while (head := await self._chain.stored_head(stream.scope, AUDIT_KIND)) is not None:
            target = erased.parent / f"{NAMELESS}{head.chain}"
            await self._chain.append(REGISTER, CHAINS_KIND, [self._fields | {"heads": [head.shown]}])
            before = self.erased
            async for page in scan_pages(self._store, Scan(scope=stream.scope, kinds=(AUDIT_KIND,), limit=AT_ONCE)):
                await self._store.write(Write(tuple(Put(without_names(record, target)) for record in page)))
                self.erased += sum(_has_names(record) for record in page)
            await self._store.write(Write((Touch(target, AUDIT_KIND, None, head.text),)))
            await self._forget_scope(head)
            unchanged = Expect(stream.scope, AUDIT_KIND, settings=head.text)
            try:
                await self._store.write(Write((unchanged, Purge(stream.scope, AUDIT_KIND, drop=True))))
            except ConflictError:
                self.erased = before  # continued meanwhile
                continue
            await self._add_entry(head, target)
            return

    async def _add_entry(self, head: Head, scope: ScopePath) -> None:
        """Add the entry of the erasure itself, which names who erased; not before the chain has its last place."""
        if not self._actor:
            return
        await self._chain.append(scope, AUDIT_KIND, [self._entry])
        if head.number == head.begun:
            await self._forget_scope(head)  # the register has noted the chain a second time

    async def elsewhere(self, names: Sequence[str], root: ScopePath) -> None:
        """Remove the names of entries in other chains at a scope and below, in their place."""
        streams = StreamScan(scope=root, kinds=(AUDIT_KIND,))
        for stream in [stream async for stream in all_streams(self._chain, streams)]:
            found: dict[str, Record] = {}
            where = [Condition(f"data.{name}", "in", tuple(names)) for name in NAMED_BY]
            try:
                for one in where:
                    scan = Scan(scope=stream.scope, kinds=(AUDIT_KIND,), where=(one,))
                    found |= {record.key: record async for record in scan_all(self._chain, scan)}
            except StoreError as error:
                if error.retry:
                    raise
                async for entry in entries_around(self._chain, stream.scope):
                    if isinstance(entry, DamagedEntry):
                        self.damaged += [entry] if entry not in self.damaged else []
                    elif any(matches(entry, (one,)) for one in where):
                        found[entry.key] = entry
            head = Head.parse(stream.settings)
            if found and head is not None:
                await self._in_place(head.chain, list(found.values()))

    async def _forget_scope(self, head: Head) -> None:
        """Remove the name of the scope of a chain from the register."""
        register = await self._chain.stored_head(REGISTER, CHAINS_KIND)
        notes = []
        async for record in entries_around(self._chain, REGISTER, CHAINS_KIND):
            if isinstance(record, DamagedEntry):
                self.damaged += [record] if record not in self.damaged else []
            elif _begins(record, head.chain):
                notes.append(record)
        if register is not None and notes:
            await self._in_place(register.chain, notes)

    async def _in_place(self, chain: str, records: Sequence[Record]) -> None:
        numbers = sorted(number_of(record) or 0 for record in records)
        await self._chain.append(REGISTER, CHAINS_KIND, [self._fields | {"entries": [[chain, numbers]]}])
        for start in range(0, len(records), AT_ONCE):
            part = records[start : start + AT_ONCE]
            puts = (Put(without_names(record, record.scope), record.version) for record in part)
            await self._store.write(Write(tuple(puts)))
        self.erased += sum(record.kind == AUDIT_KIND for record in records)


def _has_names(record: Record) -> bool:
    return isinstance(record.data, dict) and SALT in record.data


def _begins(record: Record, chain: str) -> bool:
    data: Any = record.data
    if not _has_names(record) or data.get("operation") != "begin":
        return False
    return any(isinstance(one, list | tuple) and chain in one[:1] for one in data.get("heads", ()))
