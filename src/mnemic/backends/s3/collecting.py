"""Garbage collection: unreferenced segments, journal entries, and empty tenants."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ...store.registry import StoreURL
from .engine import S3Engine
from .manifest import Tenant
from .objects import Listed
from .opening import open_engine

DAY = timedelta(days=1)
"""Minimum age of a segment before it is deleted: a running commit may still reference it."""
MONTH = timedelta(days=30)
"""Minimum age of a journal entry before it is deleted."""


async def collect(url: str, *, older: timedelta = DAY) -> int:
    """Delete unreferenced objects that are `older`; return how many.

    They are invisible in the store, and only occupy space. Raises StoreError.
    """
    engine = await open_engine(StoreURL.parse(url))
    try:
        return await collect_in(engine, older)
    finally:
        await engine.close()


async def collect_in(engine: S3Engine, older: timedelta = DAY) -> int:
    """Run `collect` on an open store."""
    # The server's clock, since it sets the objects' times.
    now = await engine.bucket.now()
    names = engine.names
    segments: dict[str, list[str]] = {}
    async for item in engine.bucket.list(names.segments):
        if now - item.modified > older:
            tenant, id = names.owner(item.key)
            segments.setdefault(tenant, []).append(id)
    removed = 0
    for tenant, ids in segments.items():
        # Read after listing the segments: one that a manifest names by then is in use.
        used = await engine.read(tenant, _used)
        removed += await _remove(engine, (names.segment(tenant, id) for id in ids if id not in used))
    old = [item.key async for item in engine.bucket.list(names.notes) if now - item.modified > MONTH]
    removed += await _remove(engine, old)
    if engine.bucket.deletes:
        manifests = [item async for item in engine.bucket.list(names.manifests) if now - item.modified > older]
        for item in manifests:
            removed += await _remove_tenant(engine, item)
    return removed


async def _used(tenant: Tenant) -> set[str]:
    """Return the segments and the directory in use."""
    used = {segment.id for segment in tenant.segments.values()}
    return used | {tenant.directory} if tenant.directory is not None else used


async def _remove(engine: S3Engine, keys: Iterable[str]) -> int:
    removed = 0
    for key in keys:
        await engine.bucket.delete(key)
        removed += 1
    return removed


async def _remove_tenant(engine: S3Engine, item: Listed) -> int:
    """Delete the manifest of a tenant without streams."""

    async def work(tenant: Tenant) -> bool:
        if tenant.names or tenant.segments or tenant.etag != item.etag:
            return False
        gone = await engine.bucket.delete(item.key, only=item.etag)
        if gone and tenant.directory is not None:
            await engine.bucket.delete(engine.names.segment(tenant.name, tenant.directory))
        return gone

    return int(await engine.read(engine.names.tenant(item.key), work, etag=item.etag))
