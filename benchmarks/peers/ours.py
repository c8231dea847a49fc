"""Mnemic: a session for each session, and recall over the scope that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import mnemic
from mnemic import Message
from mnemic.messages import Role

from .recall_set import Conversation, Turn
from .system import System


class Mnemic(System):
    """One SQLite file, as `mnemic.open` makes it."""

    package = "mnemic"

    def __init__(self, folder: Path, conversations: Sequence[Conversation]) -> None:
        self.memory = mnemic.open(f"sqlite:///{folder / 'memory.db'}")

    def add(self, user: str, turn: Turn) -> None:
        """Append one message to its session."""
        time = datetime.fromisoformat(turn.time).replace(tzinfo=UTC)
        role = cast("Role", turn.role)
        message = Message(role, turn.text, id=turn.id, name=turn.name, timestamp=time)
        self.memory.scope(user).session(turn.session).add(message)

    def settle(self) -> None:
        """Embed the messages, which would otherwise be done when they are first searched."""
        self.memory.warm()

    def ask(self, user: str, question: str, k: int) -> list[str]:
        """Recall messages from all of the user's sessions."""
        hits = self.memory.scope(user).recall(question, k=k, kinds="message")
        return [hit.record.key for hit in hits]

    def close(self) -> None:
        """Close the file."""
        self.memory.close()
