"""Export and import, as streams: neither is ever in memory as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from tempfile import TemporaryFile
from typing import Annotated

from msgspec import Meta

from ...errors import InvalidValueError
from ...event_loop import off_loop
from ...features.export import export_lines
from ...features.record_import import Imported
from ...transfer.formats import NAMES
from ..endpoint import ApiCall, Example, Query, Streamed, endpoint
from ..problems import RequestError
from . import examples

JSON_LINES = "application/jsonl"
WRITTEN_AT_ONCE = 1024 * 1024
"""How many bytes of an import are collected before they are written to the temporary file."""


class ImportQuery(Query):
    """Format of the file, and how it is imported."""

    format: Annotated[str, Meta(extra_json_schema={"enum": list(NAMES)})] | None = None
    overwrite: Annotated[bool, Meta(description="Replace records that have other content.")] = False
    dry_run: Annotated[bool, Meta(description="Only check and count.")] = False


@endpoint(
    "GET", "/api/v1/export", right="read", summary="Export a scope", tag="transfer", content=JSON_LINES,
    example=Example(answer=examples.EXPORT),
)  # fmt: skip
async def export(call: ApiCall) -> Streamed:
    """Everything in the scope and below as JSON lines, without loss; vectors are recomputed by an import.

    The last line has the number of records: an export without it is not complete.
    """
    lines = export_lines(call.store, call.path)

    async def chunks() -> AsyncIterator[bytes]:
        async for chunk, _, _ in lines:
            yield chunk

    return Streamed(chunks(), {"Content-Disposition": 'attachment; filename="mnemic.jsonl"'})


@endpoint(
    "POST", "/api/v1/import", right="write", summary="Import a file", tag="transfer", takes="application/octet-stream",
    problems=(409,),
    example=Example(
        body=examples.EXPORT,
        answer={"records": 0, "written": 0, "format": "mnemic", "skipped": []},
    ),
)  # fmt: skip
async def import_file(call: ApiCall, query: ImportQuery) -> Imported:
    """Import an export of Mnemic or of another tool, whose format is found from its content unless it is named.

    With `scope` it goes there; without, an export of Mnemic goes to its original scopes. The whole file is checked
    before anything is written. Existing records stay; if one has other content, the status is 409 and nothing is
    written, unless `overwrite` is true. Any content type is taken.
    """
    with TemporaryFile() as file:
        size = 0
        waiting: list[bytes] = []
        async for chunk in call.request.stream():
            size += len(chunk)
            if size > call.settings.max_import_bytes:
                raise RequestError(413, f"an import has at most {call.settings.max_import_bytes:,} bytes")
            waiting.append(chunk)
            if sum(map(len, waiting)) >= WRITTEN_AT_ONCE:
                await off_loop(partial(file.writelines, waiting))
                waiting = []
        file.writelines(waiting)
        if not size:
            raise InvalidValueError("the body is empty")
        file.seek(0)
        target = call.memory if call.request.query_params.get("scope") is None else call.scope
        return await target.import_from(file, format=query.format, overwrite=query.overwrite, dry_run=query.dry_run)
