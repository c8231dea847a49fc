"""Parses a PostgreSQL URL into libpq parameters and Mnemic's own options.

`schema` is the schema of the tables, created if it is missing. `pool_max` is the maximum number of open
connections, `pool_min` how many stay open when idle. `timeout` is the client-side deadline of a request in
seconds, 10 by default. `statement_timeout` is the server-side limit of a statement, `lock_timeout` how long it
waits for locks, by default four fifths of `timeout`. `prepare=off` disables prepared statements, for poolers that
cannot handle them. `partitions` is the number of partitions of the tables when they are created. `recall` selects
where to search: `memory`, `server`, or `auto`, which uses the server for large scopes. All others are libpq's:
`connect_timeout`, `sslmode`, `target_session_attrs` …
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from ...errors import InvalidValueError
from ...store.registry import StoreURL
from ..calls import TIMEOUT, seconds

CONNECT_SECONDS = (2, 5)
"""Bounds of the connect timeout, which is half of a request's unless the URL sets it.

The driver's minimum is two seconds, and connecting cannot be interrupted.
"""

LOCK_SHARE = 0.8
"""Share of the timeout that a write waits for locks, so that the server can still report it."""

_MOST_CONNECTIONS = 10

LARGE = 50_000
"""Scopes with at least this many records are searched by the database, unless the URL overrides it."""


class Address(Struct, frozen=True):
    """A database, and the options of its use."""

    shown: str
    """The URL, without its password."""
    parameters: dict[str, Any]
    """Connection parameters of libpq."""
    schema: str | None
    pool_min: int
    pool_max: int
    timeout: float
    lock_timeout: float
    prepare: bool
    partitions: int
    large: int
    """Number of records from which a scope is searched by the database instead of in memory."""

    def __repr__(self) -> str:
        """Return only the URL: the parameters contain a password."""
        return f"Address({self.shown!r})"

    @classmethod
    def of(cls, url: StoreURL) -> Address:
        """Parse a URL; raises InvalidValueError for a bad option."""
        shown = str(url)
        if secret := next((name for name in url.options if name in ("password", "sslpassword")), None):
            raise InvalidValueError(
                f"{shown}: a password belongs before the '@', or into PGPASSWORD or a passfile, "
                f"not into the option {secret}"
            )
        own = StoreURL(
            url.text, url.scheme, url.split, {name: url.options[name] for name in _OWN if name in url.options}
        ).take(**_OWN)

        def given(name: str, otherwise: Any) -> Any:
            return own.get(name, otherwise)

        settings: dict[str, str] = {}
        if "schema" in own:
            settings["search_path"] = f'"{own["schema"]}"'
        for name in ("statement_timeout", "lock_timeout"):
            if name in own:
                settings[name] = str(max(1, round(given(name, 0) * 1000)))
        timeout = given("timeout", TIMEOUT)
        parameters = _libpq(url, shown, timeout)
        if settings:
            # Only if necessary: some poolers refuse to pass settings on.
            flags = [f"-c {name}={_escaped(value)}" for name, value in settings.items()]
            parameters["options"] = " ".join([*filter(None, [parameters.get("options")]), *flags])
        most = given("pool_max", _MOST_CONNECTIONS)
        return cls(
            shown=shown,
            parameters=parameters,
            schema=given("schema", None),
            pool_min=min(given("pool_min", 1), most),
            pool_max=most,
            timeout=timeout,
            lock_timeout=given("lock_timeout", LOCK_SHARE * timeout),
            prepare=given("prepare", True),
            partitions=given("partitions", 0),
            large=given("recall", LARGE),
        )


def _libpq(url: StoreURL, shown: str, timeout: float) -> dict[str, Any]:
    query = "&".join(part for part in url.split.query.split("&") if part and part.partition("=")[0] not in _OWN)
    _, _, rest = url.text.partition("://")
    text = f"postgresql://{rest.partition('?')[0]}" + (f"?{query}" if query else "")
    try:
        found = conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        reason = re.sub(
            r'"[^"]*"', '"…"', str(error).strip()
        )  # libpq quotes the part that it cannot parse, or everything
        raise InvalidValueError(f"cannot read the store URL {shown}: {reason}") from None
    least, most = CONNECT_SECONDS
    hosts = str(found.get("host") or "").count(",") + 1
    defaults = {
        "connect_timeout": str(max(least, min(most, round(timeout / 2 / hosts)))),
        # For data that is sent without waiting for an answer, such as the end of a connection.
        "tcp_user_timeout": str(round(1000 * timeout)),
        "application_name": "mnemic",
        "client_encoding": "utf8",  # the server reports what it cannot store; the driver would fail by itself
    }
    return {**defaults, **found}


def _escaped(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text) or len(text.encode()) > 63:
        raise ValueError(text)
    return text


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 1000:
        raise ValueError(text)
    return number


def _positive(text: str) -> int:
    return _count(text) or int("none")


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


def _recall(text: str) -> int:
    return {"server": 0, "auto": LARGE, "memory": 2**62}[text]


_OWN: dict[str, Callable[[str], object]] = {
    "schema": _name,
    "pool_min": _count,
    "pool_max": _positive,
    "timeout": seconds,
    "statement_timeout": seconds,
    "lock_timeout": seconds,
    "prepare": _switch,
    "partitions": _count,
    "recall": _recall,
}
"""Mnemic's own options, and their parsers."""
