"""Calls to AgentCore: all pages, with errors mapped."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

from botocore import exceptions as boto

from ...errors import InvalidValueError, StoreBusyError, StoreError, TooLargeError, UnreadableStoreError
from ...event_loop import mind_forks
from ...records import now
from .. import aws
from .names import Place

OURS = "mnemic"
"""Metadata key of Mnemic's events, to skip those of other applications."""
PAGE = 100
"""Maximum number of items per request and answer."""
AT_ONCE = 16
"""Number of concurrent requests."""
LARGE = 1_000_000
"""Chunk size of a large request."""
MOST_QUERY = 10_000

Answer = dict[str, Any]

_CODES: dict[str, tuple[type[Exception], str]] = {
    "InvalidInputException": (InvalidValueError, "AgentCore rejects a value"),
    "ValidationException": (InvalidValueError, "AgentCore rejects a value"),
    "413": (TooLargeError, "the event is larger than AgentCore allows"),
    "RequestEntityTooLargeException": (TooLargeError, "the event is larger than AgentCore allows"),
    "RetryableConflictException": (StoreBusyError, "AgentCore is busy with the same session; try again"),
}


class MissingError(Exception):
    """The requested object does not exist; internal."""


class Service:
    """One memory."""

    def __init__(self, requests: aws.Requests, memory: str) -> None:
        self.url: str = str(requests.url)
        self._requests = requests
        self._memory = memory
        self._begin()
        mind_forks(self)

    async def close(self) -> None:
        """Close connections."""
        await self._requests.close()

    def before_fork(self) -> None:
        """Do nothing: connections stay with the parent."""

    def after_fork(self) -> None:
        """Reset in a child, for its own event loop."""
        self._begin()

    def _begin(self) -> None:
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def check(self) -> None:
        """Raise a Mnemic error if the memory cannot be read."""
        try:
            await self._call("list_actors", maxResults=1)
        except MissingError as error:
            raise self._gone(error) from error

    async def create_event(self, place: Place, payload: list[Answer], *, branch: Answer | None, said: bool) -> str:
        """Create an event and return its id; a retried request creates it once.

        Text that was `said` before must not be extracted as a memory again.
        """
        extra: Answer = {} if branch is None else {"branch": branch}
        if said and self._takes("CreateEvent", "extractionMode"):
            extra["extractionMode"] = "SKIP"
        try:
            answer = await self._call(
                "create_event",
                actorId=place.actor,
                sessionId=place.session,
                eventTimestamp=now(),
                payload=payload,
                metadata={OURS: {"stringValue": "1"}},
                clientToken=uuid4().hex,
                **extra,
            )
        except MissingError as error:
            raise self._gone(error) from error
        return str(answer["event"]["eventId"])

    async def events(self, place: Place, *, payloads: bool) -> AsyncGenerator[list[Answer], None]:
        """Yield Mnemic's events of a session, page by page, in the service's order."""
        ours = {"left": {"metadataKey": OURS}, "operator": "EXISTS"}
        async for page in self._pages(
            "list_events",
            "events",
            actorId=place.actor,
            sessionId=place.session,
            includePayloads=payloads,
            filter={"eventMetadata": [ours]},
        ):
            yield page

    async def event(self, place: Place, id: str) -> Answer:
        """Return one event; raises MissingError."""
        found = await self._call("get_event", actorId=place.actor, sessionId=place.session, eventId=id)
        return dict(found["event"])

    async def delete_event(self, place: Place, id: str) -> None:
        """Delete an event, if it is there."""
        with suppress(MissingError):
            await self._call("delete_event", actorId=place.actor, sessionId=place.session, eventId=id)

    async def actors(self) -> list[str]:
        """Return all actors."""
        pages = self._pages("list_actors", "actorSummaries")
        return [actor["actorId"] async for page in pages for actor in page]

    async def sessions(self, actor: str) -> list[str]:
        """Return all non-empty sessions of an actor."""
        extra: Answer = {"actorId": actor}
        if self._takes("ListSessions", "filter"):
            extra["filter"] = {"eventFilter": "HAS_EVENTS"}
        pages = self._pages("list_sessions", "sessionSummaries", **extra)
        return [session["sessionId"] async for page in pages for session in page]

    async def create_records(self, records: Sequence[tuple[str, str]], moment: datetime) -> list[str]:
        """Create memory records of namespaces and texts, all or none; return their ids."""
        made: dict[str, str] = {}
        failed: list[Answer] = []
        for start in range(0, len(records), PAGE):
            some = [
                {
                    "requestIdentifier": str(start + at),
                    "namespaces": [namespace],
                    "content": {"text": text},
                    "timestamp": moment,
                }
                for at, (namespace, text) in enumerate(records[start : start + PAGE])
            ]
            token = uuid4().hex
            try:
                answer = await self._call("batch_create_memory_records", records=some, clientToken=token)
            except Exception as error:
                with suppress(StoreError):
                    await self.delete_records(list(made.values()))
                if isinstance(error, MissingError):
                    raise self._gone(error) from error
                raise
            made |= {one["requestIdentifier"]: one["memoryRecordId"] for one in answer["successfulRecords"]}
            failed += answer["failedRecords"]
        if failed:
            await self.delete_records(list(made.values()))
            raise InvalidValueError(f"{self.url}: AgentCore rejects a memory record: {failed[0]}")
        return [made[str(at)] for at in range(len(records))]

    async def update_records(self, records: Sequence[tuple[str, str]], moment: datetime) -> set[str]:
        """Change the texts of memory records; return the ids of failures."""
        failed: set[str] = set()
        for start in range(0, len(records), PAGE):
            some: list[Answer] = [
                {"memoryRecordId": id, "content": {"text": text}, "timestamp": moment}
                for id, text in records[start : start + PAGE]
            ]
            try:
                answer = await self._call("batch_update_memory_records", records=some)
            except MissingError:
                failed.update(one["memoryRecordId"] for one in some)
            else:
                failed.update(one["memoryRecordId"] for one in answer["failedRecords"])
        return failed

    async def delete_records(self, ids: Sequence[str]) -> set[str]:
        """Delete memory records; return the ids of those that do not exist, or not yet."""
        failed: set[str] = set()
        for start in range(0, len(ids), PAGE):
            some = [{"memoryRecordId": id} for id in ids[start : start + PAGE]]
            try:
                answer = await self._call("batch_delete_memory_records", records=some)
            except MissingError:
                failed.update(one["memoryRecordId"] for one in some)
            else:
                failed.update(one["memoryRecordId"] for one in answer["failedRecords"])
        return failed

    async def retrieve(self, namespace: str, query: str, limit: int) -> AsyncGenerator[list[Answer], None]:
        """Yield the memory records below a namespace that answer a query, best first."""
        by_path = self._takes("RetrieveMemoryRecords", "namespacePath")
        within = {"namespacePath" if by_path else "namespace": namespace}
        criteria = {"searchQuery": query[:MOST_QUERY], "topK": min(limit, PAGE)}
        async for page in self._pages(
            "retrieve_memory_records", "memoryRecordSummaries", searchCriteria=criteria, **within
        ):
            yield page

    async def _pages(self, operation: str, field: str, **arguments: Any) -> AsyncGenerator[list[Answer], None]:
        token: Answer = {}
        while True:
            try:
                answer = await self._call(operation, maxResults=PAGE, **arguments, **token)
            except MissingError:
                # Either the session or the memory does not exist.
                await self.check()
                return
            yield answer[field]
            if not answer.get("nextToken"):
                return
            token = {"nextToken": answer["nextToken"]}

    async def _call(self, operation: str, **arguments: Any) -> Any:
        async with self._gate:
            try:
                return await self._requests.send(operation, memoryId=self._memory, **arguments)
            except boto.ClientError as error:
                raise self._explained(error) from error

    def _takes(self, operation: str, member: str) -> bool:
        """Return whether the installed client supports a request parameter."""
        model = self._requests.meta.service_model.operation_model(operation)
        return member in model.input_shape.members

    def _explained(self, error: boto.ClientError) -> Exception:
        code = aws.code_of(error)
        if code == "ResourceNotFoundException":
            return MissingError(str(error))
        if code in _CODES:
            kind, hint = _CODES[code]
            return kind(f"{self.url}: {hint} ({error})")
        return aws.explain(error, self.url)

    def _gone(self, error: MissingError) -> UnreadableStoreError:
        hint = "make one with create_memory of bedrock-agentcore-control, or name its region"
        return UnreadableStoreError(f"{self.url}: there is no such memory in this region; {hint} ({error})")


def as_stream(request: Any, **_: Any) -> None:
    """Send a large request in chunks, as aiohttp asks for."""
    if isinstance(request.body, bytes | bytearray) and len(request.body) > LARGE:
        request.body = io.BytesIO(request.body)
