"""mem0 with `infer=False`, over FAISS or a local Qdrant, and the user as `user_id`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from langchain_core.embeddings import Embeddings  # type: ignore[import-not-found]
from mem0 import Memory  # type: ignore[import-not-found]

from .embedder import DIMENSIONS, StaticVectors
from .recall_set import Conversation, Turn
from .system import System


class Embedding(Embeddings):  # type: ignore[misc]
    """The common embedder, as LangChain, and so mem0, takes one."""

    def __init__(self) -> None:
        self.embedder = StaticVectors()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        return self.embedder.many(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of one text."""
        return self.embedder.one(text)


class Mem0(System):
    """mem0's memory; what else it ranks by (lemmas, entities, BM25) needs models that it downloads."""

    package = "mem0ai"
    provider: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, conversations: Sequence[Conversation]) -> None:
        store = {"collection_name": "turns", "path": str(folder / "vectors"), **self.options}
        self.memory = Memory.from_config(
            {
                "embedder": {"provider": "langchain", "config": {"model": Embedding(), "embedding_dims": DIMENSIONS}},
                "vector_store": {"provider": self.provider, "config": {**store, "embedding_model_dims": DIMENSIONS}},
                # It must be able to make a client, which `infer=False` never calls.
                "llm": {"provider": "openai", "config": {"api_key": "none"}},
                "history_db_path": str(folder / "history.db"),
            }
        )

    def add(self, user: str, turn: Turn) -> None:
        """Add one message as it is."""
        messages = [{"role": turn.role, "content": turn.said}]
        self.memory.add(messages, user_id=user, metadata={"turn": turn.id}, infer=False)

    def ask(self, user: str, question: str, k: int) -> list[str]:
        """Search the user's memories."""
        found = self.memory.search(question, top_k=k, filters={"user_id": user})
        return [memory["metadata"]["turn"] for memory in found["results"]]

    def close(self) -> None:
        """Close the history."""
        self.memory.close()


class Mem0Faiss(Mem0):
    """mem0 over a FAISS index, which it writes anew at each add."""

    provider = "faiss"


class Mem0Qdrant(Mem0):
    """mem0 over Qdrant in this process; without `on_disk` it would empty the folder when it opens it."""

    provider = "qdrant"
    options: ClassVar[dict[str, Any]] = {"on_disk": True}

    def close(self) -> None:
        """Close the history, and let go of the folder's lock."""
        super().close()
        self.memory.vector_store.client.close()
