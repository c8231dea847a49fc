"""The public names, in one place; `import mnemic` loads it when the first of them is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .copying import Copied, copy_async
from .errors import (
    AuditError,
    BudgetError,
    ClosedError,
    ConflictError,
    DecryptionError,
    EmbedderError,
    EventLoopError,
    InvalidValueError,
    LimitError,
    MissingExtraError,
    MnemicError,
    NewerSchemaError,
    NotFoundError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnknownSchemeError,
    UnreadableStoreError,
)
from .features.cleanup import Cleaned
from .features.context import Context
from .features.facts import AsyncFacts, Fact, Neighborhood
from .features.fading import Faded
from .features.jsonl import Exported, Imported
from .features.memories import MemoryItem
from .features.notes import AsyncNotes, Note, NoteInfo, NoteLimits
from .features.overview import Stats
from .features.sessions import AsyncSession, SessionInfo
from .features.settings import SessionSettings
from .features.summary import Summarize
from .formats import from_anthropic, from_openai, to_anthropic, to_openai
from .images import ImageInfo
from .layers.acting import Audit, AuditEntry
from .memory import AsyncMemory, AsyncScope
from .models.embedder import Embedder
from .opening import open_async
from .recall.meter import Metrics
from .records import AgentCall, Hit, Message, Record, Ref, ScopePath, ToolCall
from .sync import Facts, Memory, Notes, Scope, Session, copy, open
from .tokens import TokenCounter, token_counter

if TYPE_CHECKING:
    from .models.combined import CombinedEmbedder
    from .models.local import FastEmbedEmbedder, SentenceTransformerEmbedder
    from .models.remote import OpenAIEmbedder
    from .models.static import StaticEmbedder
    from .models.transformer import TransformerEmbedder

_LATER = {
    "CombinedEmbedder": "combined",
    "FastEmbedEmbedder": "local",
    "OpenAIEmbedder": "remote",
    "SentenceTransformerEmbedder": "local",
    "StaticEmbedder": "static",
    "TransformerEmbedder": "transformer",
}
"""Embedders, which are loaded when they are used, since most programs use none by its name."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".models.{_LATER[name]}", __package__), name)


__all__ = [
    "AgentCall",
    "AsyncFacts",
    "AsyncMemory",
    "AsyncNotes",
    "AsyncScope",
    "AsyncSession",
    "Audit",
    "AuditEntry",
    "AuditError",
    "BudgetError",
    "Cleaned",
    "ClosedError",
    "CombinedEmbedder",
    "ConflictError",
    "Context",
    "Copied",
    "DecryptionError",
    "Embedder",
    "EmbedderError",
    "EventLoopError",
    "Exported",
    "Fact",
    "Facts",
    "Faded",
    "FastEmbedEmbedder",
    "Hit",
    "ImageInfo",
    "Imported",
    "InvalidValueError",
    "LimitError",
    "Memory",
    "MemoryItem",
    "Message",
    "Metrics",
    "MissingExtraError",
    "MnemicError",
    "Neighborhood",
    "NewerSchemaError",
    "NotFoundError",
    "Note",
    "NoteInfo",
    "NoteLimits",
    "Notes",
    "OpenAIEmbedder",
    "Record",
    "Ref",
    "Scope",
    "ScopePath",
    "SentenceTransformerEmbedder",
    "Session",
    "SessionInfo",
    "SessionSettings",
    "StaticEmbedder",
    "Stats",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StorePermissionError",
    "StoreUnavailableError",
    "Summarize",
    "TokenCounter",
    "TooLargeError",
    "ToolCall",
    "TransformerEmbedder",
    "UnknownSchemeError",
    "UnreadableStoreError",
    "copy",
    "copy_async",
    "from_anthropic",
    "from_openai",
    "open",
    "open_async",
    "to_anthropic",
    "to_openai",
    "token_counter",
]
