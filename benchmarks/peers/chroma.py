"""Chroma: one persistent collection, with the user as metadata to filter by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import chromadb  # type: ignore[import-not-found]
from chromadb.config import Settings  # type: ignore[import-not-found]

from .embedder import StaticVectors
from .recall_set import Conversation, Turn
from .system import System


class Chroma(System):
    """`PersistentClient`; its default distance orders vectors of length one as the cosine does."""

    package = "chromadb"

    def __init__(self, folder: Path, conversations: Sequence[Conversation]) -> None:
        self.client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
        self.collection = self.client.get_or_create_collection("turns", embedding_function=None)
        self.embedder = StaticVectors()

    def add(self, user: str, turn: Turn) -> None:
        """Add one document."""
        self.add_many(user, [turn])

    def add_many(self, user: str, turns: Sequence[Turn]) -> None:
        """Add documents in one call."""
        texts = [turn.said for turn in turns]
        self.collection.add(
            ids=[f"{user}/{turn.id}" for turn in turns],
            documents=texts,
            embeddings=self.embedder.many(texts),
            metadatas=[{"user": user, "turn": turn.id} for turn in turns],
        )

    def ask(self, user: str, question: str, k: int) -> list[str]:
        """Query the user's documents."""
        found = self.collection.query(query_embeddings=[self.embedder.one(question)], n_results=k, where={"user": user})
        return [metadata["turn"] for metadata in found["metadatas"][0]]

    def close(self) -> None:
        """Close the client."""
        self.client.close()
