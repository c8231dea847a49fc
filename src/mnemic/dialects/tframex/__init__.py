"""The memory stores of TFrameX, its messages, its agent and its app."""

from .agents import LLMAgent, TFrameXApp
from .patterns import (
    AuditMemoryStore,
    AutoCleanupMemory,
    EncryptedMemoryStore,
    FilterableMemoryStore,
    SafeMemoryStore,
    ScopedMemoryStore,
    SemanticMemoryStore,
    SlidingWindowMemory,
    SummaryMemory,
    TokenLimitedMemoryStore,
)
from .stores import (
    BaseMemoryStore,
    InMemoryMemoryStore,
    Message,
    PostgresMemoryStore,
    RedisMemoryStore,
    S3MemoryStore,
    UrlMemoryStore,
)

__all__ = [
    "AuditMemoryStore",
    "AutoCleanupMemory",
    "BaseMemoryStore",
    "EncryptedMemoryStore",
    "FilterableMemoryStore",
    "InMemoryMemoryStore",
    "LLMAgent",
    "Message",
    "PostgresMemoryStore",
    "RedisMemoryStore",
    "S3MemoryStore",
    "SafeMemoryStore",
    "ScopedMemoryStore",
    "SemanticMemoryStore",
    "SlidingWindowMemory",
    "SummaryMemory",
    "TFrameXApp",
    "TokenLimitedMemoryStore",
    "UrlMemoryStore",
]
