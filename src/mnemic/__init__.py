"""Memory for AI agents: conversations, notes, long-term recall and a graph of facts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import (
        AgentCall,
        AsyncCatalogue,
        AsyncGraph,
        AsyncMemory,
        AsyncSession,
        AsyncSpace,
        BudgetError,
        Catalogue,
        ClosedError,
        ConflictError,
        Entry,
        EntryInfo,
        EventLoopError,
        Experience,
        Graph,
        Hit,
        InvalidValueError,
        LimitError,
        Limits,
        Link,
        Memory,
        Message,
        MissingExtraError,
        MnemicError,
        Neighbourhood,
        NewerSchemaError,
        NotFoundError,
        Record,
        Scope,
        Session,
        SessionInfo,
        Space,
        StoreBusyError,
        StoreError,
        StoreFullError,
        StorePermissionError,
        StoreUnavailableError,
        Summarise,
        TokenCounter,
        TooLargeError,
        ToolCall,
        UnknownSchemeError,
        UnreadableStoreError,
        from_anthropic,
        from_openai,
        open,
        open_async,
        to_anthropic,
        to_openai,
    )

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
    "ConflictError",
    "Entry",
    "EntryInfo",
    "EventLoopError",
    "Experience",
    "Graph",
    "Hit",
    "InvalidValueError",
    "LimitError",
    "Limits",
    "Link",
    "Memory",
    "Message",
    "MissingExtraError",
    "MnemicError",
    "Neighbourhood",
    "NewerSchemaError",
    "NotFoundError",
    "Record",
    "Scope",
    "Session",
    "SessionInfo",
    "Space",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StorePermissionError",
    "StoreUnavailableError",
    "Summarise",
    "TokenCounter",
    "TooLargeError",
    "ToolCall",
    "UnknownSchemeError",
    "UnreadableStoreError",
    "from_anthropic",
    "from_openai",
    "open",
    "open_async",
    "to_anthropic",
    "to_openai",
]


def __getattr__(name: str) -> object:
    """Load the public names when the first of them is used, so that the import itself costs little."""
    if name not in __all__:
        raise AttributeError(f"module 'mnemic' has no attribute {name!r}")
    from . import api

    value = globals()[name] = getattr(api, name)
    return value


def __dir__() -> list[str]:
    return __all__
