"""Errors as problem+json (RFC 9457): the status and type of every error, in one place.

The `type` ends in the name of the error, such as `#not-found` for NotFoundError, so that a client can raise the same
one again. What a failure of the server says never has content: the log has where it happened, without messages.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from traceback import format_tb
from typing import Any

from msgspec import UNSET, Struct, UnsetType, json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .. import errors
from ..errors import ConflictError, LimitError, MnemicError, SettingsChangedError
from ..store.wire import problem_name

LOG = logging.getLogger("mnemic.server")
TYPE = "https://mnemic.github.io/mnemic/http-api/#"
"""Start of every problem's type: the documentation of the problems."""
CONTENT_TYPE = "application/problem+json"
RETRIED = (408, 429, 503)
"""Statuses of problems that are not errors of the library and may be over soon."""
RETRY_AFTER = 1
"""Seconds after which a busy server or store is asked again."""


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem: its type, a title for it, the status of the response and, in `detail`, exactly what was wrong.

    `current` is the version that is stored now, if another one was expected; 0 if there is none; `key` is the record's.
    `settings` are the stored ones of a stream, if others were expected. `count` and `weight` are the totals that would
    exceed a limit. `retry` says that the same request can succeed later, `unsure` that the change may have been made
    all the same: with the same `Idempotency-Key` it is made once.
    """

    type: str
    title: str
    status: int
    detail: str | UnsetType = UNSET
    current: int | UnsetType = UNSET
    key: str | None | UnsetType = UNSET
    settings: str | None | UnsetType = UNSET
    count: int | UnsetType = UNSET
    weight: int | UnsetType = UNSET
    retry: bool = False
    unsure: bool = False


class RequestError(Exception):
    """A request that cannot be answered as it is, with the status and headers of the response."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers


STATUS: dict[type[MnemicError], int] = {
    errors.InvalidValueError: 422,
    errors.TooLargeError: 413,
    errors.UnknownSchemeError: 422,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.SettingsChangedError: 409,
    errors.LimitError: 409,
    errors.BudgetError: 422,
    errors.SignatureError: 422,
    errors.EmbedderError: 502,
    errors.MissingExtraError: 501,
    errors.EventLoopError: 500,
    errors.ClosedError: 503,
    errors.StoreError: 500,
    errors.UnreadableStoreError: 500,
    errors.NewerSchemaError: 500,
    errors.DecryptionError: 500,
    errors.AuditError: 500,
    errors.StorePermissionError: 500,
    errors.AccessDeniedError: 403,
    errors.HeldError: 423,
    errors.StoreFullError: 507,
    errors.StoreBusyError: 503,
    errors.StoreUnavailableError: 503,
}
"""Status of every error of Mnemic."""
TITLES: dict[type[MnemicError], str] = {
    errors.MnemicError: "The call failed",
    errors.InvalidValueError: "A value cannot be used",
    errors.TooLargeError: "A record would be too large",
    errors.UnknownSchemeError: "No back-end serves this URL",
    errors.NotFoundError: "There is no such thing",
    errors.ConflictError: "Someone else wrote first",
    errors.SettingsChangedError: "The settings were changed meanwhile",
    errors.LimitError: "A limit would be exceeded",
    errors.BudgetError: "The token budget is too small",
    errors.SignatureError: "A signature does not fit",
    errors.EmbedderError: "The embedder failed",
    errors.MissingExtraError: "The server lacks an optional dependency",
    errors.ClosedError: "The server is stopping",
    errors.StoreError: "The store failed",
    errors.StorePermissionError: "The store may not be read or written",
    errors.AccessDeniedError: "The key does not allow this",
    errors.HeldError: "A legal hold forbids the deletion",
    errors.StoreFullError: "The store is full",
    errors.StoreBusyError: "The store is busy",
    errors.StoreUnavailableError: "The store cannot be reached",
}
"""Title of an error, or of the nearest class that it descends from."""
STATUS_TITLES = {
    400: "The request does not have the documented form",
    401: "A key is needed",
    403: "The key does not allow this",
    404: "There is no such thing",
    405: "The path has no such method",
    408: "The deadline has passed",
    409: "Someone else wrote first",
    411: "The length of the body is needed",
    412: "The stored version is another one",
    413: "The body is too large",
    415: "The body has another type",
    421: "The address is not of this server",
    422: "A value cannot be used",
    423: "A legal hold forbids the deletion",
    429: "Too many requests",
    431: "The headers are too large",
    500: "The server failed",
    503: "The server is busy",
}
"""Title of a problem that is not an error of the library, by status."""
STATUS_NAMES = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "request-timeout",
    409: "conflict",
    411: "length-required",
    412: "precondition-failed",
    413: "body-too-large",
    415: "unsupported-media-type",
    421: "misdirected-request",
    422: "invalid-value",
    423: "held",
    429: "too-many-requests",
    431: "headers-too-large",
    500: "server-failed",
    503: "service-unavailable",
}
"""End of the type of such a problem, by status; Python's own names of statuses differ from version to version."""
NO_PATH = "no-such-path"
"""End of the type of a problem: the server has no such path, whatever is stored."""
LOGGED = "The log of the server says more."
"""Detail of a failure of the server, whose own message may name what a client should not see."""


def problem_response(
    status: int,
    detail: str | UnsetType = UNSET,
    *,
    name: str | None = None,
    title: str | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Response:
    """Return a response that says what went wrong; `name` is the end of its type, by default that of the status."""
    problem = Problem(
        type=f"{TYPE}{name or STATUS_NAMES.get(status, f'status-{status}')}",
        title=title or STATUS_TITLES.get(status, HTTPStatus(status).phrase),
        status=status,
        detail=detail,
        **{"retry": status in RETRIED, **more},
    )
    return Response(json.encode(problem), status, headers, CONTENT_TYPE)


def problem_of(error: Exception) -> Response:
    """Return the response to an error; an unexpected one is logged without content."""
    if isinstance(error, RequestError):
        return problem_response(error.status, str(error), headers=error.headers)
    if isinstance(error, HTTPException):
        headers = None if error.headers is None else dict(error.headers)
        if error.status_code == 404:
            title = "The server has no such path"
            return problem_response(404, "Nothing is served under this path.", name=NO_PATH, title=title)
        return problem_response(error.status_code, error.detail, headers=headers)
    if not isinstance(error, MnemicError):
        log_failure(error)
        return problem_response(500, LOGGED)
    kind = type(error)
    status = next((STATUS[one] for one in kind.__mro__ if one in STATUS), 500)
    title = next(TITLES[one] for one in kind.__mro__ if one in TITLES)
    if status >= 500:
        log_failure(error)
    return problem_response(
        status,
        " ".join(str(error).split()) if status < 500 else LOGGED,
        name=problem_name(kind),
        title=title,
        headers={"Retry-After": str(RETRY_AFTER)} if status == 503 else None,
        **_fields(error),
        retry=error.retry or status == 503,
        unsure=error.unsure,
    )


def _fields(error: MnemicError) -> dict[str, Any]:
    """Return the fields of an error, from which a client can raise the same one again."""
    if isinstance(error, SettingsChangedError):
        return {"settings": error.settings}
    if isinstance(error, ConflictError):
        return {"current": error.current, "key": error.key}
    return {"count": error.count, "weight": error.weight} if isinstance(error, LimitError) else {}


def log_failure(error: Exception) -> None:
    """Log an error with the place where it happened, and without its message, which may quote content."""
    name = type(error).__name__
    said = f": {error}" if isinstance(error, errors.StoreError) else ""
    LOG.error("a request failed with %s%s\n%s", name, said, "".join(format_tb(error.__traceback__)))


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Return the response to an error that Starlette raised: an unknown path or method."""
    return problem_of(error)
