"""`sqlite:///file.db`: records in one file, safe with several processes."""

from .opening import BACKEND

__all__ = ["BACKEND"]
