"""Stores over a bucket, short ways to write to them, and what must be true of all that lies in a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dict_bucket import DictBucket
from mnemic.backends.keyvalue.store import KeyValueStore
from mnemic.backends.s3 import draft, engine, library, manifest, names, objects, segment
from mnemic.records import Record, ScopePath
from mnemic.store import registry
from mnemic.store.protocol import Store, scan_all
from mnemic.store.query import Put, Scan

HOME = ScopePath("acme/alice")
KIND = "message"


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft, "INLINE", 600)
    patch.setattr(draft, "FULL", 3000)
    patch.setattr(draft, "MOST", 2000)
    patch.setattr(draft, "FEW", 3)
    patch.setattr(library, "WHOLE", 400)
    patch.setattr(segment, "BLOCK", 100)


def opened(bucket: objects.Bucket) -> KeyValueStore:
    return KeyValueStore(engine.S3Engine(bucket, names.Names("p")))


def put(key: str, scope: ScopePath = HOME, **fields: Any) -> Put:
    return Put(Record(scope, KIND, key, **fields))


async def texts(store: Store, scope: ScopePath = HOME) -> dict[str, str | None]:
    scan = Scan(scope=scope, below=True, kinds=(KIND,), limit=7)
    return {record.key: record.text async for record in scan_all(store, scan)}


def contents(bucket: DictBucket) -> bytes:
    """Return everything that lies in a bucket, decompressed, without what was only deleted from a list."""
    found = [repr(sorted(bucket.objects)).encode()]
    for key, (data, _, _) in bucket.objects.items():
        if "segments/" in key and data.startswith(segment.MAGIC):
            tenant = manifest.read_manifest(*bucket.objects[f"p/manifests/{key.split('/')[2]}"][:2], key)
            held = next(held for held in tenant.segments.values() if key.endswith(held.id))
            for place in segment.read_table(data[held.size - held.table :]).values():
                index = segment.read_index(data[place.offset : place.offset + place.index])
                items, marks = segment.read_run(data, place)
                found += [repr(index).encode(), *(item.body for item in items), *(mark.value for mark in marks)]
        else:
            found.append(segment.decompress(data.partition(b"\n")[2]))
    return b"\n".join(found)


async def audit(bucket: DictBucket) -> None:
    """Check that nothing lies in the bucket but what manifests say, where they say it, and only once."""
    reader = library.Library(bucket, names.Names("p"))
    used = set()
    for key in bucket.keys("p/manifests/"):
        data, etag, _ = bucket.objects[key]
        tenant = manifest.read_manifest(data, etag, key)
        if tenant.directory is not None:
            used.add(f"p/segments/_{tenant.name}/{tenant.directory}")
            tenant.base = await reader.directory(tenant.name, tenant.directory)
            assert not any(entry.rows or entry.marks for entry in tenant.base.streams)
        held: dict[tuple[int, tuple[str, str]], tuple[list[segment.Item], list[segment.Mark]]] = {}
        for slot, piece in tenant.segments.items():
            used.add(f"p/segments/_{tenant.name}/{piece.id}")
            whole = await reader.whole(tenant.name, piece)
            assert len(whole) == piece.size
            for name, place in (await reader.table(tenant.name, piece)).items():
                held[slot, name] = segment.read_run(whole, place)
        for name in tenant.names:
            entry, tail = tenant.entry(name), tenant.tail(name)
            assert entry is not None
            seqs, keys, marks = list(tail.rows), list(tail.by_key), []
            for part in entry.parts:
                run = held.pop((part.slot, name))
                assert part == manifest.Part.of(part.slot, *run)
                seqs += [item.seq for item in run[0]]
                keys += [item.key for item in run[0]]
                marks += [(mark.seq, mark.name) for mark in run[1]]
            assert len(set(seqs)) == len(set(keys)) == len(seqs) == entry.head.count
            assert len(set(marks)) == len(marks)
            assert {seq for seq, _ in (*marks, *tail.marks)} <= set(seqs)
        assert not held
        assert len(tenant.segments) <= 3 * draft.FEW + sum(s.raw for s in tenant.segments.values()) // draft.FULL
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
