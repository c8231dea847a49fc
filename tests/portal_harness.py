"""A store under test that any thread may use, through an event loop in the background."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from mnemic.event_loop import Portal
from mnemic.testing.harness import Harness, Result


class PortalHarness(Harness):
    """Runs the coroutines of stores as the sync API does for back-ends on a server."""

    def __init__(self, url: str) -> None:
        self._portal = Portal()
        super().__init__(url, on_loop=True)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._portal.close()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result."""
        return self._portal.run(coroutine)
