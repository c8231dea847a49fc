"""Content digests of records and writes."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from msgspec import json

from ..records import Record

_encode = json.Encoder(order="deterministic").encode


_NOT_CONTENT = {"scope", "kind", "key", "seq", "version", "weight", "created", "updated", "expires", "derived"}
content: Callable[[Record], tuple[Any, ...]] = attrgetter(
    *(name for name in Record.__struct_fields__ if name not in _NOT_CONTENT)
)
"""Return the content of a record: everything except its identity, position, weight, times of writing and expiry."""


def digest(record: Record) -> bytes:
    """Return a digest of a record's content, equal in every store and at every position."""
    return digest_of((record.key, *content(record), record.weight, record.created, record.expires))


def digest_of(said: Any) -> bytes:
    """Return a digest of values that can be written as JSON."""
    return blake2b(_encode(said), digest_size=16).digest()
