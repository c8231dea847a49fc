"""Diagnoses a store in an S3 bucket; the one put that it sends has a condition that is never true."""

from __future__ import annotations

from ...errors import StoreError, StorePermissionError
from ...store.diagnosis import Diagnosis
from ...store.registry import StoreURL, closed_on_error
from ..keyvalue.store import KeyValueStore
from .client import NEVER, Bucket
from .store import MARK, S3Engine, open_bucket

COUNTED = 10_000
"""How many objects are counted at most."""


async def diagnose(url: StoreURL) -> Diagnosis:
    """Return the diagnosis of a prefix; raises a StoreError if the service does not answer."""
    bucket, keys = await open_bucket(url)
    found = Diagnosis(engine="S3")
    async with closed_on_error(bucket):
        exists = await _check(bucket, keys.marker, url, found)
        size = count = 0
        for prefix in (keys.manifests, keys.segments):
            async for item in bucket.list(prefix):
                size, count = size + item.size, count + 1
                if count >= COUNTED:
                    break
        found.facts |= {"bytes": size, "objects": count, "counted_all": count < COUNTED}
    if exists:
        found.store = KeyValueStore(S3Engine(bucket, keys))
    else:
        await bucket.close()
    return found


async def _check(bucket: Bucket, marker: str, url: StoreURL, found: Diagnosis) -> bool:
    """Check conditions, rights and versions; return whether there is a store."""
    exists = await bucket.get(marker) is not None
    if not exists:
        found.no_store_yet(str(url))
    try:
        if exists and await bucket.put(marker, MARK, over=NEVER) is not None:
            found.error(
                "no_conditional_writes",
                "the endpoint ignores If-Match when an object is put, so that writers overwrite one another",
                "mnemic copy to Amazon S3, or to a server that supports conditional writes",
            )
    except StorePermissionError:
        text = "this user may read the bucket, but not write to it"
        found.warn("read_only", text, "allow s3:PutObject and s3:DeleteObject on the prefix")
    try:
        versions = (await bucket.send("get_bucket_versioning")).get("Status")
    except StoreError:
        return exists  # this user may not ask, or it is another service
    found.facts["versioning"] = versions == "Enabled"
    if versions == "Enabled":
        found.warn(
            "keeps_versions",
            "versioning is on: what is erased stays readable in older versions of its objects",
            "add a lifecycle rule with NoncurrentVersionExpiration for the prefix",
        )
    return exists
