"""Memory for AI agents: conversations, notes, long-term recall and a graph of facts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import *  # noqa: F403

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Load the public names on first use, so that the import itself is fast."""
        from importlib import import_module

        if name == "__version__":
            return import_module("importlib.metadata").version("mnemic")
        api = import_module("mnemic.api")
        if name != "__all__" and name not in api.__all__:
            raise AttributeError(f"module 'mnemic' has no attribute {name!r}")
        value = globals()[name] = getattr(api, name)
        return value

    def __dir__() -> list[str]:
        from importlib import import_module

        return list(import_module("mnemic.api").__all__)
