"""Writes that carry an id: each is noted in its scope, so that one sent again is not done again.

A note is a record of the kind `ONCE_KIND`, written in the same step as what it tells of. So every back-end
keeps, finds, expires and erases it as it does records. It holds a digest of what was written,
and the outcomes.
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
"""How often a write is begun whose id was noted, and is not when the note is read."""

_decode = json.Decoder(list[Outcome]).decode
_encode = json.Encoder().encode


class DoneBeforeError(MnemicError):
    """The id of a write is noted already; never seen outside."""


def note_ref(write: Write) -> Ref | None:
    """Return where the id of a write is noted; None if it has none."""
    if write.id is None or not write.ops:
        return None
    return Ref(place_of(write.ops[0])[0], ONCE_KIND, write.id)


def note_of(write: Write, outcomes: Sequence[Outcome], moment: datetime) -> Record:
    """Return what is noted of a write that has an id."""
    ref = note_ref(write)
    assert ref is not None
    data: Any = [write.digest, _encode(outcomes).decode()]
    return Record(ref.scope, ref.kind, ref.key, data=data, expires=moment + ONCE_LASTS)


def outcomes_in(note: Record, write: Write) -> list[Outcome]:
    """Return the outcomes that were noted; raises ConflictError if the write says something else."""
    data: Any = note.data
    digest, outcomes = data
    if digest != write.digest:
        raise ConflictError(
            f"{write.id!r} already names another write in scope {note.scope.path!r}: "
            "what is sent again under a name must say the same; nothing was stored",
            key=write.id,
            current=note.version,
        )
    return _decode(outcomes)


async def write_once(
    store: Store, write: Write, do: Callable[[Write], Awaitable[list[Outcome]]]
) -> list[Outcome]:
    """Do a write; where that says that it was done before, return what it did then.

    Raises ConflictError if another write was done under the same id.
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
