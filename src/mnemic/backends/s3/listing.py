"""Lists streams in the order of scope and kind, over all tenants or within one."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from ..keyvalue.engine import Reach
from ..keyvalue.kept import KeptHead
from .manifest import Tenant
from .names import Names
from .objects import Bucket

_LAST = "\U0010ffff"


class Stretch(Struct, frozen=True, order=True):
    """Streams of a tenant that are adjacent in the global order: its own scope, or those below it.

    There are two, since 'acme-2' sorts between 'acme' and 'acme/alice'.
    """

    start: str
    tenant: str
    etag: str | None = None
    """ETag of the tenant's manifest, if known."""


def heads_within(tenant: Tenant, reach: Reach, stretch: Stretch | None = None) -> list[KeptHead]:
    """Return the requested heads of a tenant, or of one stretch of it, in order."""
    names = tenant.names
    first, last = bisect_left(names, (reach.scope, "")), bisect_right(names, (reach.scope, _LAST))
    if reach.below:
        last = bisect_left(names, (f"{reach.scope}0", "")) if reach.scope else len(names)
    if reach.after is not None and reach.reverse:
        last = min(last, bisect_left(names, reach.after))
    elif reach.after is not None:
        first = max(first, bisect_right(names, reach.after))
    found = []
    inner = f"{reach.scope}/" if reach.scope else ""
    for name in reversed(names[first:last]) if reach.reverse else names[first:last]:
        scope, kind = name
        if reach.kinds and kind not in reach.kinds:
            continue
        if scope != reach.scope and not scope.startswith(inner):
            continue
        if stretch is not None and ("/" in scope) != (stretch.start != stretch.tenant):
            continue
        head = tenant.head(name)
        assert head is not None
        found.append(head)
        if len(found) == reach.limit:
            break
    return found


async def stretches(bucket: Bucket, names: Names, reach: Reach) -> AsyncGenerator[Stretch, None]:
    """Yield all stretches that may contain requested streams, in order."""
    if reach.reverse:
        everything = [part async for each in _listed(bucket, names, None) for part in _both(*each)]
        for stretch in sorted(everything, reverse=True):
            if reach.after is None or stretch.start <= reach.after[0]:
                yield stretch
        return
    waiting: list[Stretch] = []
    start = None
    if reach.after is not None:
        start = reach.after[0].partition("/")[0]
        for tenant in _early(start):
            for stretch in _both(tenant, None):
                heapq.heappush(waiting, stretch)
    async with aclosing(_listed(bucket, names, start)) as listed:
        async for tenant, etag in listed:
            while waiting and waiting[0].start <= tenant:
                yield heapq.heappop(waiting)
            for stretch in _both(tenant, etag):
                heapq.heappush(waiting, stretch)
    while waiting:
        yield heapq.heappop(waiting)


async def _listed(bucket: Bucket, names: Names, after: str | None) -> AsyncGenerator[tuple[str, str], None]:
    """Yield the tenants after one, in order, with the ETags of their manifests."""
    start = None if after is None else names.manifest(after)
    async with aclosing(bucket.list(names.manifests, after=start)) as items:
        async for item in items:
            yield names.tenant(item.key), item.etag


def _early(tenant: str) -> list[str]:
    """Return a tenant, and those before it whose streams may follow its own: 'a' has 'a/b' after 'a-c'."""
    return [tenant, *(tenant[:n] for n in range(1, len(tenant)) if tenant[n] < "/")]


def _both(tenant: str, etag: str | None) -> list[Stretch]:
    return [Stretch(start, tenant, etag) for start in ((tenant, f"{tenant}/") if tenant else ("",))]
