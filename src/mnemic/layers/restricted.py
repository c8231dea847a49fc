"""The layer that confines a caller to one scope and some rights.

Outside the scope everything looks as if it did not exist: reads find nothing, whether or not something is there, and
every write is refused. Internal records are hidden everywhere. It protects from what callers ask for through the API,
not from Python code in the same process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

from msgspec.structs import replace

from ..checks import check_names, shown
from ..errors import AccessDeniedError, ClosedError
from ..kinds import KINDS
from ..records import ERASURE_KIND, Match, Record, Ref, ScopePath, Stream
from ..store.confinement import Confined
from ..store.protocol import Capability, Page, Scrubbed, SearchableStore, Store
from ..store.query import Op, Outcome, Purge, Scan, Search, StreamScan, Write, place_of
from ..telemetry.calls import UNKNOWN, Origin
from .layer import ConfiningLayer, Layer, filtered_scan, layers_of
from .store_signing import StoreSigning

Right: TypeAlias = Literal["read", "write", "erase", "admin"]
"""A permission: to read; to add, change and delete single records; to delete whole streams; to see the audit log, set
holds, and reveal what was redacted."""
RIGHTS: tuple[Right, ...] = get_args(Right)

Item = TypeVar("Item", Record, Stream)

HIDDEN = frozenset(name for name, kind in KINDS.items() if kind.access == "none")
"""Kinds of internal records that are neither read nor written through this layer."""
UNREAD = frozenset(name for name, kind in KINDS.items() if kind.access in ("none", "purge"))
"""Kinds whose records are not read; those that are not hidden are listed and purged when their scope is erased."""
UNWRITTEN = frozenset(name for name, kind in KINDS.items() if kind.access != "open")
"""Kinds whose records only layers write."""


class RestrictedLayer(Layer):
    """Shows and changes only what is in one scope and below, as far as the rights go.

    All methods raise AccessDeniedError without the right; `close` leaves the store below open.
    """

    def __init__(self, below: Store, scope: ScopePath, rights: Collection[Right] = RIGHTS) -> None:
        """Raise InvalidValueError for an unknown right."""
        super().__init__(ConfiningLayer(below, lambda: Confined(scope)))
        self.scope: ScopePath = scope
        self.rights: frozenset[str] = frozenset(check_names(tuple(rights), "right", RIGHTS))
        self.origin: Origin = getattr(below, "origin", UNKNOWN)
        self.signing: StoreSigning | None = getattr(below, "signing", None)
        self._closed = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store below except its index, which is not confined to a scope."""
        return self._below.capabilities - {Capability.NEAREST}

    def require(self, right: Right) -> None:
        """Raise AccessDeniedError without this right, ClosedError after `close`."""
        if self._closed:
            raise ClosedError("this restricted memory is closed")
        if right not in self.rights:
            raise AccessDeniedError(f"this needs the right {right!r}; granted: {', '.join(sorted(self.rights))}")

    def reach(self, scope: ScopePath, *, below: bool = True) -> ScopePath | None:
        """Return the part of a scope, and of those `below` it, that is visible; None if nothing is."""
        if self.scope.contains(scope):
            return scope
        return self.scope if below and scope.contains(self.scope) else None

    def includes(self, other: RestrictedLayer) -> bool:
        """Return whether another layer allows nothing that this one does not."""
        return self.scope.contains(other.scope) and self.rights >= other.rights

    def check(self, ops: Sequence[Op]) -> None:
        """Raise AccessDeniedError unless all operations are allowed."""
        for op in ops:
            scope, kind, _ = place_of(op)
            if not self.scope.contains(scope):
                raise AccessDeniedError(f"scope {shown(scope.path)} is not within {shown(self.scope.path)}")
            if kind in HIDDEN or (kind in UNWRITTEN and not isinstance(op, Purge)):
                raise AccessDeniedError(f"the kind {kind!r} is reserved for internal records")
            erases = isinstance(op, Purge) and (op.drop or not op.expired_only)
            self.require("erase" if erases or kind == ERASURE_KIND else "write")

    async def write(self, write: Write) -> list[Outcome]:
        self.check(write.ops)
        return await self._below.write(write)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        self.require("read")
        visible = [self.scope.contains(ref.scope) and ref.kind not in UNREAD for ref in refs]
        found = iter(await self._below.read([ref for ref, seen in zip(refs, visible, strict=True) if seen]))
        return [next(found) if seen else None for seen in visible]

    async def scan(self, scan: Scan) -> Page[Record]:
        self.require("read")
        scope = self.reach(scan.scope, below=scan.below)
        kinds = tuple(kind for kind in scan.kinds if kind not in UNREAD)
        inner = replace(scan, scope=scope or self.scope, kinds=kinds)
        if scope is None or (scan.kinds and not kinds):
            await self._below.scan(replace(inner, limit=0))  # raises for a closed store, and for an invalid cursor
            return Page(())
        page = await (self._below.scan(inner) if kinds else filtered_scan(self._below, inner, _without_internal))
        return Page(self._held(page.items), page.cursor)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        self.require("read")
        scope = self.reach(scan.scope, below=scan.below)
        kinds = tuple(kind for kind in scan.kinds if kind not in HIDDEN)
        inner = replace(scan, scope=scope or self.scope, kinds=kinds)
        if scope is None or (scan.kinds and not kinds):
            await self._below.streams(replace(inner, limit=0))
            return Page(())
        page = await self._below.streams(inner)
        return Page(tuple(one for one in self._held(page.items) if one.kind not in HIDDEN), page.cursor)

    async def search(self, search: Search) -> list[Match]:
        """Search what is visible; without the right to write, hits do not count as uses."""
        self.require("read")
        scope = self.reach(search.scope, below=search.below)
        if scope is None:
            return []
        below: SearchableStore = self._below  # type: ignore[assignment]
        found = await below.search(replace(search, scope=scope, uses=search.uses and "write" in self.rights))
        return [match for match in found if self.scope.contains(match.record.scope)]

    def _held(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """Return the items in the scope, which are all unless the store below made a mistake."""
        return tuple([item for item in items if self.scope.contains(item.scope)])

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        self.require("erase")
        if finish:
            require_whole(self, "finish")
        return await super().scrub(finish=finish)

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        self.require("erase")
        reached = self.reach(scope)
        return Scrubbed() if reached is None else await super().destroy(reached)

    async def close(self) -> None:
        """Refuse further calls; the store below stays open."""
        self._closed = True


def visible_root(store: Store) -> ScopePath:
    """Return the scope that a store is confined to; the root if it is not."""
    return store.scope if isinstance(store, RestrictedLayer) else ScopePath()


def unrestricted(store: Store) -> Store:
    """Return the store behind restrictions, for what belongs to the store itself and not to the caller."""
    return next(one for one in layers_of(store) if not isinstance(one, RestrictedLayer | ConfiningLayer))


def confined(store: Store) -> Confined:
    """Return a context manager for calls below a store that is perhaps restricted, confined as its own are."""
    return Confined(visible_root(store))


def require(store: Store, right: Right) -> None:
    """Raise AccessDeniedError if a store is restricted and lacks a right."""
    if isinstance(store, RestrictedLayer):
        store.require(right)


def require_whole(store: Store, what: str) -> None:
    """Raise AccessDeniedError if a store is restricted, since `what` concerns all of it."""
    if isinstance(store, RestrictedLayer):
        raise AccessDeniedError(f"{what} concerns the whole store, of which this memory may use only a part")


async def _without_internal(records: Sequence[Record]) -> list[Record | None]:
    return [None if record.kind in UNREAD else record for record in records]
