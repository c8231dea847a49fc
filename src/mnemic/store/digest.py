"""Content digests of records and writes."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from msgspec import json

from ..records import Record

_encode = json.Encoder(order="deterministic").encode


def content(record: Record) -> tuple[Any, ...]:
    """Return the content of a record: everything except its position, weight, creation time and expiry."""
    return (
        record.text, record.title, record.data, record.meta, record.labels, record.importance, record.pinned,
        record.valid_from, record.valid_to,
    )  # fmt: skip


def digest(record: Record) -> bytes:
    """Return a digest of a record's content, equal in every store and at every position."""
    return digest_of((record.key, *content(record), record.weight, record.created, record.expires))


def digest_of(said: Any) -> bytes:
    """Return a digest of values that can be written as JSON."""
    return blake2b(_encode(said), digest_size=16).digest()
