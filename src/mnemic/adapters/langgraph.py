"""LangGraph: `MnemicStore` for long-term memory, and `MnemicSaver` for checkpoints."""

from .foreign import require

require("langgraph-checkpoint", "4.3", "5", "langgraph")

from .langgraph_saver import MnemicSaver
from .langgraph_store import MnemicStore

__all__ = ["MnemicSaver", "MnemicStore"]
