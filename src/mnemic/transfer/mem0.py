"""Reads memories of mem0: what get_all returns, its relations, and the history of memories."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from ..checks import from_segment, to_segment
from ..features.fact_items import Fact
from ..features.memory_items import MemoryItem
from ..records import ScopePath, now
from .inputs import Input, each_member
from .items import FactItem, Item, SkippedItem, fields_of, id_of, text_of, time_of

OWNERS = ("agent_id", "app_id", "run_id", "actor_id", "role", "categories")
"""Fields of a memory that are kept in its metadata; its user is a scope."""


def user_scope(user_id: str) -> ScopePath:
    """Return the scope of a user, below that of all memories; a '/' in the id is written "%2F".

    Raises InvalidValueError for an id that no scope can have.
    """
    return ScopePath.of(to_segment(user_id, "user_id"))


@lru_cache(maxsize=1024)
def user_of(scope: ScopePath, of_all: ScopePath) -> str | None:
    """Return the user whose scope, within the scope of all memories, this is; None for that scope itself."""
    below = scope.segments[len(of_all.segments) :]
    return from_segment(below[0]) if below else None


def expiry_of(value: Any) -> datetime | None:
    """Return when a memory expires: at the end of a day such as "2030-12-31", or at a time."""
    expires = time_of(value, "expiration_date")
    whole_day = expires is not None and isinstance(value, str) and len(value) == len("2030-12-31")
    return expires + timedelta(days=1) if expires is not None and whole_day else expires


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
    users: dict[str, ScopePath] = {}
    for key, value in each_member(whole):
        if value == []:
            continue
        if not isinstance(value, dict):
            yield SkippedItem("a value that is no memory", key)
        elif key == "relations" or ("relationship" in value and "source" in value):
            yield _fact(value)
        elif "memory_id" in value:
            yield _earlier(value, users)
        else:
            item = _memory(value)
            if isinstance(item, MemoryItem) and item.scope.path:
                users[item.id] = item.scope
            yield item


def _memory(fields: dict[str, Any]) -> Item:
    id = id_of(fields.get("id"), "a memory")
    text = text_of(fields.get("memory", fields.get("text")), "memory")
    if text is None:
        return SkippedItem("a memory without text", id)
    metadata = fields_of(fields.get("metadata") or {}, "metadata")
    created = time_of(fields.get("created_at"), "created_at")
    updated = time_of(fields.get("updated_at"), "updated_at") or created
    expires = expiry_of(fields.get("expiration_date"))
    if expires is not None and expires <= now():
        return SkippedItem("a memory that has expired", id)
    return MemoryItem(
        text=text,
        id=id,
        metadata=metadata | {name: fields[name] for name in OWNERS if fields.get(name)},
        source="mem0",
        valid_from=updated if updated != created else None,  # it had another text before
        created=created,
        updated=updated,
        expires=expires,
        scope=_user(fields) or ScopePath(),
    )


def _user(fields: dict[str, Any]) -> ScopePath | None:
    user = fields.get("user_id")
    return user_scope(id_of(user, "user_id")) if user else None


def _earlier(fields: dict[str, Any], users: dict[str, ScopePath]) -> Item:
    """Return the text that a memory had before it was changed or deleted, in the scope of its user."""
    id = id_of(fields.get("id"), "an entry of the history")
    text = text_of(fields.get("old_memory", fields.get("previous_value")), "old_memory")
    changed = time_of(fields.get("updated_at") or fields.get("created_at"), "updated_at")
    if text is None or changed is None:
        return SkippedItem("an entry of the history without an earlier text", id)
    memory_id = id_of(fields["memory_id"], "an entry of the history")
    return MemoryItem(
        text=text,
        id=id,
        metadata={"memory_id": memory_id, "event": fields.get("event")},
        source="mem0",
        valid_to=changed,
        created=time_of(fields.get("created_at"), "created_at") or changed,
        updated=changed,
        scope=_user(fields) or users.get(memory_id, ScopePath()),
    )


def _fact(fields: dict[str, Any]) -> Item:
    names = [
        text_of(fields.get(key), key) or text_of(fields.get(other), key)
        for key, other in (("source", "from"), ("relationship", "relation"), ("target", "destination"))
    ]
    subject, predicate, object = names
    if subject is None or predicate is None or object is None:
        return SkippedItem("a relation without a name", str(names))
    return FactItem(Fact(subject=subject, predicate=predicate, object=object, valid_from=now(), source="mem0"), False)
