"""Shared by SQLite and PostgreSQL: schema, statements, reads and migrations."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "SQLITE":  # the entry point of environments that were installed before
        return import_module("mnemic.backends.sqlite").BACKEND
    raise AttributeError(name)
