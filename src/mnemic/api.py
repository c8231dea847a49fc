"""The public names, in one place; `import mnemic` loads it when the first of them is used."""

from .errors import (
    BudgetError,
    ClosedError,
    ConflictError,
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
from .features.catalogue import AsyncCatalogue, Entry, EntryInfo
from .features.context import Context
from .features.fading import Faded
from .features.graph import AsyncGraph, Link, Neighbourhood
from .features.longterm import Experience
from .features.sessions import AsyncSession, SessionInfo
from .features.summary import Summarise
from .formats import from_anthropic, from_openai, to_anthropic, to_openai
from .memory import AsyncMemory, AsyncSpace, open_async
from .models.combined import CombinedEmbedder
from .models.embedder import Embedder
from .models.local import FastEmbedEmbedder, SentenceTransformerEmbedder
from .models.remote import OpenAIEmbedder
from .models.static import StaticEmbedder
from .models.transformer import TransformerEmbedder
from .recall.meter import Metrics
from .records import AgentCall, Hit, Message, Record, Scope, ToolCall
from .sync import Catalogue, Graph, Memory, Session, Space, open
from .tokens import TokenCounter

__all__ = [
    "AgentCall",
    "AsyncCatalogue",
    "AsyncGraph",
    "AsyncMemory",
    "AsyncSession",
    "AsyncSpace",
    "BudgetError",
    "Catalogue",
    "ClosedError",
    "CombinedEmbedder",
    "ConflictError",
    "Context",
    "Embedder",
    "EmbedderError",
    "Entry",
    "EntryInfo",
    "EventLoopError",
    "Experience",
    "Faded",
    "FastEmbedEmbedder",
    "Graph",
    "Hit",
    "InvalidValueError",
    "LimitError",
    "Link",
    "Memory",
    "Message",
    "Metrics",
    "MissingExtraError",
    "MnemicError",
    "Neighbourhood",
    "NewerSchemaError",
    "NotFoundError",
    "OpenAIEmbedder",
    "Record",
    "Scope",
    "SentenceTransformerEmbedder",
    "Session",
    "SessionInfo",
    "Space",
    "StaticEmbedder",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StorePermissionError",
    "StoreUnavailableError",
    "Summarise",
    "TokenCounter",
    "TooLargeError",
    "ToolCall",
    "TransformerEmbedder",
    "UnknownSchemeError",
    "UnreadableStoreError",
    "from_anthropic",
    "from_openai",
    "open",
    "open_async",
    "to_anthropic",
    "to_openai",
]
