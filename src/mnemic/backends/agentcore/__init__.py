"""AWS Bedrock AgentCore Memory: a scope is a session of an actor, and holds what its events say."""

from .store import BACKEND

__all__ = ["BACKEND"]
