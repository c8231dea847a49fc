"""Memories of the dialects, opened once per process."""

from __future__ import annotations

from threading import Lock
from typing import Unpack

import mnemic

from ..memory import OpenOptions

_opened: list[tuple[str, OpenOptions, mnemic.Memory]] = []
_opening = Lock()


def shared(url: str, **options: Unpack[OpenOptions]) -> mnemic.Memory:
    """Return the memory at a URL with these options, opened once per process."""
    with _opening:
        for known, before, memory in _opened:
            if known == url and before == options:
                return memory
        memory = mnemic.open(url, **options)
        _opened.append((url, options, memory))
        return memory
