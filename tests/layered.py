"""Stores under layers as back-ends of their own, so that the contract suite runs over the layers as well.

They are registered in this process alone; `conftest.py` in the root does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from mnemic.errors import MnemicError
from mnemic.layers.audit import AuditLayer
from mnemic.layers.audit_chain import ChainLayer
from mnemic.layers.audit_settings import Audit
from mnemic.layers.encryption import EncryptLayer
from mnemic.layers.history import HistoryLayer
from mnemic.layers.hold import HoldLayer
from mnemic.layers.layer import Layer
from mnemic.layers.redact import RedactLayer
from mnemic.layers.restricted import RestrictedLayer
from mnemic.records import Record, Ref, ScopePath, Stream
from mnemic.redaction.config import Redaction, Vault
from mnemic.store import registry
from mnemic.store.protocol import Page, Store
from mnemic.store.query import Outcome, Put, Scan, StreamScan, Write
from mnemic.store.registry import Backend, StoreURL
from mnemic.testing import Target
from servers.stores import STORES

KEY = bytes(range(32))
KINDS = ("message", "summary", "note")


def sealed(store: Store) -> Store:
    return EncryptLayer(store, KEY)


def audited(store: Store) -> Store:
    return with_audit(store)


def with_audit(store: Store, audit: Audit | None = None, separate: Store | None = None) -> AuditLayer:
    """Return a store with an audit log, in itself or in another store."""
    chain = ChainLayer(store if separate is None else separate)
    return AuditLayer(chain if separate is None else store, chain, audit, separate)


def kept(store: Store) -> Store:
    return HistoryLayer(store, timedelta(days=30))


def redacted(store: Store) -> Store:
    return RedactLayer(store, Redaction(action="hash", key=KEY, vault=Vault(KEY), names=["Alice Miller"]))


HOSTILE = ScopePath("ten%ant_*?[a]\\'\";--/{0}é")
"""A scope whose name must not be taken for a pattern, a part of SQL, or the beginning of another name."""


class Moved(Layer):
    """Shows what is in one scope as if that were the root, so that tests with scopes of their own can run there."""

    def __init__(self, below: Store, scope: ScopePath) -> None:
        super().__init__(below)
        self._scope = scope

    async def write(self, write: Write) -> list[Outcome]:
        try:
            return await self._below.write(self._down(write))
        except MnemicError as error:
            error.args = (str(error).replace(repr(f"{self._scope}/")[1:-1], ""),)
            raise

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        found: list[Record | None] = self._up(await self._below.read(self._down(list(refs))))
        return found

    async def scan(self, scan: Scan) -> Page[Record]:
        page: Page[Record] = self._up(await self._below.scan(self._down(scan)))
        return page

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        page: Page[Stream] = self._up(await self._below.streams(self._down(scan)))
        return page

    def _down(self, value: Any) -> Any:
        return _with_scopes(value, lambda scope: self._scope / scope)

    def _up(self, value: Any) -> Any:
        above = len(self._scope.segments)
        return _with_scopes(value, lambda scope: ScopePath("/".join(scope.segments[above:])))


def _with_scopes(value: Any, change: Callable[[ScopePath], ScopePath]) -> Any:
    """Return a value in which every scope path is changed."""
    if isinstance(value, ScopePath):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_with_scopes(item, change) for item in value)
    if isinstance(value, Struct):
        changed = copy(value)
        for name in value.__struct_fields__:
            force_setattr(changed, name, _with_scopes(getattr(value, name), change))
        return changed
    return value


class Confined(RestrictedLayer):
    """A restricted layer among other tenants, which closes the store below."""

    def __init__(self, below: Store) -> None:
        super().__init__(below, HOSTILE, ("read", "write", "erase"))
        self._filled = False

    async def _fill(self) -> None:
        """Write the records of other tenants: the scopes above and beside, with the keys that the tests use."""
        if not self._filled:
            self._filled = True
            path = HOSTILE.path
            others = ["", HOSTILE.parent.path, f"{path}x", path[:-1], "tenXant_*?[a]\\'\";--/{0}é", "acme/alice/monday"]
            for scope in map(ScopePath, others):
                puts = [Put(Record(scope, kind, key, text="of another tenant")) for kind in KINDS for key in "abc"]
                await self._below.write(Write(tuple(puts)))

    async def write(self, write: Write) -> list[Outcome]:
        await self._fill()
        return await super().write(write)

    async def close(self) -> None:
        await self._below.close()


def confined(store: Store) -> Store:
    return Moved(Confined(store), HOSTILE)


def held(store: Store) -> Store:
    return HoldLayer(store)


def both(store: Store) -> Store:
    return audited(HistoryLayer(EncryptLayer(store, KEY), timedelta(days=30)))


LAYERS: dict[str, Callable[[Store], Store]] = {
    "encrypted": sealed,
    "audited": audited,
    "layered": both,
    "redacted": redacted,
    "confined": confined,
    "kept": kept,
    "held": held,
}
"""What stands before the scheme of the store below."""


def _backend(prefix: str, below: str) -> Backend:
    _, inner = registry.find(f"{below}://")

    async def open(url: StoreURL) -> Store:
        return LAYERS[prefix](await inner.open(StoreURL.parse(url.text.removeprefix(f"{prefix}+"))))

    return Backend(open=open, inline=inner.inline)


SCHEMES = {
    "encrypted+memory": True,
    "audited+memory": True,
    "layered+sqlite": True,
    "confined+sqlite": False,
    "redacted+sqlite": False,
    "kept+sqlite": False,
    "held+sqlite": False,
}
"""Layers over a store, and whether they are also tested without an event loop, where their way is the same."""


def register() -> None:
    """Register them."""
    for scheme in SCHEMES:
        registry.register(scheme, _backend(*scheme.split("+")))


def targets() -> list[Target]:
    """Return them as stores to test."""
    return [_target(scheme, STORES[scheme.partition("+")[2]]) for scheme in SCHEMES]


def _target(scheme: str, below: Target) -> Target:
    @contextmanager
    def empty(folder: Path) -> Iterator[str]:
        with below.empty(folder) as url:
            yield f"{scheme.partition('+')[0]}+{url}"

    return Target(scheme, empty, below.capabilities, SCHEMES[scheme])
