"""Requests of mem0's API as its clients send them: parameters that are not known here are ignored."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, json

from ...checks import shown
from ...errors import InvalidValueError
from ...mem0.filters import ENTITIES, created_between
from ...mem0.memories import Mem0Memory, Text
from ...transfer.items import time_of
from ...transfer.mem0 import expiry_of

Id: TypeAlias = str | int | None
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Time: TypeAlias = str | int | float | None


class Mem0Message(Struct):
    """A message; its content is a text, or parts with texts."""

    content: str | list[dict[str, Any]] | None = None
    role: str = "user"
    name: str | None = None


class Ids(Struct, kw_only=True):
    """The entities whose memories are meant."""

    user_id: Id = None
    agent_id: Id = None
    app_id: Id = None
    run_id: Id = None

    def entities(self, filters: dict[str, Any] | None = None) -> dict[str, str]:
        """Return the ids that are given, here or in filters."""
        found = {name: (filters or {}).get(name) if (id := getattr(self, name)) is None else id for name in ENTITIES}
        for name, id in found.items():
            if not isinstance(id, str | int | None) or id == "*":
                raise InvalidValueError(f"{name} must be the id of one entity: {shown(id)}")
        return {name: str(id) for name, id in found.items() if id is not None and id != ""}

    def wanted(self) -> dict[str, Any] | None:
        """Return the filter of these entities' memories; None for all."""
        given = {name: getattr(self, name) for name in ENTITIES}
        return {name: str(id) for name, id in given.items() if id is not None and id != ""} or None


class IgnoredQuery(Struct):
    """A query whose parameters do not matter."""


class AddBody(Ids, kw_only=True):
    """Messages to remember."""

    messages: str | Mem0Message | list[Mem0Message]
    metadata: dict[str, Any] | None = None
    filters: dict[str, Any] | None = None
    infer: bool | None = None
    timestamp: Time = None
    expiration_date: str | None = None
    output_format: str | None = None

    def texts(self) -> list[Text]:
        """Return the texts of all messages but those of the system; raises InvalidValueError if there is none."""
        given = [Mem0Message(self.messages)] if isinstance(self.messages, str) else self.messages
        several = given if isinstance(given, list) else [given]
        found = [Text(text, one.role, one.name) for one in several if (text := _text(one.content)) is not None]
        if not found:
            raise InvalidValueError("messages: there is none with a text")
        return [one for one in found if one.role != "system"]

    def created(self) -> datetime | None:
        """Return when the messages were said, if that is given."""
        return time_of(self.timestamp, "timestamp")

    def expires(self) -> datetime | None:
        """Return when the memories expire, if they do."""
        return expiry_of(self.expiration_date)


class ListBody(Ids):
    """Which memories to list."""

    filters: dict[str, Any] | None = None
    keywords: str | None = None
    categories: list[str] | None = None
    start_date: str | None = None
    end_date: str | None = None
    fields: list[str] | None = None
    page: Number | None = None
    page_size: Count | None = None
    top_k: Annotated[int, Meta(ge=0, le=1000)] | None = None
    limit: Annotated[int, Meta(ge=0, le=1000)] | None = None

    def conditions(self) -> Sequence[Any]:
        """Return everything that a memory must meet."""
        return (
            self.filters,
            self.wanted(),
            None if self.keywords is None else {"keywords": {"icontains": self.keywords}},
            None if self.categories is None else {"categories": {"in": self.categories}},
            created_between(self.start_date, self.end_date),
        )


class Mem0SearchBody(ListBody, kw_only=True):
    """A question, and which memories to search."""

    query: str
    metadata: dict[str, Any] | None = None
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    explain: bool | None = None
    output_format: str | None = None

    def conditions(self) -> Sequence[Any]:
        """Return everything that a memory must meet."""
        return (*super().conditions(), {"metadata": self.metadata} if self.metadata else None)


class ListQuery(Ids):
    """Which memories to list, in a query."""

    keywords: str | None = None
    categories: list[str] | None = None
    metadata: str | None = None
    start_date: str | None = None
    end_date: str | None = None
    fields: list[str] | None = None
    page: Number | None = None
    page_size: Count | None = None
    top_k: Annotated[int, Meta(ge=0, le=1000)] | None = None
    limit: Annotated[int, Meta(ge=0, le=1000)] | None = None
    filters: str | None = None

    def body(self) -> ListBody:
        """Return it as a body; raises InvalidValueError."""
        metadata = _object(self.metadata, "metadata")
        return ListBody(
            **{name: getattr(self, name) for name in ListBody.__struct_fields__ if name != "filters"},
            filters={
                "AND": [
                    *([] if self.filters is None else [_object(self.filters, "filters")]),
                    *([] if metadata is None else [{"metadata": metadata}]),
                ]
            },
        )


class Mem0PageQuery(Struct):
    """Which page of a list is wanted, in a query."""

    page: Number | None = None
    page_size: Count | None = None


class UpdateBody(Struct, kw_only=True):
    """Changes of a memory; an expiration_date of null removes it."""

    text: str | None = None
    metadata: dict[str, Any] | None = None
    timestamp: Time = None
    expiration_date: str | None | UnsetType = UNSET

    def changes(self) -> dict[str, Any]:
        """Return the fields to change."""
        found = {"text": self.text, "metadata": self.metadata, "timestamp": self.timestamp}
        return found if self.expiration_date is UNSET else {**found, "expiration_date": self.expiration_date}


class BatchItem(UpdateBody):
    """One memory of several to change or delete."""

    memory_id: str


class BatchBody(Struct):
    """Memories to change or delete."""

    memories: Annotated[list[BatchItem], Meta(max_length=1000)]


class FeedbackBody(Struct, kw_only=True):
    """The opinion of a user about a memory: POSITIVE, NEGATIVE or VERY_NEGATIVE."""

    memory_id: str
    feedback: str | None = None
    feedback_reason: str | None = None


def only(memories: list[Mem0Memory], fields: Sequence[str] | None) -> list[Mem0Memory]:
    """Return memories with no other fields than these, if any are named, and the id."""
    if not fields:
        return memories
    names = {"id", *fields}
    return [
        Mem0Memory(**{name: getattr(one, name) for name in Mem0Memory.__struct_fields__ if name in names})
        for one in memories
    ]


def _text(content: str | list[dict[str, Any]] | None) -> str | None:
    """Return the text of a message, None if it has none."""
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content if content and content.strip() else None


def _object(text: str | None, name: str) -> dict[str, Any] | None:
    """Return an object that is written in a query, as JSON or, as mem0's client for Python does, as its repr."""
    if text is None:
        return None
    found: Any = None
    try:
        found = json.decode(text)
    except DecodeError:
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            found = literal_eval(text) if len(text) <= 10_000 else None
    if not isinstance(found, dict):
        raise InvalidValueError(f"{name} must be an object, as JSON: {shown(text)}")
    return found
