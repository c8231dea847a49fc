"""AWS Bedrock AgentCore Memory: a scope is a session of an actor; its state is in its events."""

from .store import BACKEND

__all__ = ["BACKEND"]
