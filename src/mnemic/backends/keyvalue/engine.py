"""The interface of a key-value engine, which reads streams and commits changes of one scope at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from ...records import Record, StreamName, known_scope
from ...store.matching import in_reach
from ...store.protocol import Capability
from ...store.stream_state import Loaded, Needs, StreamChange, StreamState


class RecordRange(Struct, frozen=True):
    """A range of records of a stream, in seq order."""

    reverse: bool = False
    after: int | None = None
    """Start after this seq, or before it in reverse."""
    limit: int = 1000
    seqs: tuple[int, ...] | None = None
    """Only these seqs; other bounds are then ignored."""
    derived: tuple[str, ...] = ()
    """Names of the derived values to return with the records."""
    revision: int | None = None
    """A revision of the stream read earlier in the same call: data at least that new is sufficient."""

    def includes(self, seq: int) -> bool:
        """Return whether a seq comes after the start."""
        return comes_after(seq, self.after, reverse=self.reverse)


class StreamRange(Struct, frozen=True):
    """A range of streams, in the order of scope and kind."""

    scope: str
    below: bool
    kinds: tuple[str, ...] = ()
    reverse: bool = False
    after: StreamName | None = None
    """Start after this one, or before it in reverse."""
    limit: int = 500

    def includes(self, name: StreamName) -> bool:
        """Return whether a stream is requested, and comes after the start."""
        return comes_after(name, self.after, reverse=self.reverse) and in_reach(
            known_scope(name[0]), name[1], known_scope(self.scope), self.kinds, self.below
        )


Place = TypeVar("Place", int, str, StreamName)


def comes_after(place: Place, start: Place | None, *, reverse: bool) -> bool:
    """Return whether a place comes after another one in this order."""
    return start is None or (place < start if reverse else place > start)


class Engine(Protocol):
    """Stores the bytes of a store; maps every driver error to a Mnemic error."""

    url: str
    """URL without a password, for error messages."""
    capabilities: frozenset[Capability]

    def commit_group(self, scope: str) -> str:
        """Return the group of a scope's writes: those of one group are committed together."""
        ...

    async def load(self, needs: Needs) -> Loaded:
        """Load what is needed; the state of each stream is no newer than those of its records."""
        ...

    async def commit(self, changes: Sequence[StreamChange], moment: int) -> bool:
        """Apply all changes, of streams of one group, durably and at once.

        Change nothing and return False if a stream has another revision than `before`, or has one of the `absent`
        keys, also if the change `only_checks`. Records that a cleared stream loses are listed in `removed`.
        """
        ...

    async def rows(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]]:
        """Return the records of a range, and the stream's state unless it was not needed."""
        ...

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[StreamState | None, list[Record]]:
        """Return the records of these keys, in any order, and the state as `rows` does."""
        ...

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        """Return the seqs of records with a label of these values; None if labels are not indexed."""
        ...

    async def streams(self, reach: StreamRange) -> list[StreamState]:
        """Return the next streams; fewer than `limit` only at the end."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
