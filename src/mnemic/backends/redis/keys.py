"""Redis key names, and the cluster slots that they map to.

Every key is `prefix{tag}rest`. The prefix has no brace, so stores of different prefixes never collide. The tag,
which alone determines the slot, is the scope, with braces escaped as `%7B` and `%7D`. So all keys of a session
are in one slot, and no name can collide with another's slot or key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from ...store.planning import StreamName

SHELVES = 16
"""Number of keys that the list of streams is split into; fixed once a store is written."""

_QUOTED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


class StreamKeys(NamedTuple):
    """Keys of one stream, in the order that the scripts expect."""

    head: bytes
    """String: the revision, whether the records expire by themselves, the count, and the head."""
    rows: bytes
    """Sorted set: records by seq."""
    slots: bytes
    """Hash: state of a record for the write path, by key."""
    derived: bytes
    """Hash: derived values, each after its version, by seq and name."""
    labels: bytes
    """Sorted set in lexicographical order: label, value and seq."""
    names: bytes
    """Set: names of all derived values that the stream has had."""


class Keys:
    """All key names of a store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.format: bytes = self._key("/", ":format")
        self.stream: Callable[[StreamName], StreamKeys] = lru_cache(maxsize=10_000)(self._stream)

    def note(self, key: str) -> bytes:
        """Return the key of a journal entry."""
        return self._key(key.partition(".")[0], f":note:{key}")

    def unlisted(self, scope: str) -> bytes:
        """Return the key that changes when a stream of the scope is removed from the list of streams."""
        return self._key(_tag(scope), ":unlisted")

    def shelf(self, number: int) -> bytes:
        """Return the key of one part of the list of streams: a sorted set in lexicographical order."""
        return self._key(f"streams-{number}", ":list")

    def added(self, number: int) -> bytes:
        """Return the key that records when, and by which call, the streams of a part were listed."""
        return self._key(f"streams-{number}", ":added")

    def of(self, tag: str, rest: str) -> bytes:
        """Return an internal key, in the slot of a tag that no scope has."""
        return self._key(tag, rest)

    def _stream(self, name: StreamName) -> StreamKeys:
        scope, kind = name
        return StreamKeys(*(self._key(_tag(scope), f"{kind}:{part}") for part in StreamKeys._fields))

    def _key(self, tag: str, rest: str) -> bytes:
        return f"{self.prefix}{{{tag}}}{rest}".encode()


def shelf_of(scope: str) -> int:
    """Return the part of the list for a scope's streams: the same for all of one tenant."""
    return crc32(scope.partition("/")[0].encode()) % SHELVES


def _tag(scope: str) -> str:
    # An empty tag would be ignored: the root needs one, too.
    return "/" + scope.translate(_QUOTED)
