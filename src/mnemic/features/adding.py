"""Adds messages to a session, idempotently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..driving import off_loop
from ..errors import ConflictError
from ..records import Message, Record
from ..store.protocol import Store
from ..store.query import Put, checked
from .overflow import LimitedLog

LONG = 50_000
"""Number of characters from which token counting runs in a thread."""


async def add_messages(
    store: Store, log: LimitedLog, messages: list[Message], encode: Callable[[Message], Record], once: str | None
) -> list[Message]:
    """Add messages; return them with their ids, the original ones if this is a retry.

    Raises ConflictError if a different message has one of the ids.
    """
    if any(len(message.text or "") > LONG for message in messages):
        records = await off_loop(lambda: [encode(message) for message in messages])
    else:
        records = [encode(message) for message in messages]
    while records:
        try:
            outcomes = await log.write([Put(record, if_version=0) for record in records], records, once)
        except ConflictError:
            # Some are stored already, as in a retry after a lost answer.
            missing = await _missing(store, records)
            if len(missing) == len(records):
                raise
            records = missing
        else:
            if once is None:
                break
            ids = [outcome.key for outcome in outcomes if outcome.key]
            if len(ids) != len(messages):
                break
            return [
                message if message.id == id else replace(message, id=id)
                for message, id in zip(messages, ids, strict=True)
            ]
    return messages


async def _missing(store: Store, records: list[Record]) -> list[Record]:
    """Return the records that are not stored yet; raises ConflictError if a stored one differs."""
    found = await store.read([record.ref for record in records])
    missing = []
    for record, stored in zip(records, found, strict=True):
        if stored is None:
            missing.append(record)
        elif _said(checked(record)) != _said(stored):
            raise ConflictError(
                f"session {record.scope.path!r} has another message with the id {record.key!r}",
                key=record.key,
                current=stored.version,
            )
    return missing


def _said(record: Record) -> tuple[Any, ...]:
    """Return the identity of a message: everything except its times."""
    return (record.text, record.data, record.meta, record.weight)
