"""LangChain: a retriever over recall, messages in and out, and Mnemic's embedder for vector stores."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Any

from msgspec.json import encode

from ..checks import check_name, new_id
from ..errors import EmbedderError, InvalidValueError
from ..features.hits import Hit
from ..formats import to_openai
from ..memory_access import OWN, MemoryAccess
from ..messages import ROLES, Message, Role, ToolCall
from ..models.embedder import AUTO, Embedder, embedder_by_id, find_embedder
from ..scope import AsyncScope
from .foreign import keep, original, require

require("langchain-core", "1.7", "2", "langchain")

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, messages_from_dict
from langchain_core.messages.tool import default_tool_parser
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr

__all__ = ["MnemicEmbeddings", "MnemicRetriever", "from_langchain", "to_langchain"]

FRAMEWORK = "langchain"
"""The key in the metadata of messages."""
TYPES: dict[str, Role] = {"human": "user", "ai": "assistant", "system": "system"}


class MnemicRetriever(BaseRetriever):
    """Recall as a retriever: returns what a scope knows as documents, the best first.

    `memory` is a scope, a memory or a URL, which is opened with the `options` of `mnemic.open` and closed by `close`.
    `search_kwargs` are those of `recall`, such as `kinds`, `metadata` and `min_score`; `invoke` takes them, too.
    """

    memory: Any = OWN
    k: int = 5
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    _access: MemoryAccess = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._access = MemoryAccess(self.memory, options=self.options or None)  # type: ignore[arg-type]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return self._access.call_sync(lambda scope: self._recall(scope, query, kwargs))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await self._access.call(lambda scope: self._recall(scope, query, kwargs))

    async def _recall(self, scope: AsyncScope, query: str, kwargs: dict[str, Any]) -> list[Document]:
        hits = await scope.recall(query, **{"k": self.k, **self.search_kwargs, **kwargs})
        return [_document(hit) for hit in hits]

    def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        self._access.close_sync()


def _document(hit: Hit) -> Document:
    record = hit.record
    created = None if record.created is None else record.created.isoformat()
    about = {"scope": record.scope.path, "kind": record.kind, "id": record.key, "score": hit.score, "created": created}
    return Document(record.text or record.title or "", id=record.key, metadata={**record.meta, **about})


class MnemicEmbeddings(Embeddings):
    """An embedder of Mnemic for LangChain, such as the built-in one, which needs no server and no model file."""

    def __init__(self, embedder: Embedder | str = AUTO) -> None:
        """Take an embedder or its name, as `mnemic.open` does; raises EmbedderError if there is none."""
        found = embedder_by_id(None) if embedder == AUTO else find_embedder(embedder)
        if found is None:
            raise EmbedderError("MnemicEmbeddings needs an embedder, such as 'static'")
        self.embedder: Embedder = found

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [_usable(row) for row in self.embedder.embed(texts)] if texts else []

    def embed_query(self, text: str) -> list[float]:
        return _usable(self.embedder.embed_query(text))


def _usable(vector: Any) -> list[float]:
    """Return a vector as numbers; one of zeros, of a text without known words, cannot be stored by some databases."""
    found: list[float] = vector.tolist()
    return found if any(found) else [1.0] * len(found)


# ---------------------------------------------------------------- messages


def from_langchain(message: BaseMessage) -> Message:
    """Return a message of LangChain as one of Mnemic, for `to_langchain`.

    An artifact of a tool that is not JSON is replaced by its text.
    """
    data: dict[str, Any] = message.model_dump(mode="json", fallback=str)
    kind = message.type.removesuffix("MessageChunk").lower()
    said = data.get("role")
    role = TYPES.get(kind) or (said if kind == "chat" and said in ROLES else "user" if kind == "chat" else "tool")
    fields: dict[str, Any] = {"role": role, "content": data["content"] or None, "id": stored_id(message)}
    calls = []
    for call in (*data.get("tool_calls", ()), *data.get("invalid_tool_calls", ())):
        arguments = call["args"] if isinstance(call["args"], str) else encode(call["args"] or {}).decode()
        with suppress(InvalidValueError):  # one without an id or a name links nothing, and stays in the form
            calls.append(ToolCall(call["id"], call["name"], arguments))
    for name in ("name", "tool_call_id"):
        with suppress(InvalidValueError):
            if data.get(name) is not None:
                fields[name] = check_name(data[name], name)
    return keep(FRAMEWORK, Message(**fields, tool_calls=calls), {"type": message.type, "data": data})


def to_langchain(message: Message) -> list[BaseMessage]:
    """Return the message that was stored as this one; one or more for a message that came another way."""
    if (form := original(FRAMEWORK, message)) is not None:
        return messages_from_dict([form])
    found: list[BaseMessage] = []
    for chat in to_openai([message]):
        fields: dict[str, Any] = dict(chat)
        calls = fields.pop("tool_calls", None)
        if fields["role"] == "tool":
            fields.setdefault("tool_call_id", "")
        (made,) = convert_to_messages([{**fields, "content": fields.get("content") or ""}])
        if calls:
            valid, invalid = default_tool_parser(calls)
            made = AIMessage(made.content, name=made.name, tool_calls=valid, invalid_tool_calls=invalid)
        found.append(made)
    if found:
        found[0].id = message.id
    return found


def stored_id(message: BaseMessage) -> str:
    """Return the id under which a message is stored: its own, if that can be one."""
    if not message.id:
        return new_id()
    try:
        return check_name(message.id, "message id")
    except InvalidValueError:
        return sha256(message.id.encode("utf-8", "replace")).hexdigest()
