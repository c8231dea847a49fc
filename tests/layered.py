"""Stores under layers as back-ends of their own, so that the contract suite runs over the layers as well.

They are registered in this process alone; `conftest.py` in the root does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mnemic.layers.audit import AuditLayer
from mnemic.layers.encryption import EncryptLayer
from mnemic.store import registry
from mnemic.store.protocol import Store
from mnemic.store.registry import Backend, StoreURL
from mnemic.testing.capabilities import PINNED

KEY = bytes(range(32))


def sealed(store: Store) -> Store:
    return EncryptLayer(store, KEY)


def audited(store: Store) -> Store:
    return AuditLayer(store)


def both(store: Store) -> Store:
    return AuditLayer(EncryptLayer(store, KEY))


LAYERS: dict[str, Callable[[Store], Store]] = {"encrypted": sealed, "audited": audited, "layered": both}
"""What stands before the scheme of the store below."""


def _backend(prefix: str, below: str) -> Backend:
    _, inner = registry.find(f"{below}://")

    async def open(url: StoreURL) -> Store:
        return LAYERS[prefix](await inner.open(StoreURL.parse(url.text.removeprefix(f"{prefix}+"))))

    @contextmanager
    def trial(folder: Path) -> Iterator[str]:
        assert inner.trial is not None
        with inner.trial(folder) as url:
            yield f"{prefix}+{url}"

    return Backend(open=open, inline=inner.inline, trial=trial)


def register() -> None:
    """Let the registry know them."""
    for scheme in ("encrypted+memory", "audited+memory", "layered+sqlite"):
        prefix, below = scheme.split("+")
        registry.register(scheme, _backend(prefix, below))
        PINNED[scheme] = PINNED[below]
