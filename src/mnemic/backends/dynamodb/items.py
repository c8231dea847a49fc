"""Items of records and heads: one JSON attribute, which preserves every number exactly.

Items with few attributes are much faster for DynamoDB and the driver.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any

from msgspec import json
from msgspec.structs import replace

from ...errors import TooLargeError
from ...store.planning import RecordState
from ..keyvalue.kept import Kept, KeptHead, decode_head, decode_kept, encode
from .chunks import Chunks
from .table import Fields, Item, expiry

WHOLE = 200_000
"""Maximum size of a record with its derived values in one item."""
WHOLE_DERIVED = 8_000
"""Maximum size of a derived value in the item of its record."""
MOST_LABELS = 100_000
"""Maximum size of a record's labels, which are always in its item."""

RECORD = ("seq", "record", "importance", "body")
HEAD = ("stream", "runs", "bulk", "pending")
"""Attributes of a head that are read: its state, its seqs, its last bulk, and whether that is still to be applied."""

_decode_body = json.Decoder(tuple[str | None, str | None, Any, dict[str, Any]]).decode


def derived_attribute(name: str) -> str:
    """Return the attribute of a derived value."""
    return f"derived:{name}"


@lru_cache(maxsize=100)
def record_fields(derived: tuple[str, ...] = ()) -> Fields:
    """Return the attributes to read of records, and of the head."""
    return Fields(*RECORD, *HEAD, *map(derived_attribute, derived))


def check(kept: Kept) -> None:
    """Raise TooLargeError if a record's labels do not fit into an item."""
    if kept.labels and (size := len(encode(kept.labels))) > MOST_LABELS:
        raise TooLargeError(f"the labels of {kept.key!r} take {size:,} bytes; DynamoDB can keep {MOST_LABELS:,}")


def put_record(kept: Kept, chunks: Chunks) -> tuple[Item, list[Item]]:
    """Return the attributes of a record, and the items to write first; raises TooLargeError."""
    check(kept)
    ttl = expiry(kept.expires)
    attributes: Item = {"seq": {"N": str(kept.seq)}}
    written: list[Item] = []
    if ttl is not None:
        attributes["ttl"] = ttl
    if kept.importance is not None and (number := to_number(kept.importance)) is not None:
        attributes["importance"] = number
        kept = replace(kept, importance=None)
    text = encode(kept)
    if len(text) > WHOLE:
        body = encode((kept.text, kept.title, kept.data, kept.meta))
        reference, written = chunks.cut(body, ttl)
        attributes["body"] = {"S": reference}
        text = encode(replace(kept, text=None, title=None, data=None, meta={}))
    attributes["record"] = {"S": text.decode()}
    return attributes, written


def get_record(item: Item, large: dict[str, bytes]) -> Kept | None:
    """Return the record of an item; None if its body is not among the loaded large values."""
    kept = decode_kept(item["record"]["S"])
    if (number := item.get("importance")) is not None:
        kept.importance = float(Decimal(number["N"]))
    if (body := item.get("body")) is not None:
        value = large.get(body["S"])
        if value is None:
            return None
        kept.text, kept.title, kept.data, kept.meta = _decode_body(value)
    return kept


def get_slot(item: Item) -> RecordState:
    """Return the state of a record that the write path needs."""
    return decode_kept(item["record"]["S"]).slot()


def put_derived(version: int, value: bytes, chunks: Chunks, ttl: Item | None) -> tuple[Item, list[Item]]:
    """Return a derived value as an attribute, and the items to write first."""
    number = {"N": str(version)}
    if len(value) <= WHOLE_DERIVED:
        return {"L": [number, {"B": value}]}, []
    reference, written = chunks.cut(value, ttl)
    return {"L": [number, {"S": reference}]}, written


def get_derived(attribute: Item, large: dict[str, bytes]) -> tuple[int, bytes] | None:
    """Return the version and value of a derived value; None as `get_record` does."""
    version, value = attribute["L"]
    held = value["B"] if "B" in value else large.get(value["S"])
    return None if held is None else (int(version["N"]), bytes(held))


def references(item: Item) -> dict[str, str]:
    """Return the references to large values in an item, by attribute."""
    found = {}
    for name, value in item.items():
        if name == "body":
            found[name] = value["S"]
        elif name.startswith("derived:") and "S" in value["L"][1]:
            found[name] = value["L"][1]["S"]
    return found


def put_head(head: KeptHead) -> Item:
    """Return the attributes of a head."""
    return {"stream": {"S": encode(head).decode()}, "revision": {"N": str(head.revision)}}


def get_head(item: Item) -> KeptHead:
    """Return the head of an item."""
    return decode_head(item["stream"]["S"])


def to_number(value: float) -> Item | None:
    """Return a DynamoDB number that reads back as the same float; None if there is none."""
    plain = value == 0 and math.copysign(1, value) > 0
    return {"N": str(Decimal(repr(value)))} if plain or 1e-120 < abs(value) < 1e120 else None
