"""Calls to an AgentCore memory: all pages, with errors mapped."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

from botocore import exceptions as boto

from ...errors import InvalidValueError, StoreBusyError, TooLargeError, UnreadableStoreError
from ...event_loop import ForkAware, notify_on_fork
from ...records import now
from .. import aws
from .codec import ActorSession, namespace_of

OURS = "mnemic"
"""Metadata key of Mnemic's events, to skip those of other applications."""
PAGE = 100
"""Maximum number of items per request and answer."""
AT_ONCE = 16
"""Number of concurrent requests."""
LARGE = 1_000_000
"""Size from which a request is sent in chunks."""

Item = dict[str, Any]

_CODES: dict[str, aws.Meaning] = {
    **dict.fromkeys(("InvalidInputException", "ValidationException"), (InvalidValueError, "AgentCore rejects a value")),
    **dict.fromkeys(
        ("413", "RequestEntityTooLargeException"), (TooLargeError, "the event is larger than AgentCore allows")
    ),
    "RetryableConflictException": (StoreBusyError, "AgentCore is busy with the same session; try again"),
}


class MemoryClient(ForkAware):
    def __init__(self, requests: aws.Requests, memory: str) -> None:
        self.url: str = str(requests.url)
        self.requests = requests
        self._memory = memory
        self.after_fork()
        notify_on_fork(self)

    def after_fork(self) -> None:
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        await self.requests.close()

    async def check(self) -> None:
        """Raise a Mnemic error if the memory cannot be read."""
        await self._call("list_actors", maxResults=1)

    async def create_event(self, place: ActorSession, payload: list[Item]) -> str:
        """Create an event and return its id; a retried request creates it once."""
        answer = await self._call(
            "create_event",
            **place.arguments,
            eventTimestamp=now(),
            payload=payload,
            metadata={OURS: {"stringValue": "2"}},
            clientToken=uuid4().hex,
        )
        return str(answer["event"]["eventId"])

    async def events(self, place: ActorSession, first: int = PAGE) -> AsyncGenerator[list[Item], None]:
        """Yield Mnemic's events of a session, newest first, page by page; the first page has `first` events."""
        ours = {"eventMetadata": [{"left": {"metadataKey": OURS}, "operator": "EXISTS"}]}
        arguments = {**place.arguments, "includePayloads": True, "filter": ours}
        async for page in self._pages("list_events", "events", first, **arguments):
            yield page

    async def delete_event(self, place: ActorSession, id: str) -> None:
        await self._call("delete_event", or_none=True, **place.arguments, eventId=id)

    async def places(self) -> list[ActorSession]:

        async def of(actor: str) -> list[ActorSession]:
            with_events = {"eventFilter": "HAS_EVENTS"}
            pages = self._pages("list_sessions", "sessionSummaries", actorId=actor, filter=with_events)
            return [ActorSession(actor, one["sessionId"]) async for page in pages for one in page]

        actors = [one["actorId"] async for page in self._pages("list_actors", "actorSummaries") for one in page]
        return [place for places in await asyncio.gather(*map(of, actors)) for place in places]

    async def records(self, path: str) -> list[Item]:
        pages = self._pages("list_memory_records", "memoryRecordSummaries", namespacePath=namespace_of(path))
        return [one async for page in pages for one in page]

    async def create_records(self, records: Sequence[Item]) -> list[str]:
        """Create memory records and return their ids; if one is rejected, none is kept."""
        made: dict[str, str] = {}
        for start in range(0, len(records), PAGE):
            numbered = list(enumerate(records))[start : start + PAGE]
            some = [{"requestIdentifier": str(n), "timestamp": now(), **record} for n, record in numbered]
            answer = await self._call("batch_create_memory_records", records=some, clientToken=uuid4().hex)
            made |= {one["requestIdentifier"]: one["memoryRecordId"] for one in answer["successfulRecords"]}
            if answer["failedRecords"]:
                await self.delete_records(list(made.values()))
                raise InvalidValueError(f"{self.url}: AgentCore rejects a memory record: {answer['failedRecords'][0]}")
        return [made[str(n)] for n in range(len(records))]

    async def update_records(self, records: Sequence[tuple[str, Item]]) -> set[str]:
        """Change memory records; return the ids of those that do not exist."""
        changes = [{"memoryRecordId": id, "timestamp": now(), **record} for id, record in records]
        return await self._batches("batch_update_memory_records", changes)

    async def delete_records(self, ids: Sequence[str]) -> set[str]:
        """Delete memory records; return the ids of those that do not exist."""
        return await self._batches("batch_delete_memory_records", [{"memoryRecordId": id} for id in ids])

    async def _batches(self, operation: str, items: list[Item]) -> set[str]:
        failed: set[str] = set()
        for start in range(0, len(items), PAGE):
            answer = await self._call(operation, records=items[start : start + PAGE])
            failed.update(one["memoryRecordId"] for one in answer["failedRecords"])
        return failed

    async def _pages(
        self, operation: str, field: str, first: int = PAGE, **arguments: Any
    ) -> AsyncGenerator[list[Item], None]:
        more: Item = {"maxResults": first}
        while True:
            answer = await self._call(operation, or_none=True, **arguments, **more)
            if answer is None:
                await self.check()  # if the memory exists, it is the session that does not
                return
            yield answer[field]
            if not answer.get("nextToken"):
                return
            more = {"maxResults": PAGE, "nextToken": answer["nextToken"]}

    async def _call(self, operation: str, *, or_none: bool = False, **arguments: Any) -> Any:
        """Return an answer; with `or_none`, None if what is asked for does not exist."""
        async with self._gate:
            try:
                return await self.requests.send(operation, memoryId=self._memory, **arguments)
            except boto.ClientError as error:
                code = aws.code_of(error)
                if code == "ResourceNotFoundException":
                    if or_none:
                        return None
                    hint = "make one with create_memory of bedrock-agentcore-control, or name its region"
                    raise UnreadableStoreError(
                        f"{self.url}: there is no such memory in this region; {hint} ({error})"
                    ) from error
                raise aws.explain(error, self.url, _CODES.get(code)) from error


def as_stream(request: Any, **_: Any) -> None:
    """Send a large request in chunks, as aiohttp asks for."""
    if isinstance(request.body, bytes | bytearray) and len(request.body) > LARGE:
        request.body = io.BytesIO(request.body)
