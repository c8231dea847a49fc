"""Fence: conversations of its agents, in any store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, Unpack
from urllib.parse import urlencode

from .foreign import keep, original, printable_name, require

require("fence-llm", "2.3", "2.4", "fence")

from fence.memory.base import BaseMemory
from fence.templates.models import (
    Content,
    ImageContent,
    Source,
    TextContent,
    ToolResultBlock,
    ToolResultContent,
    ToolResultContentBlockText,
    ToolUseBlock,
    ToolUseContent,
)
from fence.templates.models import Message as FenceMessage

from ..checks import shown, to_segment
from ..errors import InvalidValueError
from ..formats import to_anthropic
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..message_list import MessageList
from ..messages import Message, Role, texts_in
from ..store.registry import sqlite_url
from ..sync import Session
from ..transfer.fence import to_message as message_of
from ..transfer.json_stream import clean_json, clean_text

__all__ = ["AgentCoreMemory", "DynamoDBMemory", "MnemicMemory", "SQLiteMemory"]

SPOKEN: tuple[Role, ...] = ("user", "assistant", "tool")
"""The roles of messages, as opposed to the system message."""
NOT_STORED = {"content": {"__all__": {"source": {"data_raw", "file_path"}}}}
"""Fields of an image that repeat its data, or name the file that was read."""


class MnemicMemory(BaseMemory):
    """A conversation of a Fence agent, in a session of a memory."""

    def __init__(
        self,
        memory: AnyMemory = OWN,
        session: str = "main",
        *,
        scope: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Use a session of a scope, a memory or a URL, with `scope`, such as a user's id, of that scope in it.

        `metadata` is added to each message; `options` are those of `mnemic.open`, for a URL.
        """
        self._memory = MemoryAccess(memory, None if scope is None else to_segment(scope, "scope"), options)
        self._name = to_segment(session, "session")
        self._metadata = {name: value for name, value in (metadata or {}).items() if value is not None}

    @property
    def session(self) -> Session:
        """The session with the conversation, for everything else that Mnemic does with one."""
        return self._memory.session_sync(self._name)

    @property
    def messages(self) -> MessageList[FenceMessage]:
        """The messages as a list; what an agent pops because of its `max_memory_size` goes to the archive."""
        return _Messages(lambda: self.session, lambda item, _: to_message(item, self._metadata), to_fence, SPOKEN)

    def add_message(self, role: str, content: str | Content, meta: dict[str, Any] | None = None) -> None:
        """Add a message with the metadata `meta`; a system message replaces the one before.

        Raises InvalidValueError, which is a ValueError, for another role.
        """
        if role == "system":
            self.set_system_message(content.text if isinstance(content, TextContent) else content)
        elif role in ("user", "assistant"):
            blocks = [TextContent(text=content) if isinstance(content, str) else content]
            message = to_message(FenceMessage(role=role, content=blocks), {**self._metadata, **(meta or {})})
            self.session.add(message)
        else:
            raise InvalidValueError(f"role must be 'system', 'user' or 'assistant': {shown(role)}")

    def add_messages(self, messages: list[FenceMessage]) -> None:
        """Add messages, all or none; raises InvalidValueError for anything else."""
        self.session.add_many([to_message(message, self._metadata) for message in messages])

    def set_system_message(self, content: Any) -> None:
        """Set the system message, a text; raises InvalidValueError for anything else."""
        self.session.set_system(clean_json(content))

    def get_messages(self) -> list[FenceMessage]:
        """Return the messages, without the system message."""
        return self.messages.copy()

    def get_system_message(self) -> str | None:
        """Return the system message; None if there is none."""
        found = self.session.system()
        return None if found is None else found.text

    def close(self) -> None:
        """Close the memory, if it was opened here."""
        self._memory.close_sync()


class SQLiteMemory(MnemicMemory):
    """A conversation in a file, with the arguments of Fence's own class."""

    def __init__(self, db_path: str | PathLike[str] = ":memory:", source: str | None = None) -> None:
        super().__init__(sqlite_url(db_path), metadata={"source": source})
        self.db_path = db_path
        self.source = source


class DynamoDBMemory(MnemicMemory):
    """A conversation in a DynamoDB table of Mnemic's, with the arguments of Fence's own class.

    The partition key is the scope, the sort key the session. The names of the table's keys are its own.
    """

    def __init__(
        self,
        table_name: str,
        primary_key_value: str,
        sort_key_value: str | None = None,
        primary_key_name: str = "PK",
        sort_key_name: str = "SK",
        sort_key_value_prefix: str | None = None,
        region_name: str = "eu-central-1",
        source: str | None = None,
        extra_fields: dict[str, Any] | None = None,
    ) -> None:
        _check_given(table_name=table_name, primary_key_value=primary_key_value)
        self.table_name = table_name
        self.primary_key_value = primary_key_value
        self.sort_key_value: str = sort_key_value or str(uuid.uuid4())
        self.source = source
        self.extra_fields: dict[str, Any] = extra_fields or {}
        session = f"{sort_key_value_prefix}#{self.sort_key_value}" if sort_key_value_prefix else self.sort_key_value
        url = f"dynamodb://{table_name}?{urlencode({'region': region_name})}"
        super().__init__(url, session, scope=primary_key_value, metadata={"source": source, **self.extra_fields})


class AgentCoreMemory(MnemicMemory):
    """A conversation in an AgentCore memory, with the arguments of Fence's own class; the actor is the scope."""

    def __init__(self, agentcore_memory: Mapping[str, Any], client: Any, actor_id: str, session_id: str) -> None:
        _check_given(actor_id=actor_id, session_id=session_id)
        self.agentcore_memory = agentcore_memory
        self.client = client
        self.actor_id = actor_id
        self.session_id = session_id
        region = getattr(client, "region_name", None)
        url = f"agentcore://{agentcore_memory['id']}" + (f"?{urlencode({'region': region})}" if region else "")
        super().__init__(url, session_id, scope=actor_id)


def _check_given(**ids: object) -> None:
    """Raise InvalidValueError for an id that is missing: those without one would share a conversation."""
    for name, id in ids.items():
        if not isinstance(id, str) or not id:
            raise InvalidValueError(f"{name} must be a text that is not empty: {shown(id)}")


class _Messages(MessageList[FenceMessage]):
    """The messages as a list that loses none: what an agent pops is archived, and recall still finds it."""

    def pop(self, index: int = -1) -> FenceMessage:
        found = self.stored()[index]
        self._session().archive(found)
        return to_fence(found)


def to_message(given: FenceMessage, metadata: Mapping[str, Any] | None = None) -> Message:
    """Return a message of Fence as a Message, from which `to_fence` makes the same again."""
    if not isinstance(given, FenceMessage):
        raise InvalidValueError(f"a Fence Message is stored, not {type(given).__name__}")
    match given.content:
        case [TextContent(text=text)] if type(given) is FenceMessage and type(given.content[0]) is TextContent:
            if text.strip() and clean_text(text) == text:
                return Message(given.role, text, metadata=dict(metadata or {}))  # a fast path for nearly every message
    form = given.model_dump(mode="json", by_alias=True, exclude=NOT_STORED)
    contents = [{"type": "text", "text": given.content}] if isinstance(given.content, str) else form["content"]
    message = message_of(given.role, [_printable(content) for content in contents], metadata or {})
    return message if _made(message) == [given] else keep("fence", message, form)


def _printable(content: dict[str, Any]) -> dict[str, Any]:
    """Return a content with text, ids and names that can be stored."""
    found: dict[str, Any] = clean_json(content)
    if isinstance(inner := found.get("content"), dict):
        inner |= {name: printable_name(inner[name]) for name in ("toolUseId", "name") if name in inner}
    return found


def to_fence(message: Message) -> FenceMessage:
    """Return a message as one of Fence: the same if it was one, else one with the same content."""
    if (form := original("fence", message)) is not None:
        return FenceMessage.model_validate(form)
    for made in _made(message):
        return made
    return FenceMessage(role=_role(message), content=[TextContent(text=message.text or "")])


def _made(message: Message) -> list[FenceMessage]:
    """Return the messages of Fence that have the content of a message."""
    text = message.content
    if isinstance(text, str) and text.strip() and not (message.tool_calls or message.images or message.role == "tool"):
        return [FenceMessage(role=_role(message), content=[TextContent(text=text)])]
    try:
        _, turns = to_anthropic([message])
    except InvalidValueError:  # such as a result without the id of its call, or a path of an image
        return []
    return [FenceMessage(role=turn["role"], content=list(_contents(turn["content"]))) for turn in turns]


def _role(message: Message) -> Any:
    return "assistant" if message.role == "assistant" else "user"


def _contents(blocks: str | list[dict[str, Any]]) -> Iterator[Content]:
    for block in [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks:
        match block:
            case {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}:
                yield ImageContent(source=Source(media_type=media_type, data=data))
            case {"type": "image", "source": {"url": str(url)}}:  # Fence has images as data only
                yield TextContent(text=url)
            case {"type": "tool_use", "id": id, "name": name, "input": input}:
                yield ToolUseContent(content=ToolUseBlock(toolUseId=id, name=name, input=input))
            case {"type": "tool_result", "tool_use_id": id}:
                parts = block.get("content", "")
                texts = [parts] if isinstance(parts, str) else [text for part in parts for text in texts_in(part)]
                answer = [ToolResultContentBlockText(text=text) for text in texts]
                status: Any = "error" if block.get("is_error") else "success"
                yield ToolResultContent(content=ToolResultBlock(toolUseId=id, content=answer, status=status))
            case _:
                yield TextContent(text="\n".join(texts_in(block)))
