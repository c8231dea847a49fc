"""URLs of stores: finds the back-end of a scheme by entry point, parses options, and masks secrets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from ..checks import check_name, shown
from ..errors import InvalidValueError, MissingExtraError, NotFoundError, UnknownSchemeError
from .protocol import Companion, Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from urllib.parse import SplitResult

    from .diagnosis import Diagnosis, Readable

__all__ = [
    "GROUP",
    "INDEX_GROUP",
    "Backend",
    "CompanionFactory",
    "StoreURL",
    "closed_on_error",
    "find",
    "found_in",
    "register",
    "schemes",
    "sqlite_url",
]

GROUP = "mnemic.backends"
"""Entry point group of back-ends: the name is the URL scheme, the object a `Backend`."""

INDEX_GROUP = "mnemic.indexes"
"""Entry point group of companion indexes: the name is the URL scheme, the object a `CompanionFactory`."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_CREDENTIALS = re.compile(r"[:@]")
"""Characters that mark a user, a password or a port in an authority."""

_registered: dict[str, Backend] = {}
_OWN = {"memory": "mnemic.backends.memory", "sqlite": "mnemic.backends.sqlite"}
"""Back-ends that are always installed: found without reading the metadata of every package, which takes long."""


class StoreURL(Struct, frozen=True):
    """A parsed store URL; its text form shows no password or other secret."""

    text: str
    scheme: str
    split: SplitResult
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> StoreURL:
        """Parse a URL; raises InvalidValueError if it has no scheme or cannot be parsed."""
        from urllib.parse import parse_qsl, urlsplit

        # Errors show only the masked URL: the parser's own messages quote parts of the original.
        safe = masked(url) if isinstance(url, str) else ""
        if not isinstance(url, str) or (found := _SCHEME.match(url)) is None:
            value = shown(safe) if isinstance(url, str) else f"a value of the type {type(url).__name__}"
            raise InvalidValueError(
                f"a store is named by a URL such as 'sqlite:///memory.db' or 'memory://', not by {value}"
            )
        check_name(safe, "the store URL", longest=4096)
        try:
            url.encode()  # what is masked was not checked
            split = urlsplit(url, allow_fragments=False)
        except UnicodeEncodeError:
            raise InvalidValueError(f"cannot read the store URL {shown(safe)}: it is not UTF-8") from None
        except ValueError:
            raise InvalidValueError(f"cannot read the store URL {shown(safe)}: its host is not valid") from None
        try:
            pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
        except ValueError:
            raise InvalidValueError(
                f"cannot read the store URL {shown(safe)}: an option is not of the form name=value"
            ) from None
        after_user = (split.netloc + split.path + split.query).count("@") - ("@" in split.netloc)
        if after_user and _CREDENTIALS.search(split.netloc):
            raise InvalidValueError(
                f"the store URL {shown(safe)} holds more than one '@', or one after its host: in a name, a "
                "password or an option write '/' as %2F, '?' as %3F, '#' as %23 and '@' as %40"
            )
        return cls(url, found[1].lower(), split, dict(pairs))

    def take(self, **kinds: Callable[[str], object]) -> dict[str, object]:
        """Return the URL's options, each parsed by its function; raises InvalidValueError for an unknown or bad one."""
        taken: dict[str, object] = {}
        for name, text in self.options.items():
            if name not in kinds:
                known = ", ".join(sorted(kinds)) or "none"
                raise InvalidValueError(f"{self} has an unknown option {shown(name)}; known are: {known}")
            try:
                taken[name] = kinds[name](text)
            except (ValueError, KeyError):
                detail = f": {shown(text)}" if name in HARMLESS else ""
                raise InvalidValueError(f"{self} has a bad value for {name}{detail}") from None
        return taken

    def __str__(self) -> str:
        """Return the URL without secrets."""
        return masked(self.text)

    def __repr__(self) -> str:
        """Return the URL without secrets, quoted."""
        return f"StoreURL({str(self)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the same for the `rich` package, which would otherwise show every field."""
        return [("text", str(self))]


class Backend(Struct, frozen=True, kw_only=True):
    """Entry point object of a back-end: how to open a store.

    An `inline` back-end never waits for an event loop when none is running, so the sync API calls it without a
    thread. `prepare` creates what a store needs before it can be opened, such as a table, and returns what it did.
    `exists` tells whether there is a store at the URL, if opening one would create it. `diagnose` examines a store,
    also a damaged one, and changes nothing; it is for `mnemic doctor`, which without it opens the store. `salvage`
    returns what can still be read of a store that cannot be opened. `remove` deletes a store that was just created,
    where that leaves nothing behind.
    """

    open: Callable[[StoreURL], Awaitable[Store]]
    inline: bool = False
    prepare: Callable[[StoreURL], Awaitable[str]] | None = None
    exists: Callable[[StoreURL], Awaitable[bool]] | None = None
    diagnose: Callable[[StoreURL], Awaitable[Diagnosis]] | None = None
    salvage: Callable[[StoreURL], Awaitable[Readable]] | None = None
    remove: Callable[[StoreURL], Awaitable[None]] | None = None


class CompanionFactory(Struct, frozen=True, kw_only=True):
    """Entry point object of a companion index: how to open one."""

    open: Callable[[StoreURL], Awaitable[Companion]]


def sqlite_url(path: str | PathLike[str]) -> str:
    """Return the URL of a SQLite file, whatever characters it has; ":memory:" is not a file."""
    from urllib.parse import quote

    return "memory://" if path == ":memory:" else f"sqlite:///{quote(fspath(path))}"


def register(scheme: str, backend: Backend) -> None:
    """Register a back-end for a scheme in this process; it takes precedence over entry points."""
    _registered[scheme] = backend


def find(url: str) -> tuple[StoreURL, Backend]:
    """Return the parsed URL and the back-end that serves its scheme.

    Raises InvalidValueError for a bad URL, UnknownSchemeError if no back-end or more than one serves
    the scheme, MissingExtraError if what the back-end needs is not installed.
    """
    parsed = StoreURL.parse(url)
    if (own := _registered.get(parsed.scheme)) is not None:
        return parsed, own
    if (module := _OWN.get(parsed.scheme)) is not None:
        return parsed, import_module(module).BACKEND
    parsed, backend = found_in(GROUP, url)
    return parsed, backend


async def find_existing(url: str) -> tuple[StoreURL, Backend]:
    """Return the same as `find`; raises NotFoundError if there is no store at the URL yet."""
    parsed, backend = find(url)
    if backend.exists is not None and not await backend.exists(parsed):
        raise NotFoundError(f"there is no store at {parsed}")
    return parsed, backend


def found_in(group: str, url: str) -> tuple[StoreURL, Any]:
    """Return the parsed URL and the entry point object in `group` that serves its scheme; raises as `find`."""
    from importlib.metadata import entry_points

    parsed = StoreURL.parse(url)
    found = entry_points(group=group, name=parsed.scheme)
    if len({entry.value for entry in found}) > 1:
        claims = ", ".join(sorted(f"{entry.value} from {_package(entry)}" for entry in found))
        raise UnknownSchemeError(f"more than one installed package serves {parsed.scheme}://: {claims}")
    for entry in found:
        try:
            return parsed, entry.load()
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{parsed.scheme}:// needs the package {error.name}; install it with: {_install(entry)}",
                name=error.name,
            ) from error
    what = "back-end" if group == GROUP else "index"
    raise UnknownSchemeError(f"no installed {what} serves {parsed.scheme}://; there are: {', '.join(schemes(group))}")


def schemes(group: str = GROUP) -> list[str]:
    """Return the URL schemes that installed back-ends serve."""
    from importlib.metadata import entry_points

    own = _registered if group == GROUP else {}
    return sorted({entry.name for entry in entry_points(group=group)} | own.keys())


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _install(entry: EntryPoint) -> str:
    extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
    return f"pip install '{_package(entry)}{extras}'"


HARMLESS = frozenset(
    {
        "branch", "breaker", "busy_timeout", "connect_timeout", "create", "layout", "lock_timeout", "max_connections",
        "on_failure", "partitions", "pool_max", "pool_min", "prefix", "prepare", "recall", "region", "renew",
        "row_security", "schema", "ssl_cert_reqs", "sslmode", "statement_timeout", "synchronous",
        "target_session_attrs", "timeout", "tls",
    }
)  # fmt: skip
"""Options whose values may be shown; all others may be secrets."""

MASK = "***"

_SERVER = re.compile(r"https?://[\w.-]+(:\d+)?/?")
"""An endpoint that consists of a server only."""


def masked(url: str) -> str:
    """Return a URL without possible secrets, even if it cannot be parsed.

    Masks everything before the last '@', a port that is not a number, and the values of all options not known to
    be harmless.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    before, at, after = rest.rpartition("@")
    # A path may contain an '@': without a host and a ':' before it, that is not a user and a password.
    if at and not (rest.startswith("/") and ":" not in before):
        rest = f"{MASK}@{after}"
    address, question, query = rest.partition("?")
    host, slash, path = address.partition("/")
    user, at, hosts = host.rpartition("@")
    hosts = ",".join(map(_without_false_port, hosts.split(",")))
    options = "&".join(map(_masked_option, query.split("&"))) if query else ""
    return f"{scheme}{mark}{user}{at}{hosts}{slash}{path}{question}{options}"


def _without_false_port(host: str) -> str:
    name, colon, port = host.partition(":")
    if not port or port.isdecimal() or name == "arn" or host.startswith("["):
        return host
    return f"{name}{colon}{MASK}"


def _masked_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if not equals:
        return MASK if option else ""
    harmless = not value or name in HARMLESS or (name == "endpoint" and _SERVER.fullmatch(value))
    return f"{name}={value if harmless else MASK}"


class _Closable(Protocol):
    async def close(self) -> None: ...


@asynccontextmanager
async def closed_on_error(opened: _Closable) -> AsyncIterator[None]:
    """Close what was opened if what is done with it next fails."""
    try:
        yield
    except BaseException:
        await opened.close()
        raise
