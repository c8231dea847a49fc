"""The option `on_failure=empty`: while the server cannot be used, reads find nothing and writes are dropped."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from ...errors import StoreError, StorePermissionError
from ...records import ENCRYPTION_KIND, Match, Record, Ref, Stream
from ...store.protocol import Capability, Page
from ...store.query import Outcome, Put, Scan, Search, StreamScan, Write, place_of
from ...telemetry.calls import count
from .store import HttpStore

log: logging.Logger = logging.getLogger("mnemic.store")

Result = TypeVar("Result")


class EmptyOnFailure(HttpStore):
    """Answers as an empty store does while the server cannot be used, so that an agent goes on without memory.

    A key that is wrong, and a value that is not valid, are errors as ever.
    """

    _dropped: int | None = None
    """How many writes were dropped since the server was last used; None while it can be used."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.DURABLE}

    async def write(self, write: Write) -> list[Outcome]:
        if any(place_of(op)[1] == ENCRYPTION_KIND for op in write.ops):
            return await super().write(write)  # a key that was not stored would be lost with all that it encrypts
        moment = self.clock()
        made = [
            Outcome(created=op.record.created or moment, updated=moment, key=op.record.key)
            if isinstance(op, Put)
            else Outcome()
            for op in write.ops
        ]
        return await self._or(made, super().write(write), dropped=1)

    async def read(self, refs: Sequence[Ref]) -> list[Record | None]:
        return await self._or([None] * len(refs), super().read(refs))

    async def scan(self, scan: Scan) -> Page[Record]:
        return await self._or(Page(()), super().scan(scan))

    async def streams(self, scan: StreamScan) -> Page[Stream]:
        return await self._or(Page(()), super().streams(scan))

    async def search(self, search: Search) -> list[Match]:
        return await self._or([], super().search(search))

    async def scrub(self) -> None:
        await self._or(None, super().scrub())

    async def _or(self, empty: Result, call: Awaitable[Result], dropped: int = 0) -> Result:
        """Return the result of a call, or what stands for it."""
        try:
            result = await call
        except StorePermissionError:
            raise
        except StoreError as error:
            if self._dropped is None:
                self._dropped = 0
                name = type(error).__name__
                log.warning(
                    "%s cannot be used (%s): reads find nothing, and writes are dropped", self._client.url, name,
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
