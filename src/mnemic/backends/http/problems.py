"""Errors from a server: problem+json becomes the error that the server raised, with its fields."""

from __future__ import annotations

from msgspec import DecodeError, Struct, ValidationError, json

from ... import errors
from ...checks import shown
from ...errors import (
    AccessDeniedError,
    ConflictError,
    LimitError,
    MnemicError,
    SettingsChangedError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    TooLargeError,
    UnreadableStoreError,
)
from ...store.wire import problem_name


class ServerProblem(Struct, frozen=True):
    """A problem+json of a server."""

    type: str
    detail: str = ""
    title: str = ""
    key: str | None = None
    current: int = 0
    settings: str | None = None
    count: int = 0
    weight: int = 0
    retry: bool = False
    unsure: bool = False


_decode = json.Decoder(ServerProblem).decode

_BY_NAME: dict[str, type[MnemicError]] = {
    problem_name(kind): kind for kind in (getattr(errors, name) for name in errors.__all__)
}
"""Errors by the end of a problem's type, such as "not-found"."""
_BY_NAME |= {"closed": StoreUnavailableError, "event-loop": StoreError, "missing-extra": StoreError}

_NOT_DONE = (408, 429, 503)
"""Statuses of a server that has done nothing."""
_BY_STATUS: dict[int, tuple[type[MnemicError], str]] = {
    401: (StorePermissionError, "the API key is missing, wrong or expired: give it with MNEMIC_API_KEY or api_key_env"),
    403: (AccessDeniedError, "the API key does not allow this"),
    404: (UnreadableStoreError, "this is not the address of a Mnemic server, or of one too old"),
    408: (StoreUnavailableError, "the deadline passed before the write began"),
    412: (StoreUnavailableError, "the server was restarted; the write may or may not have been done"),
    413: (TooLargeError, "the server takes no request of this size: write less at once"),
    421: (StorePermissionError, "the server does not serve this host name"),
    429: (StoreBusyError, "the key has made too many requests"),
    502: (StoreUnavailableError, "a proxy got no answer from the server"),
    503: (StoreBusyError, "the server is busy"),
    504: (StoreUnavailableError, "a proxy got no answer from the server"),
}


def error_of(url: str, status: int, location: str | None, content: bytes) -> MnemicError:
    """Return the error that an answer with a status other than 200 stands for."""
    if 300 <= status < 400:
        return StoreError(f"{url}: the server redirects to {shown(location)}, which is not followed: open that address")
    try:
        problem = _decode(content)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        problem = ServerProblem("")
    name = problem.type.rpartition("#")[2]
    if (kind := _BY_NAME.get(name)) is not None:
        detail = problem.detail or problem.title
        error = _raised(kind, f"{url}: {detail}" if issubclass(kind, StoreError) else detail, problem)
        error.retry, error.unsure = problem.retry, problem.unsure
        return error
    kind, hint = _BY_STATUS.get(status, (StoreError, f"the server failed with status {status}"))
    error = kind(f"{url}: {hint}{problem.detail and f' ({problem.detail})'}")
    error.unsure = (status >= 500 and status not in _NOT_DONE) or status == 412
    return error


def _raised(kind: type[MnemicError], message: str, problem: ServerProblem) -> MnemicError:
    if kind is SettingsChangedError:
        return SettingsChangedError(message, settings=problem.settings)
    if kind is ConflictError:
        return ConflictError(message, key=problem.key, current=problem.current)
    if kind is LimitError:
        return LimitError(message, count=problem.count, weight=problem.weight)
    return kind(message)
