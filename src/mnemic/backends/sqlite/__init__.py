"""`sqlite:///file.db`: records in one file, safe with several processes."""

from .store import BACKEND

__all__ = ["BACKEND"]
