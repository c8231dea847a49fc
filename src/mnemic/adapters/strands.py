"""Sessions and memory stores of Strands Agents."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from ..checks import check_count, shown, to_segment
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..features.hits import Hit
from ..features.memory_items import MemoryItem
from ..features.sessions import AsyncSession
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message
from ..records import parse_time
from ..scope import AsyncScope
from ..transfer.json_stream import clean_text
from .foreign import blocks_of, keep, message_of, original, require, take_original

require("strands-agents", "1.62", "1.63", "strands")

from strands.memory import AddMessagesContext, ExtractionConfig, MemoryEntry, MemoryStore, SearchOptions
from strands.session import SessionRepository
from strands.types.content import Message as StrandsMessage
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, decode_bytes_values, encode_bytes_values

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

__all__ = ["MnemicMemoryStore", "MnemicSessionRepository"]

FRAMEWORK = "strands"
SESSION, AGENT, MULTI_AGENT = f"{FRAMEWORK}/session", f"{FRAMEWORK}/agent/", f"{FRAMEWORK}/multi_agent/"
"""Keys of state in the scope of a session."""
FIELDS = tuple(field.name for field in fields(SessionMessage))


class MnemicSessionRepository(SessionRepository):
    """Strands' sessions: each is a scope below the given one, and each agent in it a session of that scope."""

    def __init__(self, memory: AnyMemory = OWN, **options: Unpack[OpenOptions]) -> None:
        """Use a scope, such as that of a user, a memory, or a URL, which is opened with `options` on first use."""
        self._memory = MemoryAccess(memory, options=options)

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Create a session; raises SessionException if it exists."""
        try:
            self._set(session.session_id, SESSION, session.to_dict(), if_version=0)
        except ConflictError:
            raise SessionException(f"Session {session.session_id} already exists") from None
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        form = self._get(session_id, SESSION)
        return None if form is None else Session.from_dict(form)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with its agents; raises SessionException if it does not exist."""
        self._memory.call_sync(lambda scope: _delete(_at(scope, session_id), session_id))

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        self._set(session_id, _agent(session_agent.agent_id), session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        form = self._get(session_id, _agent(agent_id))
        return None if form is None else SessionAgent.from_dict(form)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace the state of an agent; raises SessionException if it does not exist."""
        missing = SessionException(f"Agent {session_agent.agent_id} in session {session_id} does not exist")
        stored = self._update(session_id, _agent(session_agent.agent_id), session_agent.to_dict(), missing)
        session_agent.created_at = stored["created_at"]

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Add a message of an agent; another one that has its number, from another process, is kept too."""
        message = _to_message(session_message)
        self._memory.call_sync(lambda scope: _add(_chat(scope, session_id, agent_id), message))

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        key = str(check_count(message_id, "message_id"))
        found = self._memory.call_sync(lambda scope: _find(_chat(scope, session_id, agent_id), key))
        return None if found is None else _to_session_message(found, message_id)

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Replace a message, as for redaction; raises SessionException if it does not exist."""
        message = _to_message(session_message)
        created = self._memory.call_sync(lambda scope: _replace(_chat(scope, session_id, agent_id), message))
        session_message.created_at = created

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """Return messages of an agent, oldest first; raises SessionException if it does not exist."""
        found = self._memory.call_sync(lambda scope: _list(scope, session_id, agent_id, check_count(offset, "offset")))
        messages = [_to_session_message(message, n) for n, message in enumerate(found, offset)]
        return messages if limit is None else messages[: check_count(limit, "limit")]

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        self._set(session_id, _multi_agent(multi_agent.id), encode_bytes_values(multi_agent.serialize_state()))

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        return self._get(session_id, _multi_agent(multi_agent_id))

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Replace the state of a group of agents; raises SessionException if it does not exist."""
        form = encode_bytes_values(multi_agent.serialize_state())
        missing = SessionException(f"MultiAgent state {multi_agent.id} in session {session_id} does not exist")
        self._update(session_id, _multi_agent(multi_agent.id), form, missing)

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._memory.close_sync()

    def _get(self, session_id: str, key: str) -> dict[str, Any] | None:
        found = self._memory.call_sync(lambda scope: _at(scope, session_id).state.get(key))
        return None if found is None else dict(found.value)

    def _set(self, session_id: str, key: str, form: dict[str, Any], if_version: int | None = None) -> None:
        self._memory.call_sync(lambda scope: _at(scope, session_id).state.set(key, form, if_version=if_version))

    def _update(self, session_id: str, key: str, form: dict[str, Any], missing: SessionException) -> dict[str, Any]:
        """Replace a state that exists, except its time of creation, and return it."""

        def change(old: Any) -> dict[str, Any]:
            if old is None:
                raise missing
            return {**form, "created_at": old["created_at"]} if "created_at" in form else form

        updated = self._memory.call_sync(lambda scope: _at(scope, session_id).state.update(key, change))
        return dict(updated.value)


class MnemicMemoryStore(MemoryStore):
    """A memory store of Strands: texts become memories of the given scope."""

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        name: str = "mnemic",
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: ExtractionConfig | bool | None = None,
        min_score: float | None = 0.1,
        kinds: Sequence[str] | str | None = ("memory", "note", "fact"),
        **options: Unpack[OpenOptions],
    ) -> None:
        """Use a scope, such as that of a user, a memory, or a URL, which is opened with `options` on first use.

        A search returns hits of these `kinds` with at least `min_score`, as `recall` does.
        """
        self.name, self.description = name, description
        self.max_search_results, self.writable, self.extraction = max_search_results, writable, extraction
        self._min_score, self._kinds = min_score, kinds
        self._memory = MemoryAccess(memory, options=options)

    async def initialize(self) -> None:
        """Open the memory, so that a wrong URL is found before the agent runs."""
        await self._memory.open()

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """Return the entries that are relevant for a query, best first, with id, kind, score and time as metadata."""
        given = (options or {}).get("max_search_results", self.max_search_results)
        k = 10 if given is None else check_count(given, "max_search_results", least=1)
        hits = await self._memory.call(
            lambda scope: scope.recall(query, k, kinds=self._kinds, min_score=self._min_score)
        )
        return [_to_entry(hit) for hit in hits]

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> str:
        """Remember a text, unless the same is known already; return its id. Raises InvalidValueError without text."""
        if not isinstance(content, str) or not content.strip():
            raise InvalidValueError(f"a memory needs text: {shown(content)}")
        text = clean_text(content)
        item = await self._memory.call(lambda scope: scope.remember(text, metadata=metadata, duplicates="skip"))
        return item.id

    async def add_messages(self, messages: list[StrandsMessage], context: AddMessagesContext | None = None) -> None:
        """Remember the text of messages as it is, without a model; a message that is added again is stored once."""
        items = []
        for message in messages:
            found = _read(message)
            if isinstance(found.content, str):
                text, id = clean_text(found.content), message.get("tracking_id") or ""
                items.append(MemoryItem(text, id, metadata={"role": found.role}))
        await self._memory.call(lambda scope: scope.remember_many(items))

    async def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()


def _at(scope: AsyncScope, session_id: str) -> AsyncScope:
    return scope.scope(to_segment(session_id, "session_id"))


def _agent(agent_id: str) -> str:
    return AGENT + to_segment(agent_id, "agent_id")


def _multi_agent(multi_agent_id: str) -> str:
    return MULTI_AGENT + to_segment(multi_agent_id, "multi_agent_id")


def _chat(scope: AsyncScope, session_id: str, agent_id: str) -> AsyncSession:
    return _at(scope, session_id).session(to_segment(agent_id, "agent_id"))


async def _delete(place: AsyncScope, session_id: str) -> None:
    if await place.state.get(SESSION) is None:
        raise SessionException(f"Session {session_id} does not exist")
    for info in await place.sessions.list():
        await place.sessions.delete(info)
    await place.state.clear()


async def _find(chat: AsyncSession, *keys: str) -> Message | None:
    for key in keys:
        try:
            return await chat.get(key)
        except NotFoundError:
            pass
    return None


async def _add(chat: AsyncSession, message: Message) -> None:
    try:
        await chat.add_many([message], open_images=False)
    except ConflictError:
        await chat.add_many([replace(message, id=_second_id(message))], open_images=False)


async def _replace(chat: AsyncSession, message: Message) -> str:
    """Replace a message, except its time of creation, which is returned."""
    old = await _find(chat, _second_id(message), message.id)
    form = original(FRAMEWORK, message)
    if old is None or form is None:
        raise SessionException(f"Message {message.id} does not exist")
    form["created_at"] = _to_session_message(old, form["message_id"]).created_at
    message = replace(message, id=old.id, timestamp=old.timestamp)
    await chat.edit(keep(FRAMEWORK, message, form), open_images=False)
    return str(form["created_at"])


async def _list(scope: AsyncScope, session_id: str, agent_id: str, offset: int) -> list[Message]:
    chat = _chat(scope, session_id, agent_id)
    info = await chat.info()
    if info is None:
        if await _at(scope, session_id).state.get(_agent(agent_id)) is None:
            raise SessionException(f"Agent {agent_id} in session {session_id} does not exist")
        return []
    return await chat.messages(max(info.messages - offset, 0))


def _second_id(message: Message) -> str:
    """Return the id of a message whose number another one has."""
    form = original(FRAMEWORK, message) or {}
    return f"{message.id}/{form.get('message', {}).get('tracking_id') or form.get('created_at')}"


def _read(message: StrandsMessage) -> Message:
    """Return a message with the text, tool calls and tool results of one of Strands."""
    texts, calls, results = [], [], []
    for block in message["content"]:
        if "toolUse" in block:
            use = block["toolUse"]
            calls.append((use["toolUseId"], use["name"], use["input"]))
        elif "toolResult" in block:
            parts = block["toolResult"]["content"]
            said = [
                part["text"] if "text" in part else json.dumps(part["json"]) for part in parts if part.keys() & _SAID
            ]
            results.append((block["toolResult"]["toolUseId"], "\n".join(said)))
        elif text := block.get("text"):
            texts.append(text)
        elif "citationsContent" in block:
            texts += [part["text"] for part in block["citationsContent"].get("content", []) if "text" in part]
    return message_of(message["role"], "\n".join(texts) or None, calls, results)


_SAID = {"text", "json"}


def _to_message(given: SessionMessage) -> Message:
    message = replace(
        _read(given.to_message()),
        id=str(check_count(given.message_id, "message_id")),
        timestamp=parse_time(given.created_at, "created_at"),
    )
    # `SessionMessage.to_dict` copies all of it first, which is slow.
    return keep(FRAMEWORK, message, encode_bytes_values({name: getattr(given, name) for name in FIELDS}))


def _to_session_message(message: Message, n: int) -> SessionMessage:
    """Return a message as one of Strands; `n` is its number, if it came another way."""
    if (form := take_original(FRAMEWORK, message)) is not None:
        # `SessionMessage.from_dict` inspects the signature of its class each time, which is slow.
        return SessionMessage(**decode_bytes_values({name: form[name] for name in FIELDS if name in form}))
    blocks = blocks_of(
        message,
        text=lambda text: {"text": text},
        image=lambda kind, data: {"image": {"format": kind.rpartition("/")[2], "source": {"bytes": b64decode(data)}}},
        call=lambda call, given: {"toolUse": {"toolUseId": call.id, "name": call.name, "input": given}},
        result=_result,
    )
    role: Any = "assistant" if message.role == "assistant" else "user"
    time = message.timestamp.isoformat()
    return SessionMessage({"role": role, "content": blocks}, n, created_at=time, updated_at=time)


def _result(part: Message) -> dict[str, Any]:
    said = [] if not part.content or part.text is None else [{"text": part.text}]
    status = "error" if part.metadata.get("is_error") else "success"
    return {"toolResult": {"toolUseId": part.tool_call_id, "status": status, "content": said}}


def _to_entry(hit: Hit) -> MemoryEntry:
    made = {} if hit.created is None else {"created": hit.created.isoformat()}
    metadata = {name: value for name, value in hit.metadata.items() if name != FRAMEWORK}
    return MemoryEntry(hit.text, metadata={**metadata, **made, "id": hit.id, "kind": hit.kind, "score": hit.score})
