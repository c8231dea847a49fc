"""Fence's memories and agent: a conversation in a process, a file, DynamoDB or AgentCore."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Unpack
from urllib.parse import urlencode

import mnemic
from mnemic import Message

from ..features.turns import messages_that_fit
from ..memory import OpenOptions
from ..messages import SYSTEM_ID
from ..records import now
from ..store.registry import sqlite_url
from ..tokens import encoding
from .opening import shared
from .prompting import PromptAgent

__all__ = [
    "Agent",
    "AgentCoreMemory",
    "BaseMemory",
    "DynamoDBMemory",
    "FleetingMemory",
    "SQLiteMemory",
    "cleanup_old_sessions",
]

MEMORY_ID = "BEDROCK_AGENTCORE_MEMORY_ID"
"""Environment variable with the id of the AgentCore memory, unless one is given."""
ADDED_SYSTEM_ID = "fence-system"
"""Id of the system message added with `add_message`, besides the one that was set."""


class BaseMemory:
    """A conversation: base class of the memories, and the interface of your own."""

    session: mnemic.Session | None = None

    def __init__(self, url: str, name: str, *scope: str, **options: Unpack[OpenOptions]) -> None:
        """`url` is any Mnemic URL; `options` are those of `mnemic.open`, such as `encryption_key`."""
        open_ = mnemic.open if url == "memory://" else shared
        memory = open_(url, **options)
        self.scope: mnemic.Scope = memory.scope("fence", *scope)
        self.session = self.scope.session(name)

    @property
    def _session(self) -> mnemic.Session:
        if self.session is None:
            raise NotImplementedError(f"{type(self).__name__} has no session: it must say how it keeps messages")
        return self.session

    def add_message(self, role: Any, content: str) -> None:
        """Add a message; a system message replaces the one added before."""
        if role != "system":
            self._session.add(role, content)
            return
        added = Message("system", content, ADDED_SYSTEM_ID)

        def change(stored: list[Message]) -> list[Message]:
            if any(message.id == added.id for message in stored):
                return [added if message.id == added.id else message for message in stored]
            return [*stored, added]

        self._session.replace(change)

    def set_system_message(self, content: str) -> None:
        """Set the system message, replacing all earlier ones."""
        self._session.set_system(content)
        self._remove_added()

    def get_messages(self) -> list[Message]:
        """Return all messages, the system messages first."""
        found = self._session.messages()
        return [m for m in found if m.role == "system"] + [m for m in found if m.role != "system"]

    def clear(self) -> None:
        """Delete all messages except the system message that was set."""
        self._remove_added()
        self._session.clear(keep_system=True)

    def _remove_added(self) -> None:
        added = [m for m in self._session.messages(roles="system") if m.id != SYSTEM_ID]
        self._session.delete(*added)


class FleetingMemory(BaseMemory):
    """A conversation in this process only."""

    def __init__(self, **options: Unpack[OpenOptions]) -> None:
        super().__init__("memory://", "fleeting", **options)


class SQLiteMemory(BaseMemory):
    """A conversation in a file."""

    def __init__(self, db_path: str | os.PathLike[str], session_id: str, **options: Unpack[OpenOptions]) -> None:
        super().__init__(sqlite_url(db_path), session_id, **options)


class DynamoDBMemory(BaseMemory):
    """A conversation of any length in a DynamoDB table whose hash key is `primary_key_name`."""

    def __init__(
        self,
        table_name: str,
        primary_key_name: str,
        primary_key_value: str,
        region: str | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        url = _aws("dynamodb", table_name, region, "AWS_ENDPOINT_URL_DYNAMODB", key=primary_key_name)
        super().__init__(url, primary_key_value, **options)


class AgentCoreMemory(BaseMemory):
    """A conversation in an AWS AgentCore memory, with the agent as the actor."""

    def __init__(
        self,
        agent_id: str,
        session_id: str,
        memory_id: str | None = None,
        region: str | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Raise InvalidValueError if neither `memory_id` nor the environment names a memory."""
        memory_id = memory_id or os.environ.get(MEMORY_ID)
        if not memory_id:
            raise mnemic.InvalidValueError(f"AgentCoreMemory needs a memory_id, or {MEMORY_ID} to name one")
        url = _aws("agentcore", memory_id, region, "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE")
        super().__init__(url, session_id, agent_id, **options)


def _aws(scheme: str, name: str, region: str | None, endpoint: str, **options: str) -> str:
    """Return a URL with the region and endpoint of AWS's environment variables."""
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    at = os.environ.get(endpoint) or os.environ.get("AWS_ENDPOINT_URL")
    given = {"region": region, "endpoint": at, **options}
    return f"{scheme}://{name}?{urlencode({k: v for k, v in given.items() if v})}"


class Agent:
    """An agent that remembers its conversation, in any of these memories or your own."""

    def __init__(
        self,
        identifier: str,
        model: Any = None,
        memory: Any = None,
        role: str | None = None,
        max_memory_size: int | None = None,
        prefill: str | None = None,
        tools: Sequence[Any] = (),
    ) -> None:
        """`max_memory_size` limits the conversation in the prompt, in tokens.

        `prefill` is an initial message of the agent.
        """
        self.identifier = identifier
        self.memory: FleetingMemory | Any = FleetingMemory() if memory is None else memory
        self.role = role
        self._prefill = prefill
        session = getattr(self.memory, "session", None)
        self._agent = PromptAgent(
            identifier,
            role,
            model,
            tools,
            session=session,
            history=self._history,
            keep=self._keep,
            max_tokens=max_memory_size,
        )

    def run(self, prompt: str) -> str:
        if self._prefill is not None and not [m for m in self.memory.get_messages() if m.role != "system"]:
            self.memory.add_message(role="assistant", content=self._prefill)
        answer: str = self._agent.drive(self._agent.say(prompt))
        return answer

    async def _history(self) -> list[Message]:
        stored = [Message(one.role, one.content) for one in self.memory.get_messages()]
        return messages_that_fit(stored, self._agent.max_tokens, encoding())

    async def _keep(self, message: Message) -> None:
        self.memory.add_message(role=message.role, content=message.text or "")


def cleanup_old_sessions(memory: BaseMemory, max_age_days: float) -> int:
    """Clear the sessions beside this one without activity for that long; return how many."""
    oldest = now() - timedelta(days=max_age_days)
    old = [info for info in memory.scope.sessions.list() if info.last_activity < oldest]
    for info in old:
        memory.scope.session(info.name).clear()
    return len(old)
