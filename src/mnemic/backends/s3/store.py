"""The S3 engine: each scope has one manifest; a commit replaces it on the condition that it has not changed."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import unquote

from ...checks import shown
from ...errors import InvalidValueError, StoreBusyError, StoreError, StoreUnavailableError, UnreadableStoreError
from ...records import Record, ScopePath, StreamName, known_scope
from ...store.codec import decode_record
from ...store.diagnosis import diagnosed_by
from ...store.protocol import Capability, Scrubbed, Unreached
from ...store.registry import Backend, StoreURL, closed_on_error
from ...store.stream_state import Loaded, Needs, RecordState, StreamChange, StreamState
from .. import aws
from ..calls import mark_errors
from ..keyvalue.engine import RecordRange, StreamRange, comes_after
from ..keyvalue.store import KeyValueStore
from .client import Bucket, Cache, ListedObject, UnchangedError
from .codec import (
    MAX_PREFIX,
    Manifest,
    ObjectKeys,
    Segment,
    SegmentRecords,
    StoredRecord,
    StreamEntry,
    read_object,
    write_object,
)
from .commit import MAX_COMMITS, Commit

CACHE_SIZE = 64 * 1024 * 1024
"""Approximate memory of the cache of manifests, and of that of segments, in bytes."""
AHEAD = 64
"""How many manifests are read concurrently when listing streams."""
HOUR = timedelta(hours=1)
"""Minimum age of an unused object before an erasure is finished with it."""
DAY = timedelta(days=1)
"""Minimum age of an unused object before it is collected: a running commit may still reference it."""
MAX_EMPTY = 4096
"""Size of an object beyond which it is not the manifest of an empty scope."""

MARK = b"This prefix holds a store of Mnemic.\n"

Result = TypeVar("Result")
_seq: Callable[[StoredRecord], int] = attrgetter("seq")


class _MissingError(Exception):
    """A segment does not exist: the manifest is out of date, or the segment was deleted by mistake."""


class S3Engine:
    capabilities: frozenset[Capability] = frozenset({Capability.DURABLE, Capability.SHARED})

    def __init__(self, bucket: Bucket, keys: ObjectKeys) -> None:
        self.url: str = bucket.url
        self._bucket = bucket
        self._keys = keys
        self._manifests: Cache[Manifest] = Cache(CACHE_SIZE)
        self._segments: Cache[SegmentRecords] = Cache(CACHE_SIZE)

    def commit_group(self, scope: str) -> str:
        return scope

    async def load(self, needs: Needs) -> Loaded:
        names = {*needs.streams, *needs.keys, *needs.whole}
        (scope,) = {name[0] for name in names}

        async def work(manifest: Manifest) -> Loaded:
            loaded = Loaded(whole=set(needs.whole))
            for name in names:
                entry, keys = manifest.stream(name[1]), needs.keys.get(name, set())
                loaded.streams[name] = entry.state
                found: dict[str, RecordState | None] = dict.fromkeys(keys)
                if name in needs.whole:
                    found |= {record.key: record for record in await self._all(entry, manifest)}
                else:
                    found |= {record.key: record for record in await self._by_key(keys, entry, manifest)}
                loaded.records[name] = found
            return loaded

        return await self._read(self._keys.manifest(scope), work)

    async def commit(self, changes: Sequence[StreamChange], moment: int) -> bool:
        scope = changes[0].name[0]
        key = self._keys.manifest(scope)
        made = await self._read(key, lambda manifest: self._made(scope, manifest, changes), fresh=False)
        return made is not None and await self._publish(key, *made)

    async def rows(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]]:
        cached = self._manifests.get(self._keys.manifest(name[0]))
        state = None if cached is None else cached.stream(name[1]).state
        fresh = state is None or state.revision != span.revision
        return await self._records(name, lambda *within: self._in_span(span, *within), span.derived, fresh=fresh)

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[StreamState | None, list[Record]]:
        return await self._records(name, lambda *within: self._by_key(keys, *within))

    async def _records(
        self,
        name: StreamName,
        find: Callable[[StreamEntry, Manifest], Awaitable[list[StoredRecord]]],
        derived: Sequence[str] = (),
        *,
        fresh: bool = True,
    ) -> tuple[StreamState | None, list[Record]]:
        """Return the state of a stream and some records with their valid derived values."""

        async def work(manifest: Manifest) -> tuple[StreamState | None, list[Record]]:
            entry, found, scope = manifest.stream(name[1]), list[Record](), known_scope(name[0])
            for each in await find(entry, manifest):
                values = each.derived | entry.derived.get(each.seq, {}) if derived else {}
                valid = {n: values[n][1] for n in derived if n in values and values[n][0] in (0, each.version)}
                found.append(decode_record(scope, name[1], each.body, valid))
            return entry.state, found

        return await self._read(self._keys.manifest(name[0]), work, fresh=fresh)

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        async def work(manifest: Manifest) -> list[int]:
            records = await self._all(manifest.stream(name[1]), manifest)
            return [record.seq for record in records if record.labels.get(label) in values]

        return await self._read(self._keys.manifest(name[0]), work)

    async def streams(self, reach: StreamRange) -> list[StreamState]:
        keys = self._keys
        position = reach.scope if reach.after is None or reach.reverse else reach.after[0]
        key = keys.manifest(position)
        if not reach.below:
            return await self._states([(key, None)], reach)
        start = keys.order(key) if position else ""
        # The root is listed with the others, and so is a long scope, whose key is longer than its start.
        own: list[tuple[str, str | None]] = [(key, None)] if key == start else []
        first, others = await asyncio.gather(self._states(own, reach), self._listed_states(reach, start))
        return [*others, *first][: reach.limit] if reach.reverse else [*first, *others][: reach.limit]

    async def collect(self, older: timedelta = DAY) -> int:
        """Delete objects that are unused and `older`; return how many."""
        # The server's clock, since it sets the objects' times.
        now = await self._bucket.now()
        unused = [key async for key, modified in self._unused(self._keys.segments) if now - modified > older]
        for key in unused:
            await self._bucket.delete(key)
        empty = 0
        if self._bucket.conditional_deletes:
            old = [item async for item in self._bucket.list(self._keys.manifests) if now - item.modified > older]
            empty = sum([await self._delete_empty(item) for item in old if item.size <= MAX_EMPTY])
        return len(unused) + empty

    async def _unused(self, prefix: str) -> AsyncGenerator[tuple[str, datetime], None]:
        """Yield the segments with this prefix that no manifest names, and when they were written."""
        segments: dict[str, list[ListedObject]] = {}
        async for item in self._bucket.list(prefix):
            segments.setdefault(self._keys.manifest_of(item.key), []).append(item)
        for manifest, items in segments.items():
            # Read after listing the segments: one that a manifest names by then is in use.
            used = {segment.id for segment in (await self._fetch(manifest)).segments}
            for item in items:
                if item.key.rpartition("/")[2] not in used:
                    yield item.key, item.modified

    async def destroy(self, scope: ScopePath) -> Scrubbed:
        """Drop what is cached of an erased scope, and name what interrupted writes have left behind there."""
        manifest = self._keys.manifest(scope.path)
        segments = self._keys.segment(manifest, "") if scope.path else self._keys.segments
        done = Scrubbed()
        done.add("cached objects", self._segments.drop_all(segments) + self._manifests.drop_all(manifest))
        await self._name_unused(segments, done)
        return done

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Name earlier versions, if the bucket keeps them; with `finish`, delete what interrupted writes have left."""
        done = Scrubbed()
        if finish:
            done.add("objects that no manifest names", await self.collect(HOUR))
            await self._name_unused(self._keys.segments, done)
        if await self._bucket.versioned():
            done.unreached.append(
                Unreached(
                    what=f"earlier versions of objects of {self.url}, which the bucket keeps",
                    until="until a lifecycle rule deletes noncurrent versions",
                    finish="delete the noncurrent versions, with a lifecycle rule or by hand",
                )
            )
        return done

    async def _name_unused(self, prefix: str, done: Scrubbed) -> None:
        if left := len([key async for key, _ in self._unused(prefix)]):
            done.unreached.append(
                Unreached(
                    what=f"{left:,} objects that interrupted writes have left below {prefix}",
                    until="until they are an hour old, and collected",
                    finish="mnemic erase --finish CERTIFICATE, an hour later",
                    finishable=True,
                )
            )

    async def close(self) -> None:
        await self._bucket.close()

    # ------------------------------------------------------------ manifests

    async def _read(self, key: str, work: Callable[[Manifest], Awaitable[Result]], *, fresh: bool = True) -> Result:
        """Run `work` on the current state of a scope.

        Unless `fresh`, a cached manifest is used. If a segment was deleted since, it retries with the current one.
        """
        manifest = self._manifests.get(key)
        if manifest is None or fresh:
            manifest = await self._fetch(key, manifest)
        while True:
            try:
                return await work(manifest)
            except _MissingError as missing:
                before, manifest = manifest, await self._fetch(key, manifest)
                if before.etag == manifest.etag:
                    raise UnreadableStoreError(f"{self.url}: the object {missing} is missing; restore it") from None

    async def _fetch(self, key: str, cached: Manifest | None = None) -> Manifest:
        """Return the current manifest, and cache it; an empty one if there is none."""
        try:
            found = await self._bucket.get(key, unless=cached.etag if cached is not None else None)
        except UnchangedError:
            assert cached is not None
            return cached
        if found is None:
            absent = Manifest()
            self._manifests.put(key, absent, 500)
            return absent
        try:
            manifest = read_object(Manifest, found.data, self._where(key))
        except UnreadableStoreError as error:
            raise UnreadableStoreError(str(error), stream=(self._keys.scope_of(key), "")) from error
        manifest.etag = found.etag
        newest = self._manifests.get(key)
        if newest is None or newest.number <= manifest.number:  # an answer may be delayed
            self._manifests.put(key, manifest, 10 * len(found.data))
        return manifest

    async def _made(
        self, scope: str, manifest: Manifest, changes: Sequence[StreamChange]
    ) -> tuple[Commit, bytes] | None:
        """Return a commit of changes, with the bytes of its manifest; None if an expectation fails."""
        for change in changes:
            entry, before = manifest.stream(change.name[1]), change.before
            if (entry.state and entry.state.revision) != (before and before.revision):
                return None
            if await self._by_key(change.absent, entry, manifest):
                return None
        commit = Commit(scope, manifest, lambda segments: self._open(segments, manifest))
        return commit, await commit.make(changes)

    async def _publish(self, key: str, commit: Commit, data: bytes) -> bool:
        """Upload a commit; return False if another writer was faster."""
        new = {self._keys.segment(key, id): content for id, content in commit.segments.items()}
        with mark_errors(unsure=False):  # nothing names these objects yet
            await asyncio.gather(*(self._bucket.put_unique(at, write_object(content)) for at, content in new.items()))
        try:
            etag = await self._bucket.put(key, data, over=commit.before.etag)
        except (StoreUnavailableError, StoreBusyError) as error:
            # Also if it was refused: aiohttp silently repeats a put whose answer was lost on an old connection.
            raise type(error)(
                f"{error}; the write may or may not have been done, and can be sent again if it has an id", unsure=True
            ) from error
        manifest = commit.manifest
        if etag is None:
            self._manifests.drop(key)
            with mark_errors(unsure=True):  # an earlier attempt may have succeeded
                manifest = await self._fetch(key)
            if commit.id not in manifest.commits:
                later = manifest.number - commit.manifest.number
                if later >= MAX_COMMITS and len(manifest.commits) == MAX_COMMITS:
                    raise StoreUnavailableError(
                        f"{self.url}: others wrote so much that it cannot be told whether the write was done; "
                        "it can be sent again if it has an id"
                    )
                await self._delete(new)
                return False
        else:
            manifest.etag = etag
            self._manifests.put(key, manifest, 10 * len(data))
        for at, content in new.items():
            self._cache_segment(at, content)
        if manifest.trash and await self._delete(self._keys.segment(key, id) for id in manifest.trash):
            manifest.trash = []
        if not manifest.streams and self._bucket.conditional_deletes:
            self._manifests.drop(key)
            with suppress(StoreError):  # left to later collection
                await self._bucket.delete(key, only=manifest.etag)
        return True

    async def _delete(self, keys: Iterable[str]) -> bool:
        """Delete unused objects; failures are left to later commits or collection."""
        with suppress(StoreError):
            await asyncio.gather(*map(self._bucket.delete, keys))
            return True
        return False

    async def _delete_empty(self, item: ListedObject) -> bool:
        manifest = await self._fetch(item.key, self._manifests.get(item.key))
        if manifest.streams or manifest.etag != item.etag:
            return False
        self._manifests.drop(item.key)
        return await self._bucket.delete(item.key, only=item.etag)

    # ------------------------------------------------------------ records

    async def _all(self, entry: StreamEntry, manifest: Manifest) -> list[StoredRecord]:
        found = list(entry.inline.values())
        for content in await self._open(entry.segments, manifest):
            found += content.records
        return found

    async def _by_key(self, keys: Collection[str], entry: StreamEntry, manifest: Manifest) -> list[StoredRecord]:
        if not keys:
            return []
        inline = {record.key: record for record in entry.inline.values()}
        found = [inline[key] for key in keys if key in inline]
        missing = [key for key in keys if key not in inline]
        for content in await self._open((s for s in entry.segments if s.may_hold(missing)), manifest):
            found += [content.by_key[key] for key in missing if key in content.by_key]
        return found

    async def _in_span(self, span: RecordRange, entry: StreamEntry, manifest: Manifest) -> list[StoredRecord]:
        if span.seqs is not None:
            found = [entry.inline[seq] for seq in span.seqs if seq in entry.inline]
            missing = {seq for seq in span.seqs if seq not in entry.inline}
            for content in await self._open((s for s in entry.segments if s.covers(missing)), manifest):
                found += [record for record in content.records if record.seq in missing]
            return sorted(found, key=_seq, reverse=span.reverse)
        found = _next(sorted(entry.inline.values(), key=_seq), span)
        for segment in reversed(entry.segments) if span.reverse else entry.segments:
            nearest, farthest = (segment.last, segment.first) if span.reverse else (segment.first, segment.last)
            if not span.includes(farthest):
                continue
            if len(found) == span.limit and comes_after(nearest, found[-1].seq, reverse=span.reverse):
                break
            (content,) = await self._open([segment], manifest)
            found = sorted([*found, *_next(content.records, span)], key=_seq, reverse=span.reverse)[: span.limit]
        return found

    async def _open(self, segments: Iterable[Segment], manifest: Manifest) -> list[SegmentRecords]:
        """Return the contents of segments; raises _MissingError."""
        key = self._keys.manifest(manifest.scope)
        return await asyncio.gather(*(self._content(self._keys.segment(key, segment.id)) for segment in segments))

    async def _content(self, key: str) -> SegmentRecords:
        content = self._segments.get(key)
        if content is None:
            found = await self._bucket.get(key)
            if found is None:
                raise _MissingError(key)
            content = read_object(SegmentRecords, found.data, self._where(key))
            self._cache_segment(key, content)
        return content

    def _cache_segment(self, key: str, content: SegmentRecords) -> None:
        self._segments.put(key, content, sum(500 + record.size for record in content.records))

    def _where(self, key: str) -> str:
        return f"{self.url}: the object {key}"

    # ------------------------------------------------------------ lists of streams

    async def _listed_states(self, reach: StreamRange, start: str) -> list[StreamState]:
        """Return the next states of streams in the manifests after `start`, in order."""
        found: list[StreamState] = []
        some: list[tuple[str, str | None]] = []
        order = self._keys.order
        async with aclosing(self._listed(reach, start)) as listed:
            async for item in listed:
                # Keys of long scopes that are alike in their ordered part may be out of order.
                if len(some) >= min(AHEAD, reach.limit) and order(item.key) != order(some[-1][0]):
                    found += await self._states(some, reach)
                    some = []
                    if len(found) >= reach.limit:
                        return found
                some.append((item.key, item.etag))
        return found + await self._states(some, reach)

    async def _listed(self, reach: StreamRange, start: str) -> AsyncGenerator[ListedObject, None]:
        """Yield the manifests after `start` that may contain requested streams, in order."""
        async with aclosing(self._bucket.list(self._keys.below(reach.scope), after=start)) as items:
            if not reach.reverse:
                async for item in items:
                    yield item
                return
            everything = [item async for item in items]
        end = None if reach.after is None else self._keys.order(self._keys.manifest(reach.after[0]))
        for item in reversed(everything):
            if end is None or self._keys.order(item.key) <= end:
                yield item

    async def _states(self, some: Iterable[tuple[str, str | None]], reach: StreamRange) -> list[StreamState]:
        """Return the requested states of streams in manifests, given with their ETags if known, in order."""
        manifests: list[Manifest] = []
        missing = []
        for key, etag in some:
            cached = self._manifests.get(key)
            if cached is not None and cached.etag == etag and etag is not None:
                manifests.append(cached)
            else:
                missing.append(self._fetch(key, cached))
        manifests += await asyncio.gather(*missing)
        found = [
            entry.state
            for manifest in manifests
            for entry in manifest.streams.values()
            if entry.state is not None and reach.includes(entry.state.name)
        ]
        return sorted(found, key=attrgetter("name"), reverse=reach.reverse)


def _next(records: list[StoredRecord], span: RecordRange) -> list[StoredRecord]:
    """Return the next of some sorted records, in the requested order."""
    if span.reverse:
        end = len(records) if span.after is None else bisect_left(records, span.after, key=_seq)
        return records[max(0, end - span.limit) : end][::-1]
    start = 0 if span.after is None else bisect_right(records, span.after, key=_seq)
    return records[start : start + span.limit]


async def open_s3(url: StoreURL) -> KeyValueStore:
    """Open a prefix of a bucket, `s3://bucket/prefix?region=…&endpoint=…`; raises StoreError."""
    return KeyValueStore(await _open_engine(url))


async def collect(url: str, *, older: timedelta = DAY) -> int:
    """Delete objects that interrupted writes have left behind and that are `older`; return how many.

    They are invisible in the store, and only occupy space. Raises StoreError.
    """
    engine = await _open_engine(StoreURL.parse(url))
    try:
        return await engine.collect(older)
    finally:
        await engine.close()


async def _open_engine(url: StoreURL) -> S3Engine:
    """Open the engine of a prefix, after checking that its endpoint supports conditional puts."""
    bucket, keys = await open_bucket(url)
    async with closed_on_error(bucket):
        await bucket.check(keys.marker, MARK)
    return S3Engine(bucket, keys)


async def open_bucket(url: StoreURL) -> tuple[Bucket, ObjectKeys]:
    """Return the bucket of a URL, which is not checked, and the keys below its prefix."""
    options = url.take(**aws.OPTIONS)
    prefix = unquote(url.split.path).strip("/")
    name = url.split.netloc
    if not name or "@" in name or ":" in name:
        raise InvalidValueError(f"{url} names no bucket: use s3://bucket/prefix?region=…")
    if name.endswith("--x-s3"):
        raise InvalidValueError(f"{url}: a directory bucket does not list its objects in order; use another one")
    if len(prefix.encode()) > MAX_PREFIX:
        raise InvalidValueError(f"{url}: the prefix has more than {MAX_PREFIX} bytes: {shown(prefix)}")
    settings: dict[str, Any] = {}
    if "endpoint" in options:
        # Other servers may lack virtual-hosted buckets and the newest checksums.
        settings = {
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    return Bucket(await aws.Requests.open("s3", url, **settings), name), ObjectKeys(prefix)


BACKEND = Backend(open=open_s3, diagnose=diagnosed_by(__package__))
