"""The default profile: remember, recall, forget, context, note and facts, in few tokens."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Any

from ..checks import shown
from ..errors import InvalidValueError, NotFoundError
from ..features.fact_items import Fact
from ..features.hits import Hit
from ..features.note_files import as_text
from ..features.notes import Note, NoteInfo
from ..features.summary import QUOTED, quoted
from .tools import TEXT, Schema, Tool, ToolContext, ToolResult, checked_query, object_schema, shortened_text

MAX_FACTS = 100
"""Maximum number of facts in one answer."""
HIT = 2000
"""Maximum length of the text of a hit, in characters, unless the call names another."""
LISTED = 200
"""Maximum number of notes in one answer."""
PART = 20_000
"""Maximum length of the part of a note that one read returns, in characters."""
COUNT: Schema = {"type": "integer"}


async def remember(call: ToolContext, text: str, importance: float = 1.0) -> ToolResult:
    """Remember a text; one that says the same as an earlier one is merged with it."""
    if not text.strip():
        raise InvalidValueError("the text is empty: there is nothing to remember")
    item = await call.scope.remember(text, importance=importance, source=call.client, duplicates="merge")
    return ToolResult(f"Remembered, with the id {item.id}.", {"id": item.id})


async def recall(
    call: ToolContext,
    query: str,
    k: int = 5,
    kinds: list[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    max_chars: int = HIT,
) -> ToolResult:
    """Search the scope and those below."""
    start, end = _time(since, "since", time.min), _time(until, "until", time.max)
    if start is not None and end is not None and start > end:
        raise InvalidValueError(f"since, {shown(since)}, is after until, {shown(until)}")
    hits = await call.scope.recall(checked_query(query), k, kinds=kinds, since=start, until=end)
    if not hits:
        return ToolResult("Nothing is remembered about this.", {"hits": [], "notice": QUOTED})
    text = quoted(_line(hit, max_chars) for hit in hits)
    if any(len(hit.text) > max_chars for hit in hits):
        text = f"Some texts are cut. For all of one, recall with k=1 and a larger max_chars.\n{text}"
    return ToolResult(text, {"hits": [_hit(hit, call, max_chars) for hit in hits], "notice": QUOTED})


async def forget(call: ToolContext, ids: list[str]) -> ToolResult:
    """Delete what has these ids; raises NotFoundError, and deletes nothing, if one does not exist."""
    for id in ids:
        await call.scope.get(id)
    deleted = (await call.scope.forget(*ids)).deleted
    return ToolResult(f"Forgotten: {deleted}.", {"deleted": deleted})


async def context(call: ToolContext, query: str, max_tokens: int = 2000) -> ToolResult:
    """Return one block of everything that bears on a query."""
    found = await call.scope.context(checked_query(query), max_tokens)
    text = found.text or "Nothing is remembered about this."
    if not found.text and await call.scope.recall(query, 1, uses=False):
        text = f"Something is remembered about this, but {max_tokens} tokens are too few for it: ask for more."
    return ToolResult(text, {"text": found.text, "tokens": found.tokens})


async def note(
    call: ToolContext,
    action: str,
    key: str | None = None,
    value: str | None = None,
    description: str | None = None,
    if_version: int | None = None,
    start: int = 0,
) -> ToolResult:
    """Write, read, delete or list notes."""
    notes = call.scope.notes
    if action == "list":
        return _listed(await notes.list(), start)
    key = _given(key, "key", action)
    if action == "read":
        return _part(await notes.get(key), start)
    if action == "delete":
        if not await notes.delete(key, if_version=if_version):
            raise NotFoundError(f"there is no note {shown(key)}")
        return ToolResult(f"Deleted {key!r}.", {"deleted": 1})
    written = await notes.write(
        key, _given(value, "value", action), description=description, source=call.client, if_version=if_version
    )
    return ToolResult(f"Noted under {key!r}, version {written.version}.", {"version": written.version})


async def facts(
    call: ToolContext,
    action: str,
    subject: str | None = None,
    predicate: str | None = None,
    object: str | None = None,
    single: bool = False,
    history: bool = False,
) -> ToolResult:
    """Add, ask, end or delete facts."""
    known = call.scope.facts
    if action == "ask":
        found = await known.ask(subject, predicate, object, history=history, limit=MAX_FACTS)
        lines = [f"- {fact.subject} {fact.predicate} {fact.object} ({_period(fact)})" for fact in found]
        text = quoted(lines) if lines else "No such fact is known."
        return ToolResult(text, {"facts": [_fact(fact) for fact in found], "notice": QUOTED})
    names = _given(subject, "subject", action), _given(predicate, "predicate", action)
    if action == "add":
        added = await known.add(*names, _given(object, "object", action), single=single, source=call.client)
        return ToolResult(f"Stated: {added.subject} {added.predicate} {added.object}.", {"facts": [_fact(added)]})
    changed = await (known.update if action == "end" else known.delete)(*names, object)
    if not changed:
        raise NotFoundError(f"there is no such fact of {shown(subject)}")
    return ToolResult(f"{'Ended' if action == 'end' else 'Deleted'}: {changed}.", {"changed": changed})


def _given(value: str | None, field: str, action: str) -> str:
    if value is None:
        raise InvalidValueError(f"the action {action!r} needs {field!r}")
    return value


def _listed(notes: list[NoteInfo], start: int) -> ToolResult:
    """Return a page of the list of notes."""
    shown = [{"key": n.key, "description": n.description, "size": n.size} for n in notes[start : start + LISTED]]
    lines = [f"- {n['key']}: {n['description'] or ''} ({n['size']} bytes)" for n in shown]
    end = start + len(shown)
    if end < len(notes):
        lines.append(f"({end:,} of {len(notes):,} notes; list on with start={end})")
    none = "There are no more notes." if notes else "There are no notes."
    return ToolResult(quoted(lines) if lines else none, {"notes": shown, "length": len(notes)})


def _part(note: Note, start: int) -> ToolResult:
    """Return a note, or a part of it that is not too long."""
    text = as_text(note.value)
    data = {"value": note.value, "version": note.version, "notice": QUOTED}
    if start == 0 and len(text) <= PART:
        return ToolResult(f"Version {note.version}:\n{quoted([text])}", data)
    if start >= len(text):
        raise InvalidValueError(f"start, {start}, is after the end: the note has {len(text):,} characters")
    end = min(start + PART, len(text))
    more = "" if end == len(text) else f"; read on with start={end}"
    head = f"Version {note.version}, characters {start:,} to {end:,} of {len(text):,}{more}:"
    return ToolResult(f"{head}\n{quoted([text[start:end]])}", {**data, "value": text[start:end], "length": len(text)})


def _time(text: str | None, field: str, of_day: time) -> datetime | None:
    """Return a time; of a date, this time of that day."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        with suppress(ValueError):
            found = datetime.combine(date.fromisoformat(text), of_day)
    except ValueError:
        raise InvalidValueError(f"{field} must be a time such as 2026-01-31: {shown(text)}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _line(hit: Hit, most: int) -> str:
    day = "" if hit.created is None else f"[{hit.created:%Y-%m-%d}] "
    message = hit.message
    speaker = "" if message is None else f"{message.name or message.role}: "
    text = shortened_text(" ".join(hit.text.split()), most)
    return f"- {day}{speaker}{text} ({hit.kind}, score {hit.score:.2f}, id {hit.id})"


def _hit(hit: Hit, call: ToolContext, most: int) -> dict[str, Any]:
    text = shortened_text(hit.text, most)
    found: dict[str, Any] = {"id": hit.id, "kind": hit.kind, "text": text, "score": round(hit.score, 3)}
    message = hit.message
    optional = {
        "created": None if hit.created is None else hit.created.isoformat(timespec="seconds"),
        "said_by": None if message is None else message.name or message.role,
        "scope": call.below(hit.scope) or None,
        "source": hit.source,
    }
    return found | {name: value for name, value in optional.items() if value is not None}


def _fact(fact: Fact) -> dict[str, Any]:
    found = {"subject": fact.subject, "predicate": fact.predicate, "object": fact.object}
    found["since"] = fact.valid_from.isoformat(timespec="seconds")
    return found if fact.valid_to is None else {**found, "until": fact.valid_to.isoformat(timespec="seconds")}


def _period(fact: Fact) -> str:
    until = "" if fact.valid_to is None else f" until {fact.valid_to:%Y-%m-%d}"
    return f"since {fact.valid_from:%Y-%m-%d}{until}"


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


def _one_of(*values: str) -> Schema:
    return {**TEXT, "enum": list(values)}


def _several(fields: str) -> Schema:
    """Return the schema of a list of objects; their fields are only described, since clients check every result."""
    return {"type": "array", "items": {"type": "object"}, "description": fields}


DEFAULT_TOOLS = [
    Tool(
        "remember",
        "Remember one thing for good, in a sentence that makes sense on its own, with names instead of 'I' or 'he'. "
        "What is already remembered is merged.",
        remember,
        object_schema(
            "text",
            text=TEXT,
            importance={"type": "number", "minimum": 0, "description": "default 1; 10 for what must not be lost"},
        ),
        object_schema("id", id=TEXT),
        idempotent=True,
    ),
    Tool(
        "recall",
        "Search everything remembered: memories, earlier conversations, notes and facts. Ask in words or a question. "
        "A hit that scores near 1 answers it; below 0.5 it may only share a word.",
        recall,
        object_schema(
            "query",
            query=TEXT,
            k={"type": "integer", "minimum": 1, "maximum": 50, "description": "how many hits; default 5"},
            kinds={"type": "array", "minItems": 1, "items": _one_of("memory", "message", "note", "fact", "summary")},
            since=_described(TEXT, "ISO date or time, UTC"),
            until=_described(TEXT, "a date includes that day"),
            max_chars={"type": "integer", "minimum": 1, "description": "longest text of a hit; default 2000"},
        ),
        object_schema("hits notice", hits=_several("id, kind, text, score, created, said_by, source"), notice=TEXT),
        read_only=True,
    ),
    Tool(
        "forget",
        "Delete what has these ids, which recall and remember give. Ask the user first.",
        forget,
        object_schema("ids", ids={"type": "array", "items": TEXT, "minItems": 1}),
        object_schema("deleted", deleted=COUNT),
        destructive=True,
    ),
    Tool(
        "context",
        "Get one block of everything that bears on a question or task. Call it first in a conversation.",
        context,
        object_schema(
            "query",
            query=TEXT,
            max_tokens={"type": "integer", "minimum": 50, "description": "size of the block; default 2000"},
        ),
        object_schema("text tokens", text=TEXT, tokens=COUNT),
        read_only=True,
    ),
    Tool(
        "note",
        "Keep notes under a key, such as 'plan' or 'preferences'. write replaces the whole note.",
        note,
        object_schema(
            "action",
            action=_one_of("list", "read", "write", "delete"),
            key=TEXT,
            value=TEXT,
            description=_described(TEXT, "what the note is about, for the list"),
            if_version=_described(
                COUNT, "write or delete only if the note still has this version, which read gives; 0 if new"
            ),
            start={
                "type": "integer",
                "minimum": 0,
                "description": "read from this character on, or list from this note on",
            },
        ),
        object_schema(
            "",
            notes=_several("key, description, size"),
            value={},
            version=COUNT,
            length=COUNT,
            deleted=COUNT,
            notice=TEXT,
        ),
        destructive=True,
    ),
    Tool(
        "facts",
        "State, ask, end or delete facts, such as Alice lives_in Oslo. ask takes any of subject, predicate and object; "
        "an ended fact stays as history; delete removes ended ones too, and every object if none is given.",
        facts,
        object_schema(
            "action",
            action=_one_of("ask", "add", "end", "delete"),
            subject=TEXT,
            predicate=TEXT,
            object=TEXT,
            single=_described({"type": "boolean"}, "with add: only one object at a time, so the one before ends"),
            history=_described({"type": "boolean"}, "with ask: past facts too"),
        ),
        object_schema("", facts=_several("subject, predicate, object, since, until"), changed=COUNT, notice=TEXT),
        destructive=True,
    ),
]
