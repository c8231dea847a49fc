"""Stores in a DynamoDB table."""

from .opening import BACKEND, create

__all__ = ["BACKEND", "create"]
