"""Item addresses: partition and position, from which each layout makes a key."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from ...store.planning import StreamName

# Names have no control characters, so these cannot be forged.
BREAK = "\0"
HASHED = "\x02"

MAX_PARTITION = 2048
MAX_SORT = 1024
"""Maximum sizes of key parts, in bytes."""


class Address(NamedTuple):
    """Partition of an item, and its position within it."""

    partition: str
    sort: str


@lru_cache(maxsize=10_000)
def stream(name: StreamName) -> str:
    """Return the partition of a stream, with its head and records."""
    return short(BREAK.join(("s", *name)), MAX_PARTITION)


def head(name: StreamName) -> Address:
    """Return the address of a stream's head."""
    return Address(stream(name), "h")


def record(name: StreamName, key: str) -> Address:
    """Return the address of a record."""
    return Address(stream(name), short(f"k{key}", MAX_SORT))


def place(name: StreamName, seq: int) -> Address:
    """Return the address of the item that maps a seq to its record, on tables without an index of seqs."""
    return Address(stream(name), f"p{seq:019}")


def label(name: StreamName, label: str, value: str) -> str:
    """Return the partition of records with a label."""
    return short(BREAK.join(("l", *name, label, value)), MAX_PARTITION)


def note(key: str) -> Address:
    """Return the address of a journal entry."""
    return Address(f"n{BREAK}{key}", "n")


def chunk(token: str, number: int) -> Address:
    """Return the address of a part of a large value."""
    return Address(f"c{BREAK}{token}", f"{number:04}")


def short(text: str, longest: int) -> str:
    """Return a text, or its hash if it is too long."""
    fits = 4 * len(text) <= longest or len(text.encode()) <= longest
    return text if fits else f"{HASHED}{digest(text)}"


def digest(text: str) -> str:
    """Return the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
