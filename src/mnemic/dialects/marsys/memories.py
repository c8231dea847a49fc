"""MARSYS memories: for one conversation, for several agents, with summaries, in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from msgspec import DecodeError, json

import mnemic

from ...checks import check_segment, shown
from ...features.settings import Retention
from ...features.summary import extractive
from ...layers.cipher import EncryptionKeys
from ..message_list import MessageList, shared
from .messages import Message, decode, encode

KEPT = "sqlite:///agent_memory.db"
"""Default store of persistent memories."""
SCOPE = "marsys"
"""Scope of the agents' memories."""


class ConversationMemory:
    """The history of one agent's conversation."""

    def __init__(
        self,
        max_messages: int | None = None,
        retention_policy: str = "session",
        *,
        session: mnemic.Session | None = None,
    ) -> None:
        """`session` is the underlying session; by default one in this process."""
        self.max_messages = max_messages
        self.retention_policy: str = _policy(retention_policy)
        if session is None:
            session = _session(mnemic.open("memory://"), (), max_messages, retention_policy)
        self.session = session

    @property
    def messages(self) -> MessageList[Message]:
        return MessageList(lambda: self.session, encode, decode)

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        self.messages.replace(messages)

    def add_message(self, message: Message) -> None:
        self.session.add(encode(message))

    def get_messages(self) -> list[Message]:
        return self.messages[:]

    def get_recent(self, n: int = 10) -> list[Message]:
        return [decode(message) for message in self.session.recent(n)]

    def clear(self) -> None:
        self.session.clear()

    def to_dict(self) -> list[dict[str, Any]]:
        return [message.to_dict() for message in self.get_messages()]

    def save_to_file(self, filepath: str | PathLike[str]) -> None:
        self.session.save(filepath)

    def load_from_file(self, filepath: str | PathLike[str]) -> None:
        try:
            listed: Any = json.decode(Path(filepath).read_bytes())
        except (DecodeError, OSError):
            listed = None
        if isinstance(listed, list):
            loaded = [encode(Message.from_dict(one)) for one in listed]
            # Paths in a file are not opened: it may come from anyone.
            self.session.replace(loaded, open_images=False)
        else:
            self.session.load(filepath)


class MemoryManager:
    """The memories of several agents; leaving a `with` block ends their session."""

    def __init__(
        self,
        retention_policy: str = "session",
        max_messages_per_agent: int = 1000,
        *,
        store: str | None = None,
        encryption_key: EncryptionKeys | None = None,
    ) -> None:
        """`store` is the URL of persistent memories, opened on first use.

        `encryption_key` encrypts them.
        """
        self.retention_policy = _policy(retention_policy)
        self.max_messages_per_agent = max_messages_per_agent
        self._store = store
        self._encryption_key = encryption_key
        self._scratch = mnemic.open("memory://")
        self._memories: dict[str, ConversationMemory] = {}

    def get_memory(self, agent_name: str) -> ConversationMemory:
        """Return an agent's memory: always the same object, also after a change of its policy."""
        if agent_name not in self._memories:
            self._memories[agent_name] = ConversationMemory(
                self.max_messages_per_agent,
                self.retention_policy,
                session=self._session(agent_name, self.retention_policy),
            )
        return self._memories[agent_name]

    def clear_agent_memory(self, agent_name: str) -> None:
        self.get_memory(agent_name).clear()

    def clear_all(self) -> None:
        """Clear the memories of all agents, including persistent ones that are not open.

        A manager without `store` and without persistent memories looks for none.
        """
        for memory in list(self._memories.values()):
            memory.clear()
        policies = {self.retention_policy, *(memory.retention_policy for memory in self._memories.values())}
        if self._store is None and "persistent" not in policies:
            return
        kept = self._persistent().scope(SCOPE)
        for info in kept.sessions.list():
            kept.scope(*info.scope.parent.segments[1:]).session(info.name).clear()

    def set_retention_policy(self, agent_name: str, policy: str) -> None:
        """Change an agent's policy, and move its messages accordingly."""
        _policy(policy)
        memory = self.get_memory(agent_name)
        before, after = memory.session, self._session(agent_name, policy)
        moves = (memory.retention_policy == "persistent") != (policy == "persistent")
        memory.session, memory.retention_policy = after, policy
        # Repeat until nothing is left: others may still be adding to the old session.
        while moves and (held := before.messages()):
            after.add_many(held, open_images=False)
            before.delete(*held)

    def _session(self, agent_name: str, policy: str) -> mnemic.Session:
        memory = self._persistent() if policy == "persistent" else self._scratch
        return _session(memory, (agent_name,), self.max_messages_per_agent, policy)

    def _persistent(self) -> mnemic.Memory:
        return shared(KEPT if self._store is None else self._store, self._encryption_key)

    @contextmanager
    def run(self) -> Iterator[MemoryManager]:
        try:
            yield self
        finally:
            for memory in self._memories.values():
                if memory.retention_policy == "single_run":
                    memory.clear()

    def end_session(self) -> None:
        for memory in self._memories.values():
            with memory.session:  # and clear it at its end, by its retention
                pass

    def __enter__(self) -> MemoryManager:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_session()


class ConversationTracker:
    """A conversation as pairs of user message and answer."""

    def __init__(self) -> None:
        self.memory: ConversationMemory = ConversationMemory()
        self.turn_count: int = 0

    def add_turn(self, user_msg: str, assistant_msg: str) -> None:
        pair = [Message("user", user_msg), Message("assistant", assistant_msg)]
        self.memory.session.add_many([encode(message) for message in pair])
        self.turn_count += 1

    def get_context(self, max_turns: int = 5) -> list[Message]:
        return self.memory.get_recent(max_turns * 2)


class SummarizingMemory(ConversationMemory):
    """A memory that summarizes its oldest messages: with `model`, from messages to text, or extractively."""

    def __init__(
        self, max_messages: int = 50, model: Callable[[list[Message]], str] | None = None, **given: Any
    ) -> None:
        super().__init__(max_messages, **given)
        self.max_messages: int = max_messages
        self.summaries: list[str] = []
        self._model = model

    def add_message(self, message: Message) -> None:
        super().add_message(message)
        if len(self.messages) >= self.max_messages:
            oldest = self.messages[: max(1, self.max_messages // 2)]
            self.summaries.append(self._summarize(oldest))
            # Deleted by id: messages added while the model was running stay.
            self.session.delete(*(message.message_id for message in oldest))

    def _summarize(self, messages: list[Message]) -> str:
        if self._model is not None:
            return self._model(messages)
        return extractive([encode(message) for message in messages])


class PersistentMemory:
    """A memory in a file of its own, written with every message."""

    def __init__(self, agent_name: str, base_path: str | PathLike[str]) -> None:
        """Raise InvalidValueError for a name that points outside the folder."""
        self.agent_name: str = check_segment(agent_name, "agent name")
        self.filepath: Path = Path(base_path) / f"{agent_name}_memory.json"
        self.memory: ConversationMemory = ConversationMemory()
        self._load()

    def _load(self) -> None:
        if self.filepath.exists():
            self.memory.load_from_file(self.filepath)

    def save(self) -> None:
        self.memory.save_to_file(self.filepath)

    def add_message(self, message: Message) -> None:
        self.memory.add_message(message)
        self.save()


def _session(memory: mnemic.Memory, scope: tuple[str, ...], max_messages: int | None, policy: str) -> mnemic.Session:
    # `max_messages` is a retention limit, so the rest is not archived.
    return memory.scope(SCOPE, *scope).session(
        "chat", max_messages=max_messages, overflow="drop", retention=_policy(policy)
    )


def _policy(policy: str) -> Retention:
    if policy not in get_args(Retention):
        known = ", ".join(get_args(Retention))
        raise mnemic.InvalidValueError(f"retention policy must be one of {known}: {shown(policy)}")
    return policy  # type: ignore[return-value]
