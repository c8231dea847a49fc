"""The conversation memory of MARSYS: `ConversationMemory`, `MemoryManager`, and messages."""

from .memories import ConversationMemory, ConversationTracker, MemoryManager, PersistentMemory, SummarizingMemory
from .messages import (
    AgentCallMsg,
    AnthropicMessages,
    Message,
    MessageContent,
    ToolCallMsg,
    format_for_anthropic,
    format_for_openai,
)

__all__ = [
    "AgentCallMsg",
    "AnthropicMessages",
    "ConversationMemory",
    "ConversationTracker",
    "MemoryManager",
    "Message",
    "MessageContent",
    "PersistentMemory",
    "SummarizingMemory",
    "ToolCallMsg",
    "format_for_anthropic",
    "format_for_openai",
]
