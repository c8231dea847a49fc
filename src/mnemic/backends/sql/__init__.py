"""`sqlite:///file.db`: records in one file, safe with several processes."""

from .opening import SQLITE

__all__ = ["SQLITE"]
