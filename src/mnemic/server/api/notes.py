"""Notes: named JSON values with versions."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from ...errors import NotFoundError
from ...features.notes import Note, NoteInfo, to_info
from ...records import NOTE
from ...store.protocol import Page
from ...store.query import Scan
from ..endpoint import Answer, ApiCall, Body, Example, PageQuery, endpoint
from . import examples
from .paging import read_page
from .response_types import Metadata, Moment, Name, Text


class NoteBody(Body):
    """A value to write; an omitted description or metadata stays as it is."""

    value: Any
    description: Text | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    source: Name | UnsetType = UNSET
    created: Moment | UnsetType = UNSET


@endpoint(
    "GET", "/api/v1/notes", right="read", summary="List notes", tag="notes",
    example=Example(answer=examples.page(examples.NOTE)),
)  # fmt: skip
async def list_notes(call: ApiCall, query: PageQuery) -> Page[NoteInfo]:
    """The notes of the scope without their values, in order of creation."""
    scan = Scan(scope=call.path, kinds=(NOTE,), bodies=False)
    return await read_page(call, scan, query, to_info)


@endpoint(
    "GET", "/api/v1/notes/{key:path}", right="read", summary="Read a note", tag="notes", status=(200, 304),
    headers=("If-None-Match",), problems=(404,),
    example=Example(path={"key": "plan"}, answer={**examples.NOTE, "value": {"monday": "rest"}}),
)  # fmt: skip
async def read_note(call: ApiCall, key: str) -> Answer[Note]:
    """A note of the scope with its value; its version is the `ETag`."""
    note = await call.scope.notes.get(key)
    return Answer(note, version=note.version, status=304 if call.knows(note.version) else 200)


@endpoint(
    "PUT", "/api/v1/notes/{key:path}", right="write", summary="Write a note", tag="notes", status=(200, 201),
    headers=("If-Match", "If-None-Match"), problems=(409, 412),
    example=Example(
        path={"key": "plan"}, body={"value": {"monday": "rest"}, "description": "the week"}, answer=examples.NOTE
    ),
)  # fmt: skip
async def write_note(call: ApiCall, key: str, body: NoteBody) -> Answer[NoteInfo]:
    """Write a value under a key of the scope, replacing the previous one.

    With `If-Match: "3"` only if the note still has version 3, with `If-None-Match: *` only if there is none; otherwise
    the status is 412, and `current` is the version that is stored. `created` restores the time of a note that was
    deleted.
    """
    note = await call.scope.notes.write(
        key,
        body.value,
        description=None if body.description is UNSET else body.description,
        metadata=None if body.metadata is UNSET else body.metadata,
        source=None if body.source is UNSET else body.source,
        created=None if body.created is UNSET else body.created,
        if_version=call.if_version,
    )
    new = call.if_version == 0 or note.created == note.updated
    return Answer(note, status=201 if new else 200, version=note.version)


class RenameBody(Body):
    """The new key."""

    key: Name


@endpoint(
    "PATCH", "/api/v1/notes/{key:path}", right="write", summary="Rename a note", tag="notes",
    headers=("If-Match",), problems=(404, 409, 412),
    example=Example(path={"key": "plan"}, body={"key": "plans/week"}, answer=examples.NOTE | {"key": "plans/week"}),
)  # fmt: skip
async def rename_note(call: ApiCall, key: str, body: RenameBody) -> Answer[NoteInfo]:
    """Change the key of a note; 409 if the new key is taken. With `If-Match: "3"` only if it still has version 3."""
    note = await call.scope.notes.rename(key, body.key, if_version=call.if_version)
    return Answer(note, version=note.version)


@endpoint(
    "DELETE", "/api/v1/notes/{key:path}", right="write", summary="Delete a note", tag="notes", status=204,
    headers=("If-Match",), problems=(404, 412), example=Example(path={"key": "plan"}),
)  # fmt: skip
async def delete_note(call: ApiCall, key: str) -> None:
    """With `If-Match: "3"` only if the note still has version 3."""
    if not await call.scope.notes.delete(key, if_version=call.if_version):
        raise NotFoundError(f"{call.path.path!r} has no note {key!r}")
