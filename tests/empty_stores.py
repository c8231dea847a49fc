"""Empty stores on real servers, by the name of their trial, for tests that run over several back-ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mnemic.store import registry

REMOTE = ["valkey", "postgresql", "dynamodb", "s3"]
"""One trial of each back-end across a network that all of the API can use."""


@contextmanager
def empty_store(name: str, folder: Path) -> Iterator[str]:
    """Lend the URL of an empty store: of `memory`, `sqlite`, or a trial of `mnemic.trials`."""
    if name == "memory":
        yield "memory://"
    elif name == "sqlite":
        yield f"sqlite:///{folder / 'empty.db'}?synchronous=normal"
    else:
        with registry.trials()[name].open(folder) as url:
            yield url
