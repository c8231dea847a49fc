"""Drops or rebuilds what was derived from an erased scope and stands in other scopes, with its versions and values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace

from ..errors import ConflictError, DecryptionError, HeldError, StorePermissionError, UnreadableStoreError
from ..event_loop import call
from ..layers.history import HistoryLayer
from ..layers.hold import HoldLayer
from ..layers.layer import find_layer
from ..messages import Message, decode
from ..records import ARCHIVED, MEMORY, MESSAGE, NOTE, SUMMARY, VAULT, VERSION, Record, Ref, ScopePath
from ..redaction.redactor import tokens_in
from ..store.codec import encode_record
from ..store.protocol import Capability, Store, Unreached, scan_all
from ..store.query import Delete, Op, Put, Scan, Write
from .provenance import PAGE, Derivations

Rebuild: TypeAlias = Callable[[list[Message]], Awaitable[str] | str]
"""Makes the new text of a derived record, from the sources that stay."""

SOURCES = (MESSAGE, ARCHIVED, SUMMARY, MEMORY, NOTE)
"""Kinds that a scope, named as a source, stands for."""
REBUILT = (MEMORY, SUMMARY)
"""Kinds that can be rebuilt: those that are a text and nothing else."""
MOST_NAMED = 100
"""How many damaged records are named one by one."""


class DerivedErasure:
    """The erasure of records derived from one scope that stand elsewhere, at `root` or below."""

    def __init__(self, store: Store, root: ScopePath, scope: ScopePath, rebuild: Rebuild | None) -> None:
        self._store = store
        self._root = root
        self._scope = scope
        self._rebuild = rebuild
        self._derivations = Derivations(scope)
        self._left: list[Unreached] = []

    async def count(self) -> list[tuple[Record, str]]:
        """Return the records that would be dropped or rebuilt, and which of both."""
        found = await self._derivations.find(self._store, self._root)
        return [(record, "rebuilt" if await self._sources(record) else "dropped") for record in found]

    async def run(self) -> list[tuple[Record, str]]:
        """Drop or rebuild it; return it, and what was done with each."""
        done = list[tuple[Record, str]]()
        for record in await self._derivations.find(self._store, self._root):
            try:
                op, did = await self._replacement(record)
                await self._store.write(Write((op,)))
            except (ConflictError, HeldError) as error:
                until = "until the hold is released" if isinstance(error, HeldError) else "until it is erased again"
                what = f"{record.kind} {record.key!r} of {record.scope.path!r}, which was derived from the erased data"
                self._left.append(Unreached(what=f"{what}: {error}", until=until, finish="erase again"))
            else:
                done.append((record, did))
        if Capability.RECORDS in self._store.capabilities:
            await self._drop_versions()
            await self._drop_values([record for record, _ in done])
        return done

    @property
    def unreached(self) -> list[Unreached]:
        """Records that could not be dropped, or not be checked since they are damaged."""
        damaged = list(self._derivations.damaged)
        named = [f"cannot be read, and may have been derived from the erased data: {one}" for one in damaged]
        if len(named) > MOST_NAMED:
            named[MOST_NAMED:] = [f"{len(named) - MOST_NAMED:,} more that cannot be read"]
        finish = "delete or repair it (mnemic doctor finds it), and erase again"
        return self._left + [Unreached(what=one, until="until it is deleted", finish=finish) for one in named]

    async def _replacement(self, record: Record) -> tuple[Op, str]:
        """Return the operation that drops a derived record, or rebuilds it from the sources that stay."""
        sources = await self._sources(record)
        if self._rebuild is None or not sources:
            return Delete(record.ref, record.version), "dropped"
        messages = [decode(one) if one.kind in (MESSAGE, ARCHIVED) else Message("user", one.text) for one in sources]
        text = await call(self._rebuild, messages)
        record = self._derivations.without_sources(record)
        data = record.data if record.kind == SUMMARY else None  # of a memory, it may have earlier texts
        return Put(replace(record, text=text, title=None, data=data, derived={}), record.version), "rebuilt"

    async def _sources(self, record: Record) -> list[Record]:
        """Return the records from which a derived one can be rebuilt; none if it must be dropped."""
        if self._rebuild is None or record.kind not in REBUILT:
            return []
        found: dict[Ref, Record] = {}
        for source in self._derivations.remaining(record):
            if isinstance(source, Ref):
                found |= {one.ref: one for one in await self._store.read([source]) if one is not None}
            elif self._root.contains(source):
                scan = Scan(scope=source, kinds=SOURCES, below=True, limit=PAGE)
                found |= {one.ref: one async for one in scan_all(self._store, scan)}
        kept = (one for ref, one in found.items() if ref != record.ref and self._derivations.stays(ref))
        return [one for one in kept if one.text]

    async def _drop_versions(self) -> None:
        """Delete the earlier versions, in other scopes, of what was derived from the scope."""
        kept = find_layer(self._store, HistoryLayer)
        held = find_layer(self._store, HoldLayer)
        store = self._store if kept is None else kept._below
        left: dict[ScopePath, StorePermissionError] = {}
        async for version in self._derivations.readable(store, self._root, (VERSION,)):
            try:
                concerned = self._derivations.concerns_version(version)
            except (DecryptionError, UnreadableStoreError) as error:
                self._derivations.damaged[f"a version in {version.scope.path!r}: {error}"] = error
            else:
                if concerned:
                    try:
                        if held is not None:  # which is above the history
                            await held.check((Delete(version.ref),))
                        await store.write(Write((Delete(version.ref),)))
                    except StorePermissionError as error:  # HeldError, or a server's that lets nobody delete them
                        left[version.scope] = error
        for scope, reason in left.items():
            what = f"earlier versions in {scope.path!r} of what was derived from the erased data: {reason}"
            until = "until the hold is released" if isinstance(reason, HeldError) else "until they expire"
            self._left.append(Unreached(what=what, until=until, finish="erase again"))

    async def _drop_values(self, dropped: list[Record]) -> None:
        """Delete the values in the vault behind the hashes of these records that no other record of a scope has."""
        tokens: dict[ScopePath, set[str]] = {}
        for record in dropped:
            tokens.setdefault(record.scope, set()).update(tokens_in(encode_record(record).decode()))
        for scope, unused in tokens.items():
            if not unused:
                continue
            try:
                async for record in scan_all(self._store, Scan(scope=scope, limit=PAGE)):
                    if record.kind != VAULT:
                        unused -= tokens_in(encode_record(record).decode())
                if unused:
                    await self._store.write(Write(tuple(Delete(Ref(scope, VAULT, token)) for token in sorted(unused))))
            except (DecryptionError, UnreadableStoreError, HeldError) as error:
                what = f"values in the vault of {scope.path!r} behind hashes of derived records: {error}"
                self._left.append(Unreached(what=what, until="until the scope is erased", finish="erase the scope"))
