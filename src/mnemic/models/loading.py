"""Optional packages and heavy models: checked at once, loaded on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Generic, TypeVar

from ..errors import MissingExtraError

T = TypeVar("T")


def check_extra(extra: str, purpose: str, *modules: str) -> None:
    """Check that modules are installed, without importing them.

    Raises MissingExtraError, with the command that installs them.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"{purpose} needs {', '.join(missing)}: pip install 'mnemic[{extra}]'")


class Once(Generic[T]):
    """A thread-safe lazily computed value."""

    def __init__(self, make: Callable[[], T]) -> None:
        """Take the factory; if it fails, the next call retries."""
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[T] | None = None

    def get(self) -> T:
        """Return the value."""
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = (self._make(),)
        return self._made[0]
