"""Stores in a table of DynamoDB."""

from .opening import BACKEND, create

__all__ = ["BACKEND", "create"]
