"""Sources: the session or message that a memory or a fact came from."""

from __future__ import annotations

from msgspec import Struct

from ...errors import InvalidValueError, NotFoundError
from ...features.hits import find_key
from ...records import ARCHIVED, MESSAGE
from ..endpoint import Call, Example, endpoint


class SourceOut(Struct, kw_only=True, frozen=True):
    """A session, its scope, and the message in it if the source is one."""

    scope: str
    session: str
    message: str | None


@endpoint(
    "GET", "/api/v1/sources/{source:path}", right="read", summary="Find a source", tag="sources", problems=(404,),
    example=Example(path={"source": "monday"}, answer={"scope": "acme/alice", "session": "monday", "message": None}),
)  # fmt: skip
async def find_source(call: Call, source: str) -> SourceOut:
    """The session of the scope with this name, or the message here or below with this id.

    The `source` of a fact or a memory is such a name if the writer gave one; it may be any other name.
    """
    try:
        session = await call.scope.sessions.get(source)
    except (NotFoundError, InvalidValueError):
        ref = await find_key(call.store, call.path, source)
        if ref is None or ref.kind not in (MESSAGE, ARCHIVED):
            raise NotFoundError(f"{call.path.path!r} has no session or message {source!r}") from None
        return SourceOut(scope=ref.scope.parent.path, session=ref.scope.name, message=ref.key)
    return SourceOut(scope=session.scope.parent.path, session=session.name, message=None)
