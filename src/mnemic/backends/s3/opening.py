"""Opens a store in an S3 bucket, or on an S3-compatible server."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ...checks import shown
from ...errors import InvalidValueError
from ...store.registry import Backend, StoreURL
from .. import aws
from ..keyvalue.store import KeyValueStore
from .engine import S3Engine
from .names import LONGEST, Names
from .objects import Bucket

_MARK = b"This prefix holds a store of Mnemic.\n"


async def open_s3(url: StoreURL) -> KeyValueStore:
    """Open a prefix of a bucket, `s3://bucket/prefix?region=…&endpoint=…`; raises StoreError."""
    return KeyValueStore(await open_engine(url))


async def open_engine(url: StoreURL) -> S3Engine:
    """Open the engine of a prefix, after checking that its endpoint supports conditional puts."""
    kinds: Any = aws.OPTIONS
    options = url.take(**kinds)
    prefix = unquote(url.split.path).strip("/")
    bucket_name = url.split.netloc
    if not bucket_name or "@" in bucket_name or ":" in bucket_name:
        raise InvalidValueError(f"{url} names no bucket: use s3://bucket/prefix?region=…")
    if bucket_name.endswith("--x-s3"):
        raise InvalidValueError(f"{url}: a directory bucket does not list its objects in order; use another one")
    if len(prefix.encode()) > LONGEST:
        raise InvalidValueError(f"{url}: the prefix has more than {LONGEST} bytes: {shown(prefix)}")
    names = Names(prefix)
    settings: dict[str, Any] = {}
    if "endpoint" in options:
        # Other servers may lack virtual-hosted buckets and the newest checksums.
        settings = {
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    bucket = Bucket(await aws.Requests.open("s3", url, **settings), bucket_name)
    try:
        await bucket.check(names.marker, _MARK)
    except BaseException:
        await bucket.close()
        raise
    return S3Engine(bucket, names)


BACKEND = Backend(open=open_s3)
