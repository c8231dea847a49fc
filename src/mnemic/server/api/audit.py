"""The audit log: who changed what, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert

from ...errors import NotFoundError
from ...layers.audit_entry import AuditEntry
from ...records import AUDITED
from ...store.protocol import Page
from ..endpoint import ApiCall, Example, PageQuery, endpoint
from .response_types import Moment, Name

ENTRY: dict[str, Any] = {
    "time": "2026-01-31T09:30:00Z",
    "operation": "put",
    "scope": "acme/alice",
    "kind": "note",
    "key": "plan",
    "actor": "support-bot",
    "session": None,
    "address": "127.0.0.1",
    "before": 0,
    "after": None,
    "flags": [],
    "removed": [],
    "count": None,
    "unsure": False,
    "keys": [],
    "content": None,
    "number": 1,
}


Operation = Literal["put", "delete", "purge", "limit", "expire", "touch", "read", "scan", "recall"]


class AuditQuery(PageQuery):
    """Which entries: those that have all of the given fields."""

    since: Moment | None = None
    until: Moment | None = None
    actor: Name | None = None
    session: Name | None = None
    address: Name | None = None
    operation: Operation | None = None
    kind: Annotated[str, Meta(extra_json_schema={"enum": list(AUDITED)})] | None = None
    key: Name | None = None
    flag: Name | None = None


class EntryOut(Struct, kw_only=True, frozen=True):
    """One change or read: who made it, when, and to what; `number` is its place in the log of its scope.

    `before` and `after` are the record's versions, where known; `removed` are the keys that a limit evicted, `count`
    is the number of records that were deleted together or read, `keys` are theirs. `content` is what was written or
    asked for, if the log keeps it. An `unsure` change may not have happened.
    """

    time: datetime
    operation: str
    scope: str
    kind: str
    key: str | None
    actor: str | None
    session: str | None
    address: str | None
    before: int | None
    after: int | None
    flags: list[str]
    removed: list[str]
    count: int | None
    unsure: bool
    keys: list[str]
    content: str | None
    number: int


def entry_out(entry: AuditEntry) -> EntryOut:
    """Return an entry as it is sent."""
    given = {name: getattr(entry, name) for name in AuditEntry.__struct_fields__ if name != "scope"}
    return EntryOut(scope=entry.scope.path, **given)


class ProblemOut(Struct, kw_only=True, frozen=True):
    """A problem in the audit log of a scope, from which entry on."""

    scope: str
    number: int | None
    message: str


class VerificationOut(Struct, kw_only=True, frozen=True):
    """The result of a verification: `notes` explain unfinished writes, `keyed` if the key is not in the store."""

    intact: bool
    chains: int
    entries: int
    problems: list[ProblemOut]
    notes: list[ProblemOut]
    keyed: bool


VERIFIED: dict[str, Any] = {"intact": True, "chains": 1, "entries": 1, "problems": [], "notes": [], "keyed": False}


@endpoint(
    "GET", "/api/v1/audit/verification", right="admin", summary="Verify the audit log", tag="audit", problems=(404,),
    example=Example(answer=VERIFIED),
)  # fmt: skip
async def audit_verification(call: ApiCall) -> VerificationOut:
    """Whether anything in the log of the scope and below was removed, changed, reordered or inserted.

    It reads the whole log. 404 if the server was started without an audit log.
    """
    if not call.memory.audited:
        raise NotFoundError("there is no audit log: the server was started without one")
    return convert((await call.memory.audit_verify(call.path)).to_dict(), VerificationOut)


@endpoint(
    "GET", "/api/v1/audit", right="admin", summary="Read the audit log", tag="audit", problems=(404,),
    example=Example(query={"kind": "note"}, answer={"items": [ENTRY], "cursor": None}),
)  # fmt: skip
async def audit_log(call: ApiCall, query: AuditQuery) -> Page[EntryOut]:
    """Changes in the scope and below, newest first; 404 if the server was started without an audit log."""
    if not call.memory.audited:
        raise NotFoundError("there is no audit log: the server was started without one")
    page = await call.memory.audit_page(
        call.path,
        limit=query.limit,
        cursor=query.cursor,
        since=query.since,
        until=query.until,
        actor=query.actor,
        session=query.session,
        address=query.address,
        operation=query.operation,
        kind=query.kind,
        key=query.key,
        flag=query.flag,
    )
    return Page(tuple(map(entry_out, page.entries)), page.cursor)
