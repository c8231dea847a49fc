"""The option `on_failure=empty`: while the server cannot be used, an agent's turn goes on without memory."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...errors import StoreError, StorePermissionError
from ...records import ENCRYPTION_KIND, Match, Record, Ref, Stream
from ...store.availability import is_optional
from ...store.protocol import Capability, Page
from ...store.query import CountUse, Outcome, Put, Scan, Search, StreamScan, Write, place_of
from ...store.wire import ServedStore
from ...telemetry.calls import Call, count, current, keep_current
from .client import HttpClient
from .store import HttpStore

READS = frozenset(
    {
        "facts.ask", "facts.neighbors", "facts.path", "memories.list", "scope.context", "scope.recall",
        "session.archived", "session.messages", "session.recent", "session.settings", "session.summary",
        "session.transcript", "session.window", "sessions.list",
    }
)  # fmt: skip
"""Calls that find nothing."""
ADDS = frozenset(
    {
        "facts.add", "memories.add", "memories.add_many", "scope.remember", "scope.remember_many", "session.add",
        "session.add_many",
    }
)  # fmt: skip
"""Calls that add nothing, unless they replace a memory of the same id or refuse a duplicate."""

log: logging.Logger = logging.getLogger("mnemic.store")

Result = TypeVar("Result")


class EmptyOnFailure(HttpStore):
    """Answers the calls of an agent's turn as an empty store does while the server cannot be used.

    Every other call raises the error: its caller would take nothing found for a fact, or what was not done for done.
    So do a key that is wrong, and a value that is not valid, in every call.
    """

    _dropped: int | None = None
    """How many writes were dropped since the server was last used; None while it can be used."""

    def __init__(self, client: HttpClient, served: ServedStore | None) -> None:
        super().__init__(client, served)
        keep_current()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.DURABLE}

    async def write(self, write: Write) -> list[Outcome]:
        moment = self.clock()
        made = [
            Outcome(created=op.record.created or moment, updated=moment, key=op.record.key)
            if isinstance(op, Put)
            else Outcome()
            for op in write.ops
        ]
        uses = all(isinstance(op, CountUse) for op in write.ops)
        # A key that was not stored would be lost with all that it encrypts.
        lasting = any(place_of(op)[1] == ENCRYPTION_KIND for op in write.ops)
        send = super().write

        async def work() -> list[Outcome]:
            if (call := current()) is not None and call.failure is not None:
                raise call.failure  # what it would write depends on what it could not read
            return await send(write)

        return await self._or(made, work(), lambda call: not lasting and (uses or _adds(call)), dropped=1)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return await self._or([None] * len(refs), super().read(refs), _goes_on)

    async def scan(self, scan: Scan) -> Page[Record]:
        return await self._or(Page(()), super().scan(scan), _goes_on)

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        return await self._or(Page(()), super().streams(scan), _goes_on)

    async def search(self, search: Search) -> list[Match]:
        return await self._or([], super().search(search), _goes_on)

    async def _or(
        self, empty: Result, work: Awaitable[Result], allowed: Callable[[Call | None], bool], dropped: int = 0
    ) -> Result:
        """Return the result of some work, or what stands for it if the current call is allowed to go on."""
        try:
            result = await work
        except StorePermissionError:
            raise
        except StoreError as error:
            call = current()
            if not allowed(call):
                raise
            if call is not None:
                call.failure = error
            if self._dropped is None:
                self._dropped = 0
                name = type(error).__name__
                log.warning(
                    "%s cannot be used (%s): agents find nothing, and what they add is dropped", self._client.url, name,
                    extra={"store": self._client.url, "error": name},
                )  # fmt: skip
            self._dropped += dropped
            if dropped:
                count("dropped_writes", type(error).__name__)
            return empty
        if self._dropped is not None:
            log.warning("%s can be used again; %d writes were dropped", self._client.url, self._dropped)
            self._dropped = None
        return result


def _goes_on(call: Call | None) -> bool:
    """Return whether a call can do without what it reads."""
    return is_optional() or _adds(call) or (call is not None and call.name in READS)


def _adds(call: Call | None) -> bool:
    """Return whether a call only adds something new, without a condition."""
    if call is None or call.name not in ADDS:
        return False
    given = call.arguments()
    return given.get("id") is None and given.get("duplicates") != "refuse"
