"""Replaces all messages of a session in one minimal write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from ..errors import InvalidValueError
from ..records import Message, Record
from ..store.query import Delete, Op, Put
from .messages import decode

Encode: TypeAlias = Callable[[Message, datetime | None], Record]


def difference(stored: list[Record], messages: list[Message], encode: Encode) -> tuple[list[Op], list[Record]]:
    """Return the operations that turn `stored` into `messages`, and the resulting records.

    A new record goes to the end of its stream, so everything after the first new or moved message is deleted and
    put again. Raises InvalidValueError for duplicate ids.
    """
    known = {record.key: record for record in stored}
    ops: list[Op] = []
    placed: list[Record] = []
    moved: list[Record] = []
    after: list[Record] = []
    last = 0
    for message in messages:
        old = known.pop(message.id, None)
        if old is None or decode(old) != message:
            record = encode(message, old.expires if old is not None else None)
        else:
            record = old
        after.append(record)
        if old is None or moved or old.seq < last:
            moved.append(record)
            ops += [Delete(old.ref)] if old is not None else []
        else:
            last = old.seq
            placed += [record] if record is not old else []
    if len({message.id for message in messages}) < len(messages):
        raise InvalidValueError("a session cannot hold two messages with the same id")
    ops += [Delete(record.ref) for record in known.values()]
    return [*ops, *map(Put, placed), *map(Put, moved)], after
