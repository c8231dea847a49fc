"""Erasure of names from the audit log: what was done stays, to whom and by whom does not, and the chains verify.

A chain whose scope is erased moves to a scope without a name, beside the erased one. The register notes what is erased
before it happens, so that a verification tells an erasure from an attack; after an interruption, call it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..checks import check_names
from ..errors import ConflictError
from ..records import AUDIT_KIND, CHAINS_KIND, Record, ScopePath, Stream
from ..store.protocol import Store, all_streams, scan_all, scan_pages
from ..store.query import Condition, Expect, Purge, Put, Scan, StreamScan, Touch, Write
from .audit import AuditLayer
from .audit_chain import REGISTER, ChainLayer
from .audit_entry import SALT, Head, number_of, without_names
from .audit_settings import current_actor
from .layer import Layer

NAMELESS = "~"
"""Begins the last segment of the scope of a chain without names."""
AT_ONCE = 200
"""How many entries are moved in one write."""
NAMED_BY = ("actor", "session", "address")
"""Fields in which the names of a subject are looked for in the logs of other scopes."""


def audit_layer(store: Store) -> AuditLayer | None:
    """Return the audit layer among the layers of a store; None without an audit log."""
    while isinstance(store, Layer):
        if isinstance(store, AuditLayer):
            return store
        store = store._below
    return None


async def drop_names(store: Store, scope: ScopePath, names: Sequence[str] = (), certificate: str | None = None) -> int:
    """Remove the names in the audit log of a scope and below; return how many entries had some.

    Entries of other scopes lose their names if their actor, session or address is one of `names`. `certificate` is the
    id of the certificate of the erasure, which the register notes. Does nothing without an audit log.
    """
    layer = audit_layer(store)
    if layer is None:
        return 0
    given = [one for name in check_names(names, "name") for one in await layer.stored_names(name)]
    erasure = _NameErasure(layer.chain, certificate)
    streams = StreamScan(scope=scope, kinds=(AUDIT_KIND,), empty=True)
    for stream in [stream async for stream in all_streams(layer.chain, streams)]:
        if not stream.scope.name.startswith(NAMELESS):
            await erasure.move(stream, scope)
    if given:
        await erasure.elsewhere(given)
    return erasure.erased


class _NameErasure:
    """One erasure; it writes to the store below the chains, which would number what it writes."""

    def __init__(self, chain: ChainLayer, certificate: str | None) -> None:
        self._chain = chain
        self._store: Store = chain._below
        self._fields: dict[str, Any] = {"operation": "erase", **current_actor()}
        if certificate is not None:
            self._fields["certificate"] = certificate
        self.erased = 0

    async def move(self, stream: Stream, erased: ScopePath) -> None:
        """Move a chain to a scope without a name."""
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
            return

    async def elsewhere(self, names: Sequence[str]) -> None:
        """Remove the names of entries in other chains, in their place."""
        streams = StreamScan(scope=ScopePath(), kinds=(AUDIT_KIND,))
        for stream in [stream async for stream in all_streams(self._chain, streams)]:
            found: dict[str, Record] = {}
            for name in NAMED_BY:
                where = (Condition(f"data.{name}", "in", tuple(names)),)
                scan = Scan(scope=stream.scope, kinds=(AUDIT_KIND,), where=where)
                found |= {record.key: record async for record in scan_all(self._chain, scan)}
            head = Head.parse(stream.settings)
            if found and head is not None:
                await self._in_place(head.chain, list(found.values()))

    async def _forget_scope(self, head: Head) -> None:
        """Remove the name of the scope of a chain from the register."""
        register = await self._chain.stored_head(REGISTER, CHAINS_KIND)
        notes = [
            record
            async for record in scan_all(self._chain, Scan(scope=REGISTER, kinds=(CHAINS_KIND,)))
            if _begins(record, head.chain)
        ]
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
    begins = data["operation"] == "begin" and any(one[0] == chain for one in data["heads"])
    return bool(begins) and _has_names(record)
