"""Idempotent writes: the id of a write is stored with it, so that a retry does not run it again.

The id is stored as a record of the kind `ONCE_KIND`, in the same transaction as the write, with a digest of the
write and its outcomes. Every back-end therefore stores, finds, expires and erases it like any record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import json

from ..checks import MICROSECOND
from ..errors import ConflictError, MnemicError, StoreBusyError
from ..records import ONCE_KIND, Record, Ref
from .protocol import Store
from .query import ONCE_LASTS, Outcome, Write, place_of

ONCE_MICROSECONDS = ONCE_LASTS // MICROSECOND
TRIES = 5
"""How often to retry a write whose id record disappears between the conflict and the read."""

_decode = json.Decoder(list[Outcome]).decode
_encode = json.Encoder().encode


class DoneBeforeError(MnemicError):
    """The id of the write exists already; internal."""


def note_ref(write: Write) -> Ref | None:
    """Return the ref of the id record of a write; None if the write has no id."""
    if write.id is None or not write.ops:
        return None
    return Ref(place_of(write.ops[0])[0], ONCE_KIND, write.id)


def note_of(write: Write, outcomes: Sequence[Outcome], moment: datetime) -> Record:
    """Return the id record of a write."""
    ref = note_ref(write)
    assert ref is not None
    data: Any = [write.digest, _encode(outcomes).decode()]
    return Record(ref.scope, ref.kind, ref.key, data=data, expires=moment + ONCE_LASTS)


def outcomes_in(note: Record, write: Write) -> list[Outcome]:
    """Return the recorded outcomes; raises ConflictError if the write differs from the recorded one."""
    data: Any = note.data
    digest, outcomes = data
    if digest != write.digest:
        raise ConflictError(
            f"the id {write.id!r} was already used for a different write in scope {note.scope.path!r}; "
            "nothing was stored",
            key=write.id,
            current=note.version,
        )
    return _decode(outcomes)


async def write_once(store: Store, write: Write, do: Callable[[Write], Awaitable[list[Outcome]]]) -> list[Outcome]:
    """Run a write; if its id was recorded before, return the recorded outcomes.

    Raises ConflictError if a different write has the same id.
    """
    ref = note_ref(write)
    if ref is None:
        return await do(write)
    for _ in range(TRIES):
        try:
            return await do(write)
        except DoneBeforeError:
            (note,) = await store.read([ref])
        if note is not None:
            return outcomes_in(note, write)
    raise StoreBusyError(f"write {write.id!r} was noted and erased {TRIES} times while it was tried")
