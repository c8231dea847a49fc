"""LlamaIndex's `VectorMemoryBlock` over a persistent Chroma collection, and the user as session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromadb  # type: ignore[import-not-found]
from chromadb.config import Settings  # type: ignore[import-not-found]
from llama_index.core.base.embeddings.base import BaseEmbedding  # type: ignore[import-not-found]
from llama_index.core.llms import ChatMessage  # type: ignore[import-not-found]
from llama_index.core.memory import VectorMemoryBlock  # type: ignore[import-not-found]
from llama_index.vector_stores.chroma import ChromaVectorStore  # type: ignore[import-not-found]

from .embedder import StaticVectors
from .recall_set import Conversation, Turn
from .system import System

EMBEDDER = StaticVectors()
MESSAGE = re.compile(r"<message role='\w+'>(.*?)</message>", re.DOTALL)


class Embedding(BaseEmbedding):  # type: ignore[misc]
    """The common embedder, as LlamaIndex takes one."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return EMBEDDER.one(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return EMBEDDER.one(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return EMBEDDER.one(query)


class LlamaIndex(System):
    """The block that `Memory` hands old messages to, given each message at once.

    Through `Memory` it would get them only as they fall out of the token limit, and many as one node;
    one message a node is the finest that it can find. It returns text, which names its turn here.
    """

    package = "llama-index-core"

    def __init__(self, folder: Path, conversations: Sequence[Conversation]) -> None:
        self.client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
        collection = self.client.get_or_create_collection("memory", embedding_function=None)
        self.vectors = ChromaVectorStore(chroma_collection=collection)
        self.blocks: dict[tuple[str, int], Any] = {}
        self.loop = asyncio.Runner()
        self.turns = {(one.id, turn.said): turn.id for one in conversations for turn in reversed(one.turns)}

    def block(self, user: str, k: int = 2) -> Any:
        """Return the block of one user: a block filters by the first session that it was asked for."""
        if (user, k) not in self.blocks:
            self.blocks[user, k] = VectorMemoryBlock(
                vector_store=self.vectors, embed_model=Embedding(), similarity_top_k=k
            )
        return self.blocks[user, k]

    def add(self, user: str, turn: Turn) -> None:
        """Put one message into the block."""
        message = ChatMessage(role=turn.role, content=turn.said)
        self.loop.run(self.block(user).aput([message], session_id=user))

    def ask(self, user: str, question: str, k: int) -> list[str]:
        """Get what the block would add to a prompt that ends with the question."""
        message = ChatMessage(role="user", content=question)
        text = self.loop.run(self.block(user, k).aget([message], session_id=user))
        return [self.turns[user, said] for said in MESSAGE.findall(text)]

    def close(self) -> None:
        """Close the event loop and the client."""
        self.loop.close()
        self.client.close()
