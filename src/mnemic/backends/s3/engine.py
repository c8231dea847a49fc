"""The S3 engine: one manifest per tenant; a commit is its conditional replacement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar
from weakref import WeakValueDictionary

from ...errors import StoreError, StoreUnavailableError, UnreadableStoreError
from ...store.planning import Needs, StreamName
from ...store.protocol import Capability
from ..keyvalue.engine import Batch, Loaded, Reach, Span
from ..keyvalue.kept import KeptHead, Row
from .draft import Draft
from .library import Cache, GoneError, Library
from .listing import Stretch, heads_within, stretches
from .manifest import TURNS, Tenant, read_manifest
from .names import Names
from .notes import Notes
from .objects import Bucket, UnchangedError
from .reading import Reader

ATTEMPTS = 8
"""How often a commit is retried because others wrote to other streams of the tenant."""
TENANTS = 64 * 1024 * 1024
"""Approximate memory of the manifest cache, in bytes."""
AHEAD = 32
"""How many manifests are read concurrently when listing streams of many tenants."""

Result = TypeVar("Result")


class S3Engine:
    """Stores the bytes of a store in a bucket."""

    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})
    expires_streams = False

    def __init__(self, bucket: Bucket, names: Names) -> None:
        self.url: str = bucket.url
        self.bucket = bucket
        self.names = names
        self._library = Library(bucket, names)
        self._notes = Notes(bucket, names)
        self._tenants = Cache(TENANTS)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def partition(self, name: StreamName) -> str:
        """Return the tenant: the first segment of the scope."""
        return name[0].partition("/")[0]

    def fits(self, batch: Batch) -> bool:
        """Return True: what does not fit into a manifest goes into segments."""
        return True

    async def load(self, needs: Needs) -> Loaded:
        loaded = Loaded()
        parts = {self.partition(name) for name in (*needs.streams, *needs.keys, *needs.whole)} or {""}

        async def take(tenant: Tenant) -> None:
            for name in needs.streams:
                if self.partition(name) == tenant.name:
                    loaded.heads[name] = tenant.head(name)
            for name, keys in needs.keys.items():
                if self.partition(name) == tenant.name:
                    slots = await self._reader(tenant, name).slots(keys)
                    loaded.slots.setdefault(name, {}).update(slots)
            for name in needs.whole:
                if self.partition(name) == tenant.name:
                    slots = await self._reader(tenant, name).all_slots()
                    loaded.slots.setdefault(name, {}).update(slots)
                    loaded.whole.add(name)

        await asyncio.gather(*(self.read(part, take) for part in parts))
        return loaded

    async def commit(self, batch: Batch) -> bool:
        part = self.partition(batch.changes[0].name)
        lock = self._locks.setdefault(part, asyncio.Lock())
        async with lock:
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(random.uniform(0, min(0.01 * 2**attempt, 0.5)))  # noqa: S311
                draft = await self.read(part, lambda tenant: self._draft(tenant, batch), fresh=attempt > 0)
                if draft is None and not attempt:
                    # The cached state may be stale.
                    draft = await self.read(part, lambda tenant: self._draft(tenant, batch))
                if draft is None:
                    return False
                if await self._publish(*draft):
                    return True
        return False

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        async def work(tenant: Tenant) -> tuple[KeptHead | None, list[Row]]:
            return tenant.head(name), await self._reader(tenant, name).rows(span)

        held: Tenant | None = self._tenants.get(self.partition(name))
        head = held.head(name) if held is not None else None
        known = head is not None and head.revision == span.revision
        return await self.read(self.partition(name), work, fresh=not known)

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        async def work(tenant: Tenant) -> tuple[KeptHead | None, list[Row]]:
            return tenant.head(name), await self._reader(tenant, name).find(keys)

        return await self.read(self.partition(name), work)

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        return await self.read(self.partition(name), lambda tenant: self._reader(tenant, name).labeled(label, values))

    async def heads(self, reach: Reach) -> list[KeptHead]:
        if reach.scope or not reach.below:
            return heads_within(await self.read(self.partition((reach.scope, "")), _itself), reach)
        found: list[KeptHead] = []
        some: list[Stretch] = []
        async with aclosing(stretches(self.bucket, self.names, reach)) as walk:
            async for stretch in walk:
                some.append(stretch)
                if len(some) == AHEAD:
                    found += await self._heads_of(some, reach)
                    some = []
                    if len(found) >= reach.limit:
                        break
        found += await self._heads_of(some, reach)
        return found[: reach.limit]

    async def note(self, key: str) -> bytes | None:
        return await self._notes.get(key)

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        return await self._notes.swap(key, before, after)

    async def close(self) -> None:
        await self.bucket.close()

    async def read(
        self, part: str, work: Callable[[Tenant], Awaitable[Result]], *, etag: str | None = None, fresh: bool = True
    ) -> Result:
        """Run `work` on the current state of a tenant.

        The manifest is not requested if its ETag is known to be current, or `fresh` is false. If a segment was
        deleted since the manifest was read, it retries once with the current manifest.
        """
        missed: str | None = None
        held: Tenant | None = self._tenants.get(part)
        while True:
            if held is None or (fresh and held.etag != etag) or missed is not None:
                held = await self._fetch(part, held)
            try:
                await self._complete(held)
                return await work(held)
            except GoneError as gone:
                if held.etag == missed:
                    raise UnreadableStoreError(
                        f"{self.url}: the object {self.names.segment(part, str(gone))} is missing; restore it"
                    ) from None
                missed = held.etag

    async def _fetch(self, part: str, held: Tenant | None) -> Tenant:
        """Return the current state of a tenant, without its directory."""
        key = self.names.manifest(part)
        try:
            found = await self.bucket.get(key, unless=held.etag if held is not None else None)
        except UnchangedError:
            assert held is not None
            return held
        if found is None:
            return Tenant(part)
        return read_manifest(found.data, found.etag, f"{self.url}: the object {key}")

    async def _complete(self, tenant: Tenant) -> None:
        """Read the directory of a tenant, and cache both."""
        if not tenant.complete:
            if tenant.directory is not None:
                tenant.base = await self._library.directory(tenant.name, tenant.directory)
            tenant.complete = True
        held: Tenant | None = self._tenants.get(tenant.name)
        if tenant.etag is None:
            self._tenants.drop(tenant.name)
        elif held is None or held.turn <= tenant.turn:  # an answer may be delayed
            self._tenants.put(tenant.name, tenant, tenant.size)

    async def _draft(self, tenant: Tenant, batch: Batch) -> tuple[Draft, bytes] | None:
        """Return the draft of a commit; None if an expectation fails."""
        for change in batch.changes:
            head = tenant.head(change.name)
            if (None if head is None else head.revision) != change.expected:
                return None
            if change.absent:
                slots = await self._reader(tenant, change.name).slots(change.absent)
                if any(slot is not None for slot in slots.values()):
                    return None
        draft = Draft(tenant, self._library)
        return draft, await draft.make(batch)

    async def _publish(self, draft: Draft, manifest: bytes) -> bool:
        """Upload a draft; return False if another writer was faster."""
        tenant = draft.tenant
        await asyncio.gather(*(self.bucket.put_new(self._at(tenant, id), data) for id, data in draft.objects.items()))
        try:
            etag = await self.bucket.put(self.names.manifest(tenant.name), manifest, over=tenant.etag)
        except StoreUnavailableError as error:
            raise StoreUnavailableError(
                f"{error}; the write may or may not have been done, and can be sent again if it has an id"
            ) from error
        if etag is None:
            if await self._was_done(draft):
                return True
            await self._delete(tenant, draft.objects)
            return False
        tenant.etag = etag
        tenant.size = 10 * len(manifest)
        for id, data in draft.objects.items():
            self._library.add(id, data)
        self._tenants.put(tenant.name, tenant, tenant.size)
        if tenant.trash and await self._delete(tenant, tenant.trash):
            tenant.trash = []
        return True

    async def _was_done(self, draft: Draft) -> bool:
        """Return whether a commit succeeded on its first attempt; raises StoreUnavailableError."""
        now = await self._fetch(draft.tenant.name, None)
        if draft.turn in now.turns:
            return True
        if now.turn - draft.tenant.turn >= TURNS:
            raise StoreUnavailableError(
                f"{self.url}: others wrote so much that it cannot be told whether the write was done; "
                "it can be sent again if it has an id"
            )
        return False

    async def _delete(self, tenant: Tenant, ids: Iterable[str]) -> bool:
        """Delete unused objects; failures are left to later commits or garbage collection."""
        with suppress(StoreError):
            await asyncio.gather(*(self.bucket.delete(self._at(tenant, id)) for id in ids))
            return True
        return False

    async def _heads_of(self, some: list[Stretch], reach: Reach) -> list[KeptHead]:
        etags = {stretch.tenant: stretch.etag for stretch in some}
        tenants = await asyncio.gather(*(self.read(part, _itself, etag=etags[part]) for part in etags))
        found = dict(zip(etags, tenants, strict=True))
        return [head for stretch in some for head in heads_within(found[stretch.tenant], reach, stretch)]

    def _reader(self, tenant: Tenant, name: StreamName) -> Reader:
        return Reader(tenant, name, self._library)

    def _at(self, tenant: Tenant, id: str) -> str:
        return self.names.segment(tenant.name, id)


async def _itself(tenant: Tenant) -> Tenant:
    return tenant
