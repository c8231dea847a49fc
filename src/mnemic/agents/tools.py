"""The memory tools of an agent; everything that they write carries its provenance."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pydantic_ai
from msgspec import json
from pydantic_ai import RunContext
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool

from ..checks import shown
from ..errors import ConflictError, InvalidValueError, LimitError, NotFoundError
from ..features.fact_items import Fact
from ..records import MEMORY, Record, Ref
from ..scope import AsyncScope
from ..tokens import TokenCounter
from .journal import WRITTEN_BY, AsyncJournal, Provenance
from .run_memory import RunMemory

MAX_RESULTS = 20
"""Maximum number of results per call."""
MAX_FACTS = 50
NOTE_TOKENS = 40
"""Token cost of the note about omitted results."""
LEAST = 30
"""A result that would be cut to fewer tokens is omitted instead."""

REFUSED = (ConflictError, InvalidValueError, LimitError, NotFoundError)
"""Errors that are returned to the model; others end the run."""
_FAILED: type[Exception] | None = getattr(pydantic_ai, "ToolFailed", None)


class _Tools:
    """The tools of one agent, shared by all of its runs."""

    def __init__(self, turn: Callable[[RunContext[Any]], RunMemory]) -> None:
        self._turn = turn

    async def list_notes(self, ctx: RunContext[Any]) -> list[dict[str, Any]]:
        """List your notes by key, with what they are about and their size in bytes."""
        entries = await self._turn(ctx).memory.run(self._scope(ctx).notes.list())
        return [{"key": entry.key, "description": entry.description, "size": entry.size} for entry in entries]

    async def read_note(self, ctx: RunContext[Any], key: str, start: int = 0) -> Any:
        """Read the note under a key.

        Args:
            key: The key of the note.
            start: From which character on, for the rest of a note that was cut.
        """
        turn = self._turn(ctx)
        value = await turn.memory.run(self._scope(ctx).notes.read(key))
        return text_page(as_text(value), max(start, 0), turn.memory.scope._tokens, turn.max_answer) if start else value

    async def write_note(
        self, ctx: RunContext[Any], key: str, value: dict[str, Any] | list[Any] | str, description: str | None = None
    ) -> str:
        """Write a note under a key, in place of the one before.

        Args:
            key: A telling name, such as "preferences" or "plan".
            value: What the note holds.
            description: What it is about, in a line; the list of notes shows it.
        """
        notes = self._writer(ctx).notes
        await self._turn(ctx).memory.run(notes.write(key, value, description=description))
        return f"Noted under {key!r}."

    async def delete_note(self, ctx: RunContext[Any], key: str) -> str:
        """Delete the note under a key."""
        there = await self._turn(ctx).memory.run(self._writer(ctx).notes.delete(key))
        return f"Deleted {key!r}." if there else f"There is no note {key!r}."

    async def remember(self, ctx: RunContext[Any], text: str, importance: float = 1.0) -> str:
        """Remember one thing for good, in a sentence that makes sense on its own.

        Args:
            text: What to remember, with names instead of "he" or "I".
            importance: 1 for most things, up to 10 for what must not be forgotten.
        """
        turn = self._turn(ctx)
        work = self._writer(ctx).remember(text, importance=importance, source=turn.prompt_id, duplicates="merge")
        item = await turn.memory.run(work)
        return f"Remembered, under the key {item.id}."

    async def recall(self, ctx: RunContext[Any], query: str, k: int = 5) -> list[dict[str, Any]]:
        """Search everything that you remember: earlier conversations, notes and facts.

        Args:
            query: What you look for, in words or as a question.
            k: How many results you want.
        """
        turn = self._turn(ctx)
        # The turn being answered is not a memory.
        work = self._scope(ctx).recall(query, max(1, min(k, MAX_RESULTS)), exclude=turn.current)
        hits = await turn.memory.run(work)
        return [_found(hit.record) for hit in hits]

    async def forget(self, ctx: RunContext[Any], key: str) -> str:
        """Forget what is remembered under a key, which recall shows."""
        # Not a hit in a session: only records in the agent's own scope are journaled.
        gone = await self._turn(ctx).memory.run(self._writer(ctx).forget(Ref(self._scope(ctx).path, MEMORY, key)))
        return "Forgotten." if gone.deleted else f"Nothing is remembered under {key!r}."

    async def assert_fact(
        self, ctx: RunContext[Any], subject: str, predicate: str, object: str, single: bool = False
    ) -> str:
        """State a fact that is true from now on.

        Args:
            subject: Whom or what it is about, by name.
            predicate: The relation, such as "lives_in".
            object: What it is about them.
            single: Whether there is one object at a time, so that this ends the fact before.
        """
        turn = self._turn(ctx)
        facts = self._writer(ctx).facts
        work = facts.add(subject, predicate, object, single=single, source=turn.prompt_id)
        link = await turn.memory.run(work)
        return f"Stated: {link.subject} {link.predicate} {link.object}."

    async def ask_facts(
        self, ctx: RunContext[Any], subject: str | None = None, predicate: str | None = None, object: str | None = None
    ) -> list[dict[str, Any]]:
        """Ask which facts are true, by any of subject, predicate and object."""
        facts = self._scope(ctx).facts
        links = await self._turn(ctx).memory.run(facts.ask(subject, predicate, object, limit=MAX_FACTS))
        return [_fact(link) for link in links]

    def _scope(self, ctx: RunContext[Any]) -> AsyncScope:
        return self._turn(ctx).memory.scope

    def _writer(self, ctx: RunContext[Any]) -> AsyncScope:
        turn = self._turn(ctx)
        by = Provenance(
            agent=turn.agent,
            session=turn.session.name,
            scope=turn.session.scope.path,
            message=turn.asked_in.get(ctx.tool_call_id or ""),
            prompt=turn.prompt_id,
            model=ctx.model.model_name,
            tool=ctx.tool_name,
            tool_call=ctx.tool_call_id,
        )
        return AsyncJournal(turn.memory.scope).writer(ctx.tool_name or "tool", by)


class _Toolset(FunctionToolset[Any]):
    """Returns correctable errors to the model, and limits the length of results."""

    def __init__(self, turn: Callable[[RunContext[Any]], RunMemory]) -> None:
        super().__init__(id="memory")
        self._turn = turn
        self._prepared: dict[int, dict[str, ToolsetTool[Any]]] = {}

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools, the same for every run, so that nothing is prepared again."""
        if ctx.max_retries not in self._prepared:
            self._prepared[ctx.max_retries] = await super().get_tools(ctx)
        return dict(self._prepared[ctx.max_retries])

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool; a correctable error becomes its result."""
        try:
            answer = await super().call_tool(name, tool_args, ctx, tool)
        except REFUSED as error:
            return refuse(str(error))
        turn = self._turn(ctx)
        return limited_result(answer, turn.memory.scope._tokens, turn.max_answer)


TOOLS = (
    "list_notes",
    "read_note",
    "write_note",
    "delete_note",
    "remember",
    "recall",
    "forget",
    "assert_fact",
    "ask_facts",
)
"""Names of the tools."""


def memory_tools(turn: Callable[[RunContext[Any]], RunMemory], names: Collection[str]) -> FunctionToolset[Any]:
    """Return the tools of these names; raises InvalidValueError for an unknown name."""
    if unknown := set(names) - set(TOOLS):
        raise InvalidValueError(f"there is no tool {shown(sorted(unknown)[0])}: there are {', '.join(TOOLS)}")
    made = _Tools(turn)
    toolset = _Toolset(turn)
    for name in TOOLS:
        if name in names:
            toolset.add_function(getattr(made, name), takes_ctx=True)
    return toolset


def _found(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": record.kind, "key": record.key, "text": record.text}
    if record.created is not None:
        shown["when"] = f"{record.created:%Y-%m-%d}"
    if isinstance(record.data, dict) and "role" in record.data:
        shown["said_by"] = record.data.get("name") or record.data["role"]
    by = record.meta.get(WRITTEN_BY)
    if isinstance(by, dict) and by.get("agent"):
        shown["written_by"] = by["agent"]
    return shown


def _fact(link: Fact) -> dict[str, Any]:
    fact: dict[str, Any] = {"subject": link.subject, "predicate": link.predicate, "object": link.object}
    fact |= {"since": f"{link.valid_from:%Y-%m-%d}", "confidence": link.confidence}
    return fact


def refuse(reason: str) -> str:
    """Report a failed call to the model: raises ToolFailed, or returns the reason in versions without it."""
    if _FAILED is not None:
        raise _FAILED(reason)
    return reason


def as_text(answer: Any) -> str:
    """Return a result as the model reads it."""
    return answer if isinstance(answer, str) else json.encode(answer).decode()


def limited_result(answer: Any, tokens: TokenCounter, most: int) -> Any:
    """Return a tool result within a token limit; of a list, the first items that fit."""
    if tokens.count(as_text(answer)) <= most:
        return answer
    if not isinstance(answer, list):
        return text_page(as_text(answer), 0, tokens, most)
    kept: list[Any] = []
    left = most - NOTE_TOKENS
    for item in answer:
        fitted = _fitted(item, tokens, left)
        if fitted is None:
            break
        kept.append(fitted)
        left -= tokens.count(as_text(fitted)) + 1
    if more := len(answer) - len(kept):
        kept.append(f"{more:,} more left out, since an answer has at most {most:,} tokens")
    return kept


def text_page(text: str, start: int, tokens: TokenCounter, most: int) -> str:
    """Return a page of a text from a character on, within a token limit, and say where the rest begins."""
    rest = text[start:]
    if tokens.count(rest) <= most:
        return rest
    shown = _cut(rest, tokens, max(most - NOTE_TOKENS, 1))
    end = start + len(shown)
    return f"{shown}\n[cut: characters {start:,} to {end:,} of {len(text):,}; the rest begins at start={end}]"


def _fitted(item: Any, tokens: TokenCounter, room: int) -> Any:
    """Return an item that fits, with its longest text cut if necessary; None if too little would be left."""
    cost = tokens.count(as_text(item)) + 1
    if cost <= room:
        return item
    if not isinstance(item, dict) or room < LEAST:
        return None
    name = max((n for n, value in item.items() if isinstance(value, str)), key=lambda n: len(item[n]), default=None)
    if name is None:
        return None
    left = room - tokens.count(as_text({**item, name: ""})) - 2
    while left >= LEAST // 2:
        fitted = {**item, name: _cut(item[name], tokens, left) + "…"}
        # Quotes and line ends are longer in JSON.
        if tokens.count(as_text(fitted)) + 1 <= room:
            return fitted
        left = left * 3 // 4
    return None


def _cut(text: str, tokens: TokenCounter, most: int) -> str:
    """Return the longest beginning of a text that fits."""
    length = min(len(text), 8 * most)
    while length and (count := tokens.count(text[:length])) > most:
        length = min(length - 1, length * most // count)
    return text[:length]
