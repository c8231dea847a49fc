"""Whether two records say the same, wherever they lie."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from msgspec import json

from ..records import Record

_encode = json.Encoder(order="deterministic").encode


def digest(record: Record) -> bytes:
    """Return what is the same for two records that say the same, whatever their stores have numbered them."""
    content: Any = (
        record.key, record.text, record.title, record.data, record.meta, record.labels, record.importance,
        record.weight, record.pinned, record.created, record.expires, record.valid_from, record.valid_to,
    )  # fmt: skip
    return blake2b(_encode(content), digest_size=16).digest()
