"""The diagnosis of a store: facts about it, what is wrong with it, and what repairs that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from ..records import StreamName, Value
from .protocol import Store

if TYPE_CHECKING:
    from .registry import StoreURL

__all__ = ["Diagnosis", "Readable", "StoreProblem", "diagnosed_by", "salvaged_by"]


class StoreProblem(Value, frozen=True):
    """Something that is wrong with a store.

    An error means that data is lost, may get lost, or cannot be used; a warning, that it works but not as well as it
    could. `code` is stable, for programs. `repair` is what to type or to do.
    """

    code: str
    text: str
    repair: str
    severity: Literal["error", "warning"] = "error"


class Diagnosis(Struct, kw_only=True):
    """The result of a back-end's `diagnose`.

    `store` is open for reading, for the checks that are the same for all back-ends; None if it cannot be opened
    without changing anything.
    """

    engine: str = ""
    """Name and version of the database."""
    schema: str | None = None
    """Version of the stored form."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Sizes in bytes, settings and the like, by name."""
    problems: list[StoreProblem] = field(default_factory=list)
    store: Store | None = None

    def error(self, code: str, text: str, repair: str) -> None:
        """Add an error."""
        self.problems.append(StoreProblem(code, text, repair))

    def warn(self, code: str, text: str, repair: str) -> None:
        """Add a warning."""
        self.problems.append(StoreProblem(code, text, repair, "warning"))

    def no_store_yet(self, url: str) -> None:
        """Warn that a server which answers has no store."""
        self.warn("no_store", f"there is no store at {url} yet", "check the URL; the first write creates the store")


class Readable(Struct, kw_only=True):
    """The result of a back-end's `salvage`: a store of what can still be read, and what is known of the rest."""

    store: Store | None = None
    saved: int = 0
    """Number of records in `store`."""
    lost: Counter[StreamName] = field(default_factory=Counter)
    """Number of records that cannot be read, by scope and kind."""
    uncounted: bool = False
    """Whether there may be more of these, which nothing counts any longer."""
    remarks: list[str] = field(default_factory=list)
    """Other damage."""


def diagnosed_by(package: str | None) -> Callable[[StoreURL], Awaitable[Diagnosis]]:
    """Return the function `diagnose` of a package's module `diagnosis`, which is loaded when it is called."""

    async def diagnose(url: StoreURL) -> Diagnosis:
        found: Diagnosis = await import_module(".diagnosis", package).diagnose(url)
        return found

    return diagnose


def salvaged_by(package: str | None) -> Callable[[StoreURL], Awaitable[Readable]]:
    """Return the function `salvage` of a package's module `salvage`, which is loaded when it is called."""

    async def salvage(url: StoreURL) -> Readable:
        found: Readable = await import_module(".salvage", package).salvage(url)
        return found

    return salvage
