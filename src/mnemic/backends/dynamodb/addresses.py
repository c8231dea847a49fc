"""Where things lie: every item has an address of two parts, of which each layout makes a key."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from ...store.planning import Name

# Names hold no control characters, so these cannot be forged.
BREAK = "\0"
HASHED = "\x02"

MAX_PARTITION = 2048
MAX_SORT = 1024
"""The longest parts of a key, in bytes."""


class Address(NamedTuple):
    """The partition of an item, and its place within it."""

    partition: str
    sort: str


@lru_cache(maxsize=10_000)
def stream(name: Name) -> str:
    """Return the partition of a stream: its head and its records."""
    return short(BREAK.join(("s", *name)), MAX_PARTITION)


def head(name: Name) -> Address:
    """Return where a stream's totals lie."""
    return Address(stream(name), "h")


def record(name: Name, key: str) -> Address:
    """Return where a record lies."""
    return Address(stream(name), short(f"k{key}", MAX_SORT))


def place(name: Name, seq: int) -> Address:
    """Return where it is kept which record has a seq, on tables that have no index of seqs."""
    return Address(stream(name), f"p{seq:019}")


def guard(name: Name, number: int) -> Address:
    """Return where it is kept, for as long as a large change is made, at which revision a stream is."""
    return Address(stream(name), f"g{number}")


def label(name: Name, label: str, value: str) -> str:
    """Return the partition of what has a label."""
    return short(BREAK.join(("l", *name, label, value)), MAX_PARTITION)


def note(key: str) -> Address:
    """Return where a note lies."""
    return Address(f"n{BREAK}{key}", "n")


def chunk(token: str, number: int) -> Address:
    """Return where a part of a large value lies."""
    return Address(f"c{BREAK}{token}", f"{number:04}")


def short(text: str, longest: int) -> str:
    """Return a text, or its hash if it has too many bytes."""
    fits = 4 * len(text) <= longest or len(text.encode()) <= longest
    return text if fits else f"{HASHED}{digest(text)}"


def digest(text: str) -> str:
    """Return the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
