"""Conversations of pydantic-ai, stored as sessions of a scope; and the capability that adds memory to an agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Unpack

from msgspec.structs import replace

from ..checks import to_segment
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..features.sessions import AsyncSession
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message
from ..scope import AsyncScope
from .foreign import form_json, keep, original, require, take_original

require("pydantic-ai-slim", "2.66", "3", "pydantic-ai")

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest

from ..agents.capability import MemoryCapability
from ..agents.conversion import from_request_part, from_response, without_trust
from ..agents.run_memory import Budget

__all__ = ["Budget", "MemoryCapability", "MnemicConversationStore"]

NAME = "pydantic_ai_entry"
"""The key in the metadata of messages."""
RECORDS, ENTRIES = "pydantic_ai/conversation/", "pydantic_ai/entry/"
"""Prefixes of keys in the state of the scope: records of conversations, and in which session each entry is."""
MOST_KNOWN = 1_000
"""Of how many conversations the session of the newest entry is remembered."""
_RECORD: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class MnemicConversationStore(ConversationStore):
    """A store for conversations in a Mnemic memory, each a session of the scope.

    `memory` is a scope, a memory or a URL, which is opened with the `options` of `mnemic.open` and closed by `close`.
    Deleting a conversation deletes its messages, except for those that a fork of it still uses.
    """

    def __init__(self, memory: AnyMemory = OWN, **options: Unpack[OpenOptions]) -> None:
        """Raise InvalidValueError for an invalid memory."""
        self._memory = MemoryAccess(memory, options=options)
        self._likely: dict[str, str] = {}
        """In which session the newest entry of a conversation probably is, so that this need not be read first."""

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        stored = await self._memory.call(lambda scope: scope.state.get(_key(conversation_id)))
        return None if stored is None else self._known(_RECORD.validate_python(stored.value))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> list[ConversationRecord]:
        where = None if scope is None else {"scope": scope}
        stored = await self._memory.call(lambda place: place.state.list(RECORDS, metadata=where))
        records = [_RECORD.validate_python(item.value) for item in stored]
        return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        await self._memory.call(lambda scope: _write(scope, record, new_entries, expected_revision))
        self._known(record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await self._memory.call(lambda scope: _delete(scope, conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        history = await self.read_history(entry_id, limit=1)
        if not history or history[-1].id != entry_id:
            raise NotFoundError(f"the messages of the entry {entry_id!r} were deleted")
        return history[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        likely = None if head_id is None else self._likely.get(head_id)
        return await self._memory.call(lambda scope: _history(scope, head_id, limit, likely))

    async def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()

    def _known(self, record: ConversationRecord) -> ConversationRecord:
        if record.head_id is not None:
            if len(self._likely) >= MOST_KNOWN:
                self._likely.clear()
            self._likely[record.head_id] = to_segment(record.conversation_id, "conversation_id")
        return record


# ---------------------------------------------------------------- reading and writing


async def _write(
    scope: AsyncScope, record: ConversationRecord, entries: Sequence[ConversationEntry], expected: str | None
) -> None:
    key, session = _key(record.conversation_id), scope.session(to_segment(record.conversation_id, "conversation_id"))
    stored = await scope.state.get(key)
    places = {ENTRIES + entry.id: {"session": session.name, "parent": entry.parent_id} for entry in entries}
    head = None if record.head_id is None else ENTRIES + record.head_id
    lost = head is not None and head not in places and await scope.state.get(head) is None
    if lost or (None if stored is None else stored.value["revision"]) != expected:
        raise ConversationConflict(record.conversation_id)
    dumped = ModelMessagesTypeAdapter.dump_python([entry.message for entry in entries], mode="json")
    messages = [one for entry, form in zip(entries, dumped, strict=True) for one in _to_messages(entry, form)]
    if messages:
        await session.add_many(messages, open_images=False)
        await scope.state.set_many(places)
    label = {} if record.scope is None else {"scope": record.scope}
    value = _RECORD.dump_python(record, mode="json")
    try:
        await scope.state.set(key, value, metadata=label, if_version=0 if stored is None else stored.version)
    except ConflictError:  # another writer was faster
        await session.delete(*messages)
        await scope.state.set_many({}, delete=list(places))
        raise ConversationConflict(record.conversation_id) from None


async def _delete(scope: AsyncScope, conversation_id: str, expected: str) -> None:
    stored = await scope.state.get(_key(conversation_id))
    try:
        if stored is None or stored.value["revision"] != expected:
            raise ConflictError("another revision")
        await scope.state.delete(stored.key, if_version=stored.version)
    except ConflictError:
        raise ConversationConflict(conversation_id) from None
    places, used = await _places(scope)
    for name in {place["session"] for id, place in places.items() if id not in used}:
        session = scope.session(name)
        forms = [(message, original(NAME, message)) for message in await session.messages()]
        await session.delete(*[message for message, form in forms if form is not None and form["id"] not in used])
    await scope.state.set_many({}, delete=[ENTRIES + id for id in places if id not in used])


async def _history(
    scope: AsyncScope, head_id: str | None, limit: int | None, likely: str | None
) -> list[ConversationEntry]:
    """Return the entries up to one, session by session: a fork continues in the session that it came from.

    The last is probably in the session `likely`. Entries whose messages have left their session, by a limit, a time
    to live or a delete, are not there.
    """
    found: deque[ConversationEntry] = deque()
    known: dict[str, ConversationEntry] = {}
    places: dict[str, Any] = {}
    id = head_id
    if id is not None and likely is not None:
        known = await _back_to(scope.session(likely), id, limit)
    while id is not None and (limit is None or len(found) < limit):
        if id not in known:
            if (place := await scope.state.get(ENTRIES + id)) is None:
                raise NotFoundError(f"there is no entry with the id {id!r}")
            session = place.value["session"]
            known = await _back_to(scope.session(session), id, limit)
            if id not in known and not places:
                places, used = await _places(scope)
                if head_id not in used:
                    raise NotFoundError(f"the conversation with the entry {head_id!r} was deleted")
            while id is not None and id not in known and (id not in places or places[id]["session"] == session):
                id = places[id]["parent"] if id in places else None
        else:
            found.appendleft(known[id])
            id = known[id].parent_id
    return list(found)


async def _back_to(session: AsyncSession, id: str, limit: int | None) -> dict[str, ConversationEntry]:
    """Return the newest entries of a session, back to one or further; all of them if that one is not there."""
    count = None if limit is None else 4 * max(limit, 1)
    while True:
        messages = await session.messages(count)
        found = {entry.id: entry for entry in _to_entries(messages)}
        if id in found or count is None or len(messages) < count:
            return found
        count *= 4


async def _places(scope: AsyncScope) -> tuple[dict[str, Any], set[str]]:
    """Return the session and the parent of every entry, and the entries that a conversation or a branch still uses."""
    places = {item.key.removeprefix(ENTRIES): item.value for item in await scope.state.list(ENTRIES)}
    used: set[str] = set()
    for record in await scope.state.list(RECORDS):
        for id in (record.value["head_id"], *record.value["branches"]):
            while id in places and id not in used:
                used.add(id)
                id = places[id]["parent"]
    return places, used


def _key(conversation_id: str) -> str:
    return RECORDS + to_segment(conversation_id, "conversation_id")


# ---------------------------------------------------------------- entries and messages


def _to_messages(entry: ConversationEntry, dumped: dict[str, Any]) -> list[Message]:
    """Return an entry as messages: one for a response, one for each part of a request, with that part in it."""
    parts = dumped.pop("parts")
    pieces = list(_pieces(entry.message, parts)) or [([], None)]
    messages = []
    for place, (some, said) in enumerate(pieces):
        form: dict[str, Any] = {"id": entry.id, "parts": some}
        if not place:
            form |= {"message": dumped, "parent": entry.parent_id}
        # Without text, calls or results it is nothing that recall or a prompt could use: both leave it out.
        message = Message("tool") if said is None else said
        if isinstance(message.content, list):  # files and images are in the part, once
            message = replace(message, content=message.text)
        message = replace(message, id=f"{entry.id}:{place}" if place else entry.id, structured_data=None)
        messages.append(keep(NAME, message, form))
    return messages


def _pieces(message: ModelMessage, parts: list[Any]) -> Iterator[tuple[list[Any], Message | None]]:
    """Yield parts with the message that they make; None if they make none, or one with names that cannot be stored."""
    groups = [([part], [dumped]) for part, dumped in zip(message.parts, parts, strict=True)]
    for some, dumped in groups if isinstance(message, ModelRequest) else [(message.parts, parts)]:
        said: Iterable[Message] = ()
        with suppress(InvalidValueError):
            said = list(from_request_part(some[0])) if isinstance(message, ModelRequest) else from_response(message)
        yield dumped, next(iter(said), None)


def _to_entries(messages: list[Message]) -> Iterator[ConversationEntry]:
    """Yield the entries that were stored as these messages, without permission to download from private addresses."""
    whole: dict[str, dict[str, Any]] = {}
    for message in messages:
        if (form := take_original(NAME, message)) is not None:
            if (first := whole.get(form["id"])) is not None:
                first["parts"] = first["parts"] + form["parts"]
            elif "message" in form:  # else its first part is not there
                whole[form["id"]] = form
    dumped: Any = [{**form["message"], "parts": form["parts"]} for form in whole.values()]
    if b"allow-local" in form_json(dumped):  # a fast test, which nearly all pass
        dumped = without_trust(dumped)
    read = ModelMessagesTypeAdapter.validate_python(dumped)
    for (id, form), restored in zip(whole.items(), read, strict=True):
        yield ConversationEntry(id=id, parent_id=form["parent"], message=restored)
