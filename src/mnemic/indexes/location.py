"""Location of a companion index: a folder, or collections on a server; maps gRPC errors."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from ..errors import (
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from ..store.registry import StoreURL

COLLECTION = "mnemic"
"""Default collection."""

_COLLECTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_FLAGS = {"1": True, "true": True, "0": False, "false": False}


class Location(Struct, frozen=True, kw_only=True):
    """A parsed index URL; `url` has no key."""

    url: str
    path: Path | None = None
    """The folder, if the index is embedded."""
    host: str = ""
    port: int = 0
    key: str | None = None
    user: str | None = None
    """User name, if the key is a password."""
    prefix: str = ""
    """Prefix of its collection names on the server."""
    tls: bool = False

    def __repr__(self) -> str:
        """Return only the URL, without the key."""
        return f"Location({self.url!r})"

    def own_tables(self, collections: list[str]) -> list[str]:
        """Return the names of this index's tables among all collections of a server."""
        return [name.removeprefix(self.prefix) for name in collections if name.startswith(self.prefix)]


def parse_location(url: StoreURL, port: int | None = None, suffix: str = "") -> Location:
    """Parse an index URL; it names a server if there is a default `port`.

    A folder's name has the `suffix`, and its parent exists. Raises InvalidValueError for an invalid URL or unknown
    options, or another StoreError if the folder cannot be used.
    """
    split = url.split
    if not split.netloc.rpartition("@")[2]:
        url.take()
        name = unquote(split.path[1:])
        if not name.strip("/") or not name.endswith(suffix):
            example = f"{url.scheme}:///index{suffix}"
            raise InvalidValueError(f"{url} names no place: use {example}, or with four slashes an absolute path")
        # Absolute, because the working directory may change later.
        return Location(url=str(url), path=_check_folder(str(url), Path(name).absolute()))
    if port is None:
        raise InvalidValueError(f"{url} names a server, and {url.scheme} is a folder: use {url.scheme}:///index")
    options = url.take(tls=lambda text: _FLAGS[text.lower()])
    collection = unquote(split.path.strip("/")) or COLLECTION
    if _COLLECTION.fullmatch(collection) is None:
        raise InvalidValueError(f"{url} names no collection: its name is made of letters, digits and '_', 100 at most")
    try:
        number = split.port or port
    except ValueError:
        raise InvalidValueError(f"{url} has a bad port: it is a number up to 65535") from None
    if not split.hostname:
        raise InvalidValueError(f"{url} names no host")
    user, key = unquote(split.username or "") or None, unquote(split.password or "") or None
    return Location(
        url=str(url),
        host=split.hostname,
        port=number,
        key=key or user,
        user=user if key else None,
        prefix=f"{collection}_",
        tls=bool(options.get("tls")),
    )


def _check_folder(url: str, path: Path) -> Path:
    try:
        if not path.parent.is_dir():
            raise InvalidValueError(f"{url}: the folder {path.parent} does not exist")
        if path.exists() and not path.is_dir():
            raise UnreadableStoreError(f"{url}: {path} is a file, and an index is a folder")
    except OSError as error:
        raise StorePermissionError(f"{url}: the folder cannot be opened ({error})") from None
    return path


_UNREACHABLE = "the server cannot be reached, or has gone"
_BUSY = "the server is too busy; try again later"
_KEY = "the server wants a key, or another one: give it in the URL, before the host and '@'"

STATUSES: dict[str, tuple[type[StoreError], str]] = {
    "UNAVAILABLE": (StoreUnavailableError, _UNREACHABLE),
    "DEADLINE_EXCEEDED": (StoreUnavailableError, "the server did not answer in time"),
    "CANCELLED": (StoreUnavailableError, _UNREACHABLE),
    "UNAUTHENTICATED": (StorePermissionError, _KEY),
    "PERMISSION_DENIED": (StorePermissionError, "the server does not permit it"),
    "RESOURCE_EXHAUSTED": (StoreBusyError, _BUSY),
    "ABORTED": (StoreBusyError, _BUSY),
    "UNIMPLEMENTED": (StoreError, "the server is of a version that lacks something, or of another kind"),
}
"""Meaning of gRPC status codes."""


def grpc_error(url: str, code: str, detail: object) -> StoreError:
    """Return the Mnemic error for a gRPC status."""
    kind, hint = STATUSES.get(code, (StoreError, "the server refused a request"))
    return kind(f"{url}: {hint} ({detail})")
