"""What is measured: a memory that keeps turns in a folder, and finds them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from .recall_set import Conversation, Turn


class System(ABC):
    """One memory, set up as its documentation shows, with durable storage and nothing sent anywhere."""

    package: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: Path, conversations: Sequence[Conversation]) -> None:
        """Open the memory in a folder; the conversations are for those that find texts, not ids."""

    @abstractmethod
    def add(self, user: str, turn: Turn) -> None:
        """Keep one turn; it is on disk when this returns."""

    def add_many(self, user: str, turns: Sequence[Turn]) -> None:
        """Keep turns, at once where the library can."""
        for turn in turns:
            self.add(user, turn)

    def settle(self) -> None:
        """Do what was put off by the adds, such as embedding; it counts as part of them."""
        return

    @abstractmethod
    def ask(self, user: str, question: str, k: int) -> list[str]:
        """Return the ids of the `k` turns of this user that match best, best first."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the folder."""
