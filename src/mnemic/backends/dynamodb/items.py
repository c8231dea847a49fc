"""Records and heads as items: one attribute for what only we read, as JSON, which keeps every number exactly.

An item of few attributes takes DynamoDB, and the driver, a fraction of the time that one of many takes.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any

from msgspec import json
from msgspec.structs import replace

from ...errors import TooLargeError
from ...store.planning import Slot
from ..keyvalue.kept import Kept, KeptHead, decode_head, decode_kept, encode
from .chunks import Chunks
from .table import Fields, Item, expiry

WHOLE = 200_000
"""Up to how many bytes a record lies in one item with what was derived from it."""
WHOLE_DERIVED = 8_000
"""Up to how many bytes a derived value lies in the item of its record."""
MOST_LABELS = 100_000
"""How many bytes the labels of a record may take: they lie in its item, whatever else does not."""

RECORD = ("seq", "record", "importance", "body")

_decode_body = json.Decoder(tuple[str | None, str | None, Any, dict[str, Any]]).decode


def derived_attribute(name: str) -> str:
    """Return the attribute that holds a derived value."""
    return f"derived:{name}"


@lru_cache(maxsize=100)
def record_fields(derived: tuple[str, ...] = ()) -> Fields:
    """Return the attributes to be read of records, and of the head that may come along."""
    return Fields(*RECORD, "stream", "runs", *map(derived_attribute, derived))


def check(kept: Kept) -> None:
    """Raise TooLargeError if a record has more labels than an item holds."""
    if kept.labels and (size := len(encode(kept.labels))) > MOST_LABELS:
        raise TooLargeError(
            f"the labels of {kept.key!r} take {size:,} bytes; DynamoDB can keep {MOST_LABELS:,}"
        )


def put_record(kept: Kept, chunks: Chunks) -> tuple[Item, list[Item]]:
    """Return the attributes of a record, and the items to be written before; raises TooLargeError."""
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
    """Return the record of an item; None if its body is not among the large values that were read."""
    kept = decode_kept(item["record"]["S"])
    if (number := item.get("importance")) is not None:
        kept.importance = float(Decimal(number["N"]))
    if (body := item.get("body")) is not None:
        value = large.get(body["S"])
        if value is None:
            return None
        kept.text, kept.title, kept.data, kept.meta = _decode_body(value)
    return kept


def get_slot(item: Item) -> Slot:
    """Return what the write path needs to know of a record."""
    return decode_kept(item["record"]["S"]).slot()


def put_derived(version: int, value: bytes, chunks: Chunks, ttl: Item | None) -> tuple[Item, list[Item]]:
    """Return a derived value as an attribute, and the items to be written before."""
    number = {"N": str(version)}
    if len(value) <= WHOLE_DERIVED:
        return {"L": [number, {"B": value}]}, []
    reference, written = chunks.cut(value, ttl)
    return {"L": [number, {"S": reference}]}, written


def get_derived(attribute: Item, large: dict[str, bytes]) -> tuple[int, bytes] | None:
    """Return the version of a derived value and the value; None as `get_record` does."""
    version, value = attribute["L"]
    held = value["B"] if "B" in value else large.get(value["S"])
    return None if held is None else (int(version["N"]), bytes(held))


def references(item: Item) -> dict[str, str]:
    """Return the references to large values that an item holds, by attribute."""
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
    """Return a number of DynamoDB that reads back as the same float; None if it has none."""
    plain = value == 0 and math.copysign(1, value) > 0
    return {"N": str(Decimal(repr(value)))} if plain or 1e-120 < abs(value) < 1e120 else None
