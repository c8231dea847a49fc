"""Examples of what the API answers, for the OpenAPI document; a test compares them with real answers."""

from __future__ import annotations

from typing import Any

FACT: dict[str, Any] = {
    "id": "2f6b2d0d0a1b4a3c8e5f7a9b0c1d2e3f",
    "subject": "Alice",
    "predicate": "lives_in",
    "object": "Oslo",
    "valid_from": "2026-01-31T09:30:00Z",
    "valid_to": None,
    "source": None,
    "confidence": 1.0,
    "metadata": {},
}
MEMORY: dict[str, Any] = {
    "id": "sleep",
    "scope": "acme/alice",
    "text": "Alice sleeps badly after coffee.",
    "importance": 1.0,
    "metadata": {},
    "source": None,
    "valid_from": None,
    "valid_to": None,
    "pinned": False,
    "created": "2026-01-31T09:30:00Z",
    "updated": "2026-01-31T09:30:00Z",
    "expires": None,
    "data": None,
    "version": 1,
}
MESSAGE: dict[str, Any] = {
    "role": "user",
    "content": "I sleep badly.",
    "id": "m1",
    "name": None,
    "tool_calls": [],
    "agent_calls": [],
    "structured_data": None,
    "images": [],
    "tool_call_id": None,
    "metadata": {},
    "timestamp": "2026-01-31T09:30:00Z",
}
NOTE: dict[str, Any] = {
    "key": "plan",
    "description": "the week",
    "size": 15,
    "metadata": {},
    "version": 1,
    "created": "2026-01-31T09:30:00Z",
    "updated": "2026-01-31T09:30:00Z",
    "source": None,
}
HIT: dict[str, Any] = {
    "kind": "memory",
    "id": "sleep",
    "scope": "acme/alice",
    "text": "Alice sleeps badly after coffee.",
    "score": 0.83,
    "why": {"lexical": 0.41, "dense": 0.42},
    "metadata": {},
    "importance": 1.0,
    "pinned": False,
    "source": None,
    "said_by": None,
    "created": "2026-01-31T09:30:00Z",
    "before": [],
    "after": [],
}
ITEM: dict[str, Any] = {
    "kind": "memory",
    "id": "sleep",
    "scope": "acme/alice",
    "text": "Alice sleeps badly after coffee.",
    "title": None,
    "data": None,
    "metadata": {},
    "labels": {},
    "importance": 1.0,
    "pinned": False,
    "version": 1,
    "created": "2026-01-31T09:30:00Z",
    "updated": "2026-01-31T09:30:00Z",
    "expires": None,
    "valid_from": None,
    "valid_to": None,
}
COUNTS: dict[str, Any] = {
    "scope": "acme/alice",
    "sessions": 1,
    "messages": 2,
    "tokens": 24,
    "archived": 0,
    "summaries": 0,
    "memories": 1,
    "notes": 1,
    "note_bytes": 15,
    "facts": 1,
    "state": 0,
    "state_bytes": 0,
    "first_activity": "2026-01-31T09:30:00Z",
    "last_activity": "2026-01-31T09:31:00Z",
}
SESSION: dict[str, Any] = {
    "name": "monday",
    "scope": "acme/alice/monday",
    "messages": 2,
    "tokens": 24,
    "started": "2026-01-31T09:30:00Z",
    "last_activity": "2026-01-31T09:31:00Z",
    "expires": None,
    "title": None,
    "newest": None,
}
SETTINGS: dict[str, Any] = {
    "max_messages": None,
    "max_tokens": 4000,
    "overflow": "archive",
    "keep": 0.8,
    "retention": "persistent",
    "ttl": None,
}
OVERVIEW: dict[str, Any] = {
    "name": "monday",
    "scope": "acme/alice",
    "title": None,
    "messages": 2,
    "tokens": 24,
    "archived": 0,
    "archived_tokens": 0,
    "summary": None,
    "max_messages": None,
    "max_tokens": 4000,
    "overflow": "archive",
    "started": "2026-01-31T09:30:00Z",
    "last_activity": "2026-01-31T09:31:00Z",
    "expires": None,
}
RECORD: dict[str, Any] = {
    "kind": "memory",
    "id": "sleep",
    "scope": "acme/alice",
    "session": None,
    "time": "2026-01-31T09:30:00Z",
    "role": None,
    "text": "Alice sleeps badly after coffee.",
    "length": 32,
    "importance": 1.0,
    "pinned": False,
    "tokens": 0,
    "source": None,
    "version": 1,
    "created": "2026-01-31T09:30:00Z",
    "updated": "2026-01-31T09:30:00Z",
    "expires": None,
    "valid_from": None,
    "valid_to": None,
    "metadata": {},
    "message": None,
    "source_session": None,
}
SYSTEM = MESSAGE | {"role": "system", "id": "@system", "content": "Be kind."}
EXPORT = '{"format":"mnemic.export/1","scope":"acme/alice","exported":"2026-01-31T09:30:00Z"}\n{"records":0}\n'


def page(*items: dict[str, Any]) -> dict[str, Any]:
    """Return the only page of a list."""
    return {"items": list(items), "cursor": None}
