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
from mnemic.testing import Target
from servers.stores import STORES

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

    return Backend(open=open, inline=inner.inline)


SCHEMES = ("encrypted+memory", "audited+memory", "layered+sqlite")


def register() -> None:
    """Register them."""
    for scheme in SCHEMES:
        registry.register(scheme, _backend(*scheme.split("+")))


def targets() -> list[Target]:
    """Return them as stores to test."""
    return [_target(scheme, STORES[scheme.partition("+")[2]]) for scheme in SCHEMES]


def _target(scheme: str, below: Target) -> Target:
    @contextmanager
    def empty(folder: Path) -> Iterator[str]:
        with below.empty(folder) as url:
            yield f"{scheme.partition('+')[0]}+{url}"

    return Target(scheme, empty, below.capabilities, below.inline)
