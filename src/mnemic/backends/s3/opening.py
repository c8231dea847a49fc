"""Opens a store in an S3 bucket, or on an S3-compatible server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from ...checks import shown
from ...errors import InvalidValueError
from ...store.registry import Backend, StoreURL
from .. import aws
from ..keyvalue.store import KeyValueStore
from .client import Bucket
from .codec import MAX_PREFIX, Keys
from .store import DAY, S3Engine

_MARK = b"This prefix holds a store of Mnemic.\n"


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
    kinds: Any = aws.OPTIONS
    options = url.take(**kinds)
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
    bucket = Bucket(await aws.Requests.open("s3", url, **settings), name)
    keys = Keys(prefix)
    try:
        await bucket.check(keys.marker, _MARK)
    except BaseException:
        await bucket.close()
        raise
    return S3Engine(bucket, keys)


BACKEND = Backend(open=open_s3)
