"""How commands open stores: one that is not there is an error, unless the command writes."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import NotFoundError
from .options import StoreChoice

if TYPE_CHECKING:
    from ..records import ScopePath
    from ..sync import Memory, Scope

Result = TypeVar("Result")


@contextmanager
def open_store(store: StoreChoice, *, create: bool = False, **options: Any) -> Iterator[Memory]:
    """Open a memory; raises NotFoundError if there is no store yet, which with `create` is made."""
    from ..api import open
    from ..store import registry

    try:
        run(registry.find_existing(store.url))
    except NotFoundError:
        if not create:
            raise
        click.echo(f"new store: {registry.StoreURL.parse(store.url)}", err=True)
    with open(store.url, encryption_key=store.keys, **options) as memory:
        yield memory


def filled_scope(memory: Memory, path: ScopePath) -> Scope:
    """Return a scope; raises NotFoundError if nothing is stored there: its name may be mistyped.

    The root always exists.
    """
    scope = memory.scope(path)
    if path.path and not scope.erase(dry_run=True):
        raise NotFoundError(f"nothing is stored in the scope {path.path!r}")
    return scope


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine."""
    from ..event_loop import Portal

    driver = Portal()
    try:
        return driver.run(coroutine)
    finally:
        driver.close()
