"""Transcripts of the Claude Agent SDK, stored as sessions of a scope."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, Unpack

from msgspec.structs import replace

from ..checks import MAX_SEGMENT, check_name, from_segment, shown, to_segment
from ..errors import ConflictError, InvalidValueError
from ..features.listing import SessionInfo
from ..features.sessions import AsyncSession
from ..formats import from_anthropic
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message
from ..records import parse_time
from ..scope import AsyncScope
from ..store.retry import retry_conflicts
from ..transfer.agent_transcripts import MARKERS, skip_reason, spoken
from ..transfer.json_stream import clean_json
from .foreign import keep, require, take_original

require("claude-agent-sdk", "0.2.182", "0.3", "claude-agent-sdk")

from claude_agent_sdk import SessionStore, fold_session_summary
from claude_agent_sdk.types import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
)

__all__ = ["MnemicSessionStore"]

NAME = "claude_agent_sdk"
"""The key in the metadata of messages, and of summaries in the state of a project."""
THINKING = ("thinking", "redacted_thinking")


class MnemicSessionStore(SessionStore):
    """A session store in a Mnemic memory: pass it as `ClaudeAgentOptions(session_store=…)`.

    `memory` is a scope, a memory or a URL, which is opened with the `options` of `mnemic.open` and closed by `close`.
    A project is a scope of it, and a transcript a session of that scope; transcripts of subagents are sessions below.
    """

    def __init__(self, memory: AnyMemory = OWN, **options: Unpack[OpenOptions]) -> None:
        """Raise InvalidValueError for an invalid memory."""
        self._memory = MemoryAccess(memory, options=options)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries, all or none; those with a uuid that is stored are skipped."""
        messages = [_to_message(entry) for entry in entries]
        if messages:
            await self._memory.call(lambda scope: _append(scope, key, messages))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries; None if there are none."""
        return await self._memory.call(lambda scope: _load(_session(scope, key)))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """List the transcripts of a project, without those of subagents."""
        found = await self._memory.call(lambda scope: _children(_project(scope, project_key)))
        return [{"session_id": name, "mtime": _milliseconds(info.last_activity)} for name, info in found.items()]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """List the summaries that the SDK has made of the transcripts of a project."""
        return await self._memory.call(lambda scope: _summaries(_project(scope, project_key)))

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript and those of its subagents, or with a subpath only that one."""
        await self._memory.call(lambda scope: _delete(scope, key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """List the subpaths of a transcript."""
        return list(await self._memory.call(lambda scope: _children(_below(scope, key))))

    async def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()


# ---------------------------------------------------------------- where transcripts are


def _project(scope: AsyncScope, project_key: str) -> AsyncScope:
    if isinstance(project_key, str) and len(project_key) > MAX_SEGMENT:  # the key of a folder can be a bit longer
        project_key = f"{project_key[:150]}-{sha256(project_key.encode()).hexdigest()[:32]}"
    return scope.scope(to_segment(project_key, "project_key"))


def _below(scope: AsyncScope, key: SessionKey | SessionListSubkeysKey) -> AsyncScope:
    return _project(scope, key["project_key"]).scope(to_segment(key["session_id"], "session_id"))


def _session(scope: AsyncScope, key: SessionKey) -> AsyncSession:
    if subpath := key.get("subpath"):
        return _below(scope, key).session(to_segment(subpath, "subpath"))
    return _project(scope, key["project_key"]).session(to_segment(key["session_id"], "session_id"))


async def _children(scope: AsyncScope) -> dict[str, SessionInfo]:
    """Return the sessions of a scope, without those further below, by the ids that the SDK gave."""
    return {from_segment(info.name): info for info in await scope.sessions.list() if info.scope.parent == scope.path}


# ---------------------------------------------------------------- reading and writing


async def _append(scope: AsyncScope, key: SessionKey, messages: list[Message]) -> None:
    session = _session(scope, key)
    first: dict[str, Message] = {}
    for message in messages:
        first.setdefault(message.id, message)
    new = list(first.values())
    try:
        stored = await session.add_many(new, open_images=False)
    except ConflictError:
        known = {message.id: message for message in await session.messages()}
        added = await session.add_many([one for one in new if one.id not in known], open_images=False)
        stored = [known[message.id] for message in new if message.id in known] + added
    if key.get("subpath"):
        return
    state = _project(scope, key["project_key"]).state
    # As stored: a redacted memory has no personal data in a summary either.
    entries = [entry for message in stored if (entry := _to_entry(message)) is not None]

    async def fold() -> None:
        old = await state.get(name := f"{NAME}/{session.name}")
        before = None if old is None else _summary(key["session_id"], old.value, 0)
        after = fold_session_summary(before, key, entries)
        await state.set(name, clean_json(after["data"]), if_version=0 if old is None else old.version)

    await retry_conflicts(fold, f"summarizing transcript {session.name!r}")


async def _load(session: AsyncSession) -> list[SessionStoreEntry] | None:
    return [entry for message in await session.messages() if (entry := _to_entry(message)) is not None] or None


async def _summaries(project: AsyncScope) -> list[SessionSummaryEntry]:
    stored = {from_segment(item.key.partition("/")[2]): item for item in await project.state.list(f"{NAME}/")}
    return [
        _summary(name, stored[name].value, _milliseconds(stored[name].updated))
        for name in await _children(project)
        if name in stored
    ]


async def _delete(scope: AsyncScope, key: SessionKey) -> None:
    if subpath := key.get("subpath"):
        await _below(scope, key).sessions.delete(to_segment(subpath, "subpath"))
        return
    below = _below(scope, key)
    for info in (await _children(below)).values():
        await below.sessions.delete(info)
    project = _project(scope, key["project_key"])
    await project.sessions.delete(below.path.name)
    await project.state.delete(f"{NAME}/{below.path.name}")


def _summary(session_id: str, data: dict[str, Any], mtime: int) -> SessionSummaryEntry:
    return {"session_id": session_id, "mtime": mtime, "data": data}


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


# ---------------------------------------------------------------- entries and messages


def _to_message(entry: Any) -> Message:
    """Return an entry as a message, with what was said where recall, windows and limits look for it.

    An entry that is no message of the conversation has no content; windows and recall leave it out.
    """
    if not isinstance(entry, dict):
        raise InvalidValueError(f"an entry is a JSON object, not {shown(entry)}")
    form: dict[str, Any] = {"entry": entry}
    message = _said(entry)
    if message is None:
        message = Message("tool")
    elif _are_calls(inputs := _inputs(entry), message):
        form = {"entry": _with_inputs(entry, [None] * len(inputs)), "inputs": True}
    with suppress(InvalidValueError, TypeError):
        message = replace(message, timestamp=parse_time(entry.get("timestamp"), "timestamp"))  # type: ignore[arg-type]
    with suppress(InvalidValueError):
        message = replace(message, id=check_name(entry.get("uuid"), "uuid"))
    return keep(NAME, message, form)


def _to_entry(message: Message) -> SessionStoreEntry | None:
    """Return the entry that was stored as this message; None for a message that was stored another way."""
    if (form := take_original(NAME, message)) is None:
        return None
    entry: SessionStoreEntry = form["entry"]
    if "inputs" in form:
        entry = _with_inputs(entry, [json.loads(call.arguments) for call in message.tool_calls])
    return entry


def _said(entry: dict[str, Any]) -> Message | None:
    """Return the prompt, answer, tool call or tool result of an entry; None for any other entry."""
    if skip_reason(entry) is not None:
        return None
    role, content = spoken(entry)
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("type") in THINKING)]
    if not content:
        return None
    try:
        found = from_anthropic([{"role": role, "content": content}])
        said = found[0] if len(found) == 1 else Message(role, content)
        if said.images:  # as blocks they are stored once
            said = replace(said, images=[], content=content[0]["content"] if said.role == "tool" else content)
    except InvalidValueError:
        return None
    return None if role == "user" and (said.text or "").lstrip().startswith(MARKERS) else said


def _inputs(entry: dict[str, Any]) -> list[Any]:
    """Return the inputs of the tool calls of an entry."""
    content = entry["message"].get("content") if isinstance(entry.get("message"), dict) else None
    blocks = content if isinstance(content, list) else []
    return [block.get("input") for block in blocks if isinstance(block, dict) and block.get("type") == "tool_use"]


def _are_calls(inputs: list[Any], message: Message) -> bool:
    """Return whether the tool calls of a message hold these inputs without loss."""
    if not inputs or not all(isinstance(given, dict) for given in inputs):
        return False
    return [json.loads(call.arguments) for call in message.tool_calls] == inputs


def _with_inputs(entry: Any, inputs: list[Any]) -> Any:
    """Return an entry with other inputs of its tool calls, which are stored as the calls of the message."""
    given = iter(inputs)
    content = [
        {**block, "input": next(given)} if isinstance(block, dict) and block.get("type") == "tool_use" else block
        for block in entry["message"]["content"]
    ]
    return {**entry, "message": {**entry["message"], "content": content}}
