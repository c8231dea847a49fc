"""LangGraph's `SqliteStore` with an index, and the user as namespace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import sqlean  # type: ignore[import-not-found]

# The index is an SQLite extension, which many builds of Python's own `sqlite3` cannot load.
sys.modules["sqlite3"] = sqlean

from langgraph.store.base import PutOp  # type: ignore[import-not-found]  # noqa: E402
from langgraph.store.sqlite import SqliteStore  # type: ignore[import-not-found]  # noqa: E402

from .embedder import DIMENSIONS, StaticVectors  # noqa: E402
from .recall_set import Conversation, Turn  # noqa: E402
from .system import System  # noqa: E402


class LangGraph(System):
    """A store opened by `from_conn_string`.

    Each put says which field to embed: this version overlooks the `fields` of its index, and would embed
    the braces and quotes of the whole value as well.
    """

    package = "langgraph-checkpoint-sqlite"

    def __init__(self, folder: Path, conversations: Sequence[Conversation]) -> None:
        self.opened = ExitStack()
        index = {"dims": DIMENSIONS, "embed": StaticVectors().many}
        path = str(folder / "store.db")
        self.store = self.opened.enter_context(SqliteStore.from_conn_string(path, index=index))
        self.store.setup()

    def add(self, user: str, turn: Turn) -> None:
        """Put one item."""
        self.store.put((user,), turn.id, {"text": turn.said}, index=["text"])

    def add_many(self, user: str, turns: Sequence[Turn]) -> None:
        """Put items in one batch."""
        self.store.batch([PutOp((user,), turn.id, {"text": turn.said}, index=["text"]) for turn in turns])

    def ask(self, user: str, question: str, k: int) -> list[str]:
        """Search the user's namespace."""
        return [item.key for item in self.store.search((user,), query=question, limit=k)]

    def close(self) -> None:
        """Close the connection."""
        self.opened.close()
