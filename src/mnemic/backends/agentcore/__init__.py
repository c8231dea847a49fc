"""AWS Bedrock AgentCore Memory: conversations as events of a session, memories as memory records."""

from .store import BACKEND

__all__ = ["BACKEND"]
