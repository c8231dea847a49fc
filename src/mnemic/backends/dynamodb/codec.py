"""Items of a table: their addresses, and records and states of streams as attributes.

A record is one JSON attribute, which preserves every number exactly: items with few attributes are much faster for
DynamoDB and the driver. Values too large for an item are split into chunks with unique names. The chunks are written
before anything references them, and deleted after nothing does. So a reference always finds its value, and what a
crash leaves behind is never read.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from msgspec import json
from msgspec.structs import replace

from ...checks import shown, to_microseconds
from ...errors import TooLargeError, UnreadableStoreError
from ...records import Record, StreamName, known_scope
from ...store.codec import decode_record, encode_record
from ...store.stream_state import StreamState
from .client import Fields, Item, attribute

# Names have no control characters, so these cannot be forged.
BREAK = "\0"
HASHED = "\x02"
MAX_PARTITION = 2048
MAX_SORT = 1024
"""Maximum sizes of key parts, in bytes."""

WHOLE = 200_000
"""Maximum size of a record in one item, without its derived values."""
WHOLE_DERIVED = 8_000
"""Maximum size of a derived value in the item of its record."""
MOST_LABELS = 100_000
"""Maximum size of a record's labels, which are always in its item."""
CHUNK = 350_000
"""Size of a chunk; an item may have 400 KB."""

STATE = ("stream", "ranges", "bulk", "pending")
"""Attributes of the state of a stream: the state, the ranges of its seqs, and its last bulk write."""

_decode_state = json.Decoder(StreamState).decode


class Address(NamedTuple):
    """Partition of an item, and its position within it; each layout makes a key of it."""

    partition: str
    sort: str


@lru_cache(maxsize=10_000)
def stream_partition(name: StreamName) -> str:
    return text_or_hash(BREAK.join(("s", *name)), MAX_PARTITION)


def state_at(name: StreamName) -> Address:
    return Address(stream_partition(name), "h")


def record_at(name: StreamName, key: str) -> Address:
    return Address(stream_partition(name), text_or_hash(f"k{key}", MAX_SORT))


def label_partition(name: StreamName, label: str, value: str) -> str:
    return text_or_hash(BREAK.join(("l", *name, label, value)), MAX_PARTITION)


def chunk_addresses(reference: str) -> list[Address]:
    """Return the addresses of the chunks of a value, or of the steps of a bulk write."""
    token, _, count = reference.partition(".")
    return [Address(f"c{BREAK}{token}", f"{number:04}") for number in range(int(count))]


def text_or_hash(text: str, longest: int) -> str:
    """Return a text, or its hash if it is too long."""
    fits = 4 * len(text) <= longest or len(text.encode()) <= longest
    return text if fits else f"{HASHED}{digest(text)}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Chunks:
    """Values that were too large for an item, as addresses and attributes to write before it."""

    def __init__(self) -> None:
        self.items: dict[Address, Item] = {}

    def add(self, value: bytes, ttl: Item) -> str:
        """Split a value and return its reference."""
        parts = [value[start : start + CHUNK] for start in range(0, len(value), CHUNK)]
        token = secrets.token_hex(16)
        reference = f"{token}.{len(parts)}"
        for number, (address, part) in enumerate(zip(chunk_addresses(reference), parts, strict=True)):
            self.items[address] = {"token": {"S": token}, "number": {"N": str(number)}, "value": {"B": part}, **ttl}
        return reference


CHUNK_FIELDS = Fields("token", "number", "value")


def join_chunks(references: Iterable[str], items: Iterable[Item]) -> dict[str, bytes]:
    """Return values by their references, without those of which a chunk is missing."""
    found: dict[str, dict[int, bytes]] = {}
    for item in items:
        parts = found.setdefault(attribute(item, "token", "S"), {})
        parts[int(attribute(item, "number", "N"))] = attribute(item, "value", "B")
    values = {}
    for reference in references:
        token, _, count = reference.partition(".")
        parts = found.get(token, {})
        if len(parts) == int(count):
            values[reference] = b"".join(parts[number] for number in range(len(parts)))
    return values


def ttl_of(record: Record) -> Item:
    """Return the TTL attribute of a record, in whole seconds, if it expires."""
    # Times before 1970 have no TTL; expired records are removed by the next write anyway.
    if record.expires is None or (micro := to_microseconds(record.expires)) < 0:
        return {}
    return {"ttl": {"N": str(-(-micro // 1_000_000))}}


def encode_item(record: Record, chunks: Chunks) -> Item:
    """Return the attributes of a record; raises TooLargeError if its labels do not fit into an item."""
    if record.labels and (size := len(json.encode(record.labels))) > MOST_LABELS:
        raise TooLargeError(f"the labels of {record.key!r} take {size:,} bytes; DynamoDB can keep {MOST_LABELS:,}")
    item: Item = {"seq": {"N": str(record.seq)}, **ttl_of(record)}
    text = encode_record(record)
    if len(text) > WHOLE:
        item["body"] = {"S": chunks.add(text, ttl_of(record))}
        text = encode_record(replace(record, text=None, title=None, data=None, meta={}))
    item["record"] = {"S": text.decode()}
    return item


def decode_item(item: Item, name: StreamName, large: dict[str, bytes], derived: Iterable[str]) -> Record | None:
    """Return the record of an item with its valid derived values; None if a large value is not among the loaded."""
    stored: bytes | str | None = attribute(item, "record", "S")
    if "body" in item:
        stored = large.get(attribute(item, "body", "S"))
    if stored is None:
        return None
    record = decode_record(known_scope(name[0]), name[1], stored)
    for each in derived:
        if derived_attribute(each) in item:
            version, value = attribute(item, derived_attribute(each), "L")
            found = value["B"] if "B" in value else large.get(value["S"])
            if found is None:
                return None
            if int(version["N"]) in (0, record.version):
                record.derived[each] = bytes(found)
    return record


def derived_attribute(name: str) -> str:
    return f"derived:{name}"


def encode_derived(version: int, value: bytes, chunks: Chunks, ttl: Item) -> Item:
    stored = {"B": value} if len(value) <= WHOLE_DERIVED else {"S": chunks.add(value, ttl)}
    return {"L": [{"N": str(version)}, stored]}


def references(item: Item) -> dict[str, str]:
    """Return the references to large values in an item, by attribute."""
    found = {}
    for name, value in item.items():
        if name == "body":
            found[name] = attribute(item, "body", "S")
        elif name.startswith("derived:") and "S" in attribute(item, name, "L")[1]:
            found[name] = value["L"][1]["S"]
    return found


def encode_state(state: StreamState) -> Item:
    return {"stream": {"S": json.encode(state).decode()}, "revision": {"N": str(state.revision)}}


def decode_state(item: Item, name: StreamName | None = None) -> StreamState:
    """Return the state of a stream; raises UnreadableStoreError, with its name if known, if it is damaged."""
    try:
        return _decode_state(attribute(item, "stream", "S"))
    except (ValueError, UnreadableStoreError) as error:
        what = "a stream" if name is None else f"the {name[1]} stream of {shown(name[0])}"
        raise UnreadableStoreError(f"the state of {what} is damaged ({error})", stream=name) from error


@lru_cache(maxsize=100)
def record_fields(derived: tuple[str, ...] = ()) -> Fields:
    """Return the attributes to read of records, and of the state."""
    return Fields("seq", "record", "body", *STATE, *map(derived_attribute, derived))
