"""The names of keys in Redis: what lies where, and in which slot of a cluster.

Every key is `prefix{tag}rest`. The prefix holds no brace, so the stores of two prefixes never meet; the tag,
which alone decides on the slot, is the scope, in which braces are written as `%7B` and `%7D`. So all that
belongs to a session lies in one slot, and no name can claim the slot or the key of another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from ...store.planning import Name

SHELVES = 16
"""Over how many keys the names of streams are spread; a store that has been written cannot change it."""

_QUOTED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


class StreamKeys(NamedTuple):
    """The keys of one stream, in the order in which the scripts take them."""

    head: bytes
    """Text: the revision, whether the records expire by themselves, the count, and the head."""
    rows: bytes
    """Sorted set: the records, by seq."""
    slots: bytes
    """Hash: by key, what a write needs to know of a record."""
    derived: bytes
    """Hash: by seq and name, derived values, each after its version."""
    labels: bytes
    """Sorted set in the order of names: label, value and seq."""
    names: bytes
    """Set: the names of all derived values that the stream has had."""


class Keys:
    """The names of all keys of a store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.format = self._key("/", ":format")
        self.stream = lru_cache(maxsize=10_000)(self._stream)

    def note(self, key: str) -> bytes:
        """Return the key of a note."""
        return self._key(key.partition(".")[0], f":note:{key}")

    def unlisted(self, scope: str) -> bytes:
        """Return the key that changes when a stream of the scope is taken out of the list of streams."""
        return self._key(_tag(scope), ":unlisted")

    def shelf(self, number: int) -> bytes:
        """Return the key of one part of the list of streams: a sorted set in the order of names."""
        return self._key(f"streams-{number}", ":list")

    def added(self, number: int) -> bytes:
        """Return the key of when, and by which call, the streams of a shelf were listed."""
        return self._key(f"streams-{number}", ":added")

    def of(self, tag: str, rest: str) -> bytes:
        """Return a key of its own, in the slot of a tag that no scope has."""
        return self._key(tag, rest)

    def _stream(self, name: Name) -> StreamKeys:
        scope, kind = name
        return StreamKeys(*(self._key(_tag(scope), f"{kind}:{part}") for part in StreamKeys._fields))

    def _key(self, tag: str, rest: str) -> bytes:
        return f"{self.prefix}{{{tag}}}{rest}".encode()


def shelf_of(scope: str) -> int:
    """Return the number of the shelf that lists a scope's streams: all of one tenant lie on one."""
    return crc32(scope.partition("/")[0].encode()) % SHELVES


def _tag(scope: str) -> str:
    # An empty tag is none: the root needs one, too.
    return "/" + scope.translate(_QUOTED)
