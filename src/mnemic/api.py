"""All public names; `import mnemic` loads this module when the first of them is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .checks import JSON
from .copying import Copied, copy_async
from .errors import (
    AccessDeniedError,
    AuditError,
    BudgetError,
    ClosedError,
    ConflictError,
    DecryptionError,
    EmbedderError,
    EventLoopError,
    HeldError,
    InvalidValueError,
    LimitError,
    MissingExtraError,
    MnemicError,
    NewerSchemaError,
    NotFoundError,
    SignatureError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnknownSchemeError,
    UnreadableStoreError,
)
from .features.certificate import (
    ErasedArchive,
    ErasedDerivation,
    ErasedStream,
    ErasureCertificate,
    InterruptedErasure,
    Verification,
    verify_certificate,
)
from .features.context import Context
from .features.erasure_derived import Rebuild
from .features.export import Exported, FileOrPath, SubjectExport
from .features.fact_items import Fact
from .features.facts import AsyncFacts, FactGraph, Neighborhood
from .features.forgetting import Forgotten
from .features.hits import Hit, Item, Reference
from .features.listing import AsyncSessions, SessionInfo, Stats
from .features.memories import AsyncMemories
from .features.memory_items import Duplicates, Faded, MemoryItem
from .features.notes import AsyncNotes, Note, NoteInfo, NoteSettings
from .features.record_import import Imported, Skipped
from .features.redaction_scan import FoundCount, Scanned
from .features.session_settings import Overflow, Retention, SessionSettings
from .features.sessions import AsyncSession
from .features.state import AsyncState, StateItem
from .features.summary import Summarize
from .features.versions import Version
from .formats import AnthropicMessage, OpenAIMessage, from_anthropic, from_openai, to_anthropic, to_openai
from .images import ImageInfo
from .layers.audit_entry import AuditEntry, AuditPage
from .layers.audit_settings import Acting, Audit, AuditFlags, Auditing
from .layers.audit_verify import AuditProblem, AuditVerification
from .layers.hold import Hold
from .layers.master_key import Encryption, EncryptionKey, EncryptionKeys, MasterKey
from .layers.restricted import Right
from .memory import AsyncMemory, Opening, OpenOptions, Tokens, open_async
from .messages import AgentCall, Content, Message, MessageLike, Role, ToolCall
from .models.embedder import CombinedEmbedder, Embedder
from .recall.metrics import Metrics, MetricsPeriod
from .records import Record, Ref, ScopePath
from .redaction.config import Redacting, Redaction, Vault
from .redaction.recognizer import Finding, RecognizerLike
from .redaction.redactor import RedactionAction, RedactionEngine
from .scope import AsyncScope
from .signing import SigningKey, SigningKeys, verify_signature
from .store.protocol import Indexing, LangChainFilter, LangChainIndex, Store, Unreached, VectorStore
from .sync import Facts, Memories, Memory, Notes, Scope, Session, Sessions, State, copy, open
from .tokens import TokenCounter, token_counter

if TYPE_CHECKING:
    from .models.embedder import Vectors
    from .models.local import FastEmbedEmbedder, SentenceTransformerEmbedder, TransformerEmbedder
    from .models.openai import OpenAIEmbedder
    from .models.static import StaticEmbedder
    from .redaction.presidio import PresidioEngine

_LATER = {
    "FastEmbedEmbedder": "models.local",
    "OpenAIEmbedder": "models.openai",
    "PresidioEngine": "redaction.presidio",
    "SentenceTransformerEmbedder": "models.local",
    "StaticEmbedder": "models.static",
    "TransformerEmbedder": "models.local",
    "Vectors": "models.embedder",
}
"""Embedders and engines, loaded on first use, since most programs name none."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __package__), name)


__all__ = [
    "JSON", "AccessDeniedError", "Acting", "AgentCall", "AnthropicMessage", "AsyncFacts", "AsyncMemories",
    "AsyncMemory", "AsyncNotes", "AsyncScope", "AsyncSession", "AsyncSessions", "AsyncState", "Audit", "AuditEntry",
    "AuditError", "AuditFlags", "AuditPage", "AuditProblem", "AuditVerification", "Auditing", "BudgetError",
    "ClosedError", "CombinedEmbedder", "ConflictError", "Content", "Context", "Copied", "DecryptionError",
    "Duplicates", "Embedder", "EmbedderError", "Encryption", "EncryptionKey", "EncryptionKeys", "ErasedArchive",
    "ErasedDerivation", "ErasedStream", "ErasureCertificate", "EventLoopError", "Exported", "Fact", "FactGraph",
    "Facts", "Faded", "FastEmbedEmbedder", "FileOrPath", "Finding", "Forgotten", "FoundCount", "HeldError", "Hit",
    "Hold", "ImageInfo", "Imported", "Indexing", "InterruptedErasure", "InvalidValueError", "Item",
    "LangChainFilter", "LangChainIndex", "LimitError", "MasterKey", "Memories", "Memory", "MemoryItem", "Message",
    "MessageLike", "Metrics", "MetricsPeriod", "MissingExtraError", "MnemicError", "Neighborhood",
    "NewerSchemaError", "NotFoundError", "Note", "NoteInfo", "NoteSettings", "Notes", "OpenAIEmbedder",
    "OpenAIMessage", "OpenOptions", "Opening", "Overflow", "PresidioEngine", "Rebuild", "RecognizerLike", "Record",
    "Redacting", "Redaction", "RedactionAction", "RedactionEngine", "Ref", "Reference", "Retention", "Right",
    "Role", "Scanned", "Scope", "ScopePath", "SentenceTransformerEmbedder", "Session", "SessionInfo",
    "SessionSettings", "Sessions", "SignatureError", "SigningKey", "SigningKeys", "Skipped", "State", "StateItem",
    "StaticEmbedder", "Stats", "Store", "StoreBusyError", "StoreError", "StoreFullError", "StorePermissionError",
    "StoreUnavailableError", "SubjectExport", "Summarize", "TokenCounter", "Tokens", "TooLargeError", "ToolCall",
    "TransformerEmbedder", "UnknownSchemeError", "Unreached", "UnreadableStoreError", "Vault", "VectorStore",
    "Vectors", "Verification", "Version", "copy", "copy_async", "from_anthropic", "from_openai", "open",
    "open_async", "to_anthropic", "to_openai", "token_counter", "verify_certificate", "verify_signature",
]  # fmt: skip
