"""Reads memories of mem0: what get_all returns, its relations, and the history of memories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..features.facts import Fact
from ..features.memory_items import MemoryItem
from ..records import now
from .inputs import Input, each_member
from .items import Item, Left, Stated, fields_of, id_of, text_of, time_of

OWNERS = ("user_id", "agent_id", "run_id", "actor_id", "role", "categories")
"""Fields of a memory that are kept in its metadata."""


def is_mem0(value: Any) -> bool:
    """Return whether a JSON value is a memory, or holds some."""
    if not isinstance(value, dict):
        return False
    held = [value.get(key) for key in ("results", "memories", "history")]
    return value.get("results") == [] or any(
        isinstance(one, dict) and "id" in one and ("memory" in one or {"memory_id", "event"} <= one.keys())
        for one in (value, *held)
    )


def read_mem0(whole: Input) -> Iterator[Item]:
    """Yield memories, facts, and earlier texts of memories that were true until they changed."""
    for key, value in each_member(whole):
        if value == []:
            continue
        if not isinstance(value, dict):
            yield Left("a value that is no memory", key)
        elif key == "relations" or ("relationship" in value and "source" in value):
            yield _fact(value)
        elif "memory_id" in value:
            yield _earlier(value)
        else:
            yield _memory(value)


def _memory(fields: dict[str, Any]) -> Item:
    id = id_of(fields.get("id"), "a memory")
    text = text_of(fields.get("memory", fields.get("text")), "memory")
    if text is None:
        return Left("a memory without text", id)
    metadata = fields_of(fields.get("metadata") or {}, "metadata")
    created = time_of(fields.get("created_at"), "created_at")
    updated = time_of(fields.get("updated_at"), "updated_at") or created
    expires = time_of(fields.get("expiration_date"), "expiration_date")
    if expires is not None and expires <= now():
        return Left("a memory that has expired", id)
    return MemoryItem(
        text=text,
        id=id,
        metadata=metadata | {name: fields[name] for name in OWNERS if fields.get(name)},
        source="mem0",
        valid_from=updated if updated != created else None,  # it had another text before
        created=created,
        updated=updated,
        expires=expires,
    )


def _earlier(fields: dict[str, Any]) -> Item:
    """Return the text that a memory had before it was changed or deleted."""
    id = id_of(fields.get("id"), "an entry of the history")
    text = text_of(fields.get("old_memory", fields.get("previous_value")), "old_memory")
    changed = time_of(fields.get("updated_at") or fields.get("created_at"), "updated_at")
    if text is None or changed is None:
        return Left("an entry of the history without an earlier text", id)
    return MemoryItem(
        text=text,
        id=id,
        metadata={"memory_id": id_of(fields["memory_id"], "an entry of the history"), "event": fields.get("event")},
        source="mem0",
        valid_to=changed,
        created=time_of(fields.get("created_at"), "created_at") or changed,
        updated=changed,
    )


def _fact(fields: dict[str, Any]) -> Item:
    names = [
        text_of(fields.get(key), key) or text_of(fields.get(other), key)
        for key, other in (("source", "from"), ("relationship", "relation"), ("target", "destination"))
    ]
    subject, predicate, object = names
    if subject is None or predicate is None or object is None:
        return Left("a relation without a name", str(names))
    return Stated(Fact(subject=subject, predicate=predicate, object=object, valid_from=now(), source="mem0"), False)
