"""Stores over a bucket, short ways to write to them, and the invariants of all objects in a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace

from dict_bucket import DictBucket
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.backends.s3 import client, codec, commit, store
from mnemic.records import Record, ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Store, scan_all
from mnemic.store.query import Put, Scan

SCOPE = ScopePath("acme/alice")
KIND = "message"
MANIFEST = "p/manifests/_acme/_alice"
"""Key of the manifest of SCOPE."""


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Move a few records into segments already."""
    patch.setattr(commit, "MAX_INLINE", 600)
    patch.setattr(codec, "MAX_SEGMENT", 1500)


def engine_on(bucket: client.Bucket) -> store.S3Engine:
    return store.S3Engine(bucket, codec.ObjectKeys("p"))


def open_on(bucket: client.Bucket) -> KeyValueStore:
    return KeyValueStore(engine_on(bucket))


def put(key: str, scope: ScopePath = SCOPE, **fields: Any) -> Put:
    return Put(Record(scope, KIND, key, **fields))


async def texts(store: Store, scope: ScopePath = SCOPE) -> dict[str, str | None]:
    scan = Scan(scope=scope, below=True, kinds=(KIND,), limit=7)
    return {record.key: record.text async for record in scan_all(store, scan)}


def contents(bucket: DictBucket) -> bytes:
    """Return all keys and all bytes in a bucket, decompressed."""
    found = [repr(sorted(bucket.objects)).encode()]
    found += [zstandard.decompress(data.partition(b"\n")[2]) for data, _, _ in bucket.objects.values()]
    return b"\n".join(found)


def audit(bucket: DictBucket) -> None:
    """Check that the bucket contains exactly the objects that manifests name, and each record once."""
    keys = codec.ObjectKeys("p")
    used = set()
    for key in bucket.keys("p/manifests/"):
        manifest = codec.read_object(codec.Manifest, bucket.objects[key][0], key)
        assert keys.manifest(manifest.scope) == key
        for kind, entry in manifest.streams.items():
            assert entry.state is not None
            assert entry.state.name == (manifest.scope, kind)
            assert list(entry.inline) == [record.seq for record in entry.inline.values()]
            stored: list[codec.StoredRecord] = []
            for segment in entry.segments:
                at = keys.segment(key, segment.id)
                used.add(at)
                records = codec.read_object(codec.SegmentRecords, bucket.objects[at][0], at).records
                assert segment == codec.Segment.of(segment.id, records)
                stored += records
            seqs = [record.seq for record in stored]
            assert seqs == sorted(set(seqs))
            assert entry.derived.keys() <= set(seqs)
            assert not any(one.small and other.small for one, other in pairwise(entry.segments))
            records = [*stored, *entry.inline.values()]
            assert len({record.seq for record in records}) == len({record.key for record in records}) == len(records)
            assert len(records) == entry.state.count
        inline = sum(entry.inline_size for entry in manifest.streams.values())
        most = commit.MAX_INLINE + 120 * len(manifest.segments)
        # The sizes of records are estimates; what counts is that of the manifest, before it names its trash.
        assert inline <= most or len(codec.pack(replace(manifest, trash=[]))) <= most
    assert set(bucket.keys("p/segments/")) == used


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Store]:
    parsed, backend = registry.find(url)
    store = await backend.open(parsed)
    try:
        yield store
    finally:
        await store.close()


TENANTS = ["a", "a!", "a-b", "a.", "a0", "é", "..", ".", "a b", "%2F", "\U0001f600", "a\\b", "{x}", "'\"<&>", "\uffff"]
LONG = [ScopePath("/".join(char * 200 for char in chars)) for chars in ("xyz", "xya", "xyzz", "x", "xy", "xyé", "😀x")]
"""Scopes whose paths do not fit into a key."""
