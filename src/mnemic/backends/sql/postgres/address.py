"""Where a database is: from a URL to what libpq connects with, and our own options.

`schema` names the schema that the tables are in, made if it is missing. `pool_max` is the most connections
that are open at once, `pool_min` how many of them stay open when nothing is asked. `timeout` is how many
seconds the server has to answer a request, 10 unless it is given, whatever the server does meanwhile.
`statement_timeout` is how many seconds the server gives a statement, `lock_timeout` how many it lets one wait
for others: four fifths of `timeout` unless it is given.
`prepare=off` keeps statements from being prepared, for proxies that share connections and cannot have that.
`partitions` says into how many parts the tables are split when they are made. `recall` says where it is
searched: `auto` is in memory, and in the database where a scope is large; `server` and `memory` are always
the one or the other. All others are libpq's: `connect_timeout`, `sslmode`, `target_session_attrs` …
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from ....errors import InvalidValueError
from ....store.registry import StoreURL
from ...calls import TIMEOUT, seconds

CONNECT_SECONDS = (2, 5)
"""How long a connection may take to open, unless the URL says so: half of a request's time, within this.

The driver knows no less than two seconds, and nothing can break it off while it connects.
"""

LOCK_SHARE = 0.8
"""For which part of it a write waits for another one's transaction, so that the server can still say so."""

_MOST_CONNECTIONS = 10

LARGE = 50_000
"""From how many records on a scope is searched by the database, unless the URL says otherwise."""


class Address(Struct, frozen=True):
    """A database, and how it is used."""

    shown: str
    """The URL, without its password."""
    parameters: dict[str, Any]
    """What libpq connects with."""
    schema: str | None
    pool_min: int
    pool_max: int
    timeout: float
    lock_timeout: float
    prepare: bool
    partitions: int
    large: int
    """From how many records on a scope is searched by the database instead of in memory."""

    def __repr__(self) -> str:
        """Return the URL alone: the parameters hold a password."""
        return f"Address({self.shown!r})"

    @classmethod
    def of(cls, url: StoreURL) -> Address:
        """Return the address that a URL names; raises InvalidValueError for a bad option."""
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
            # Not without need: some proxies that share connections refuse to pass settings on.
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
    query = "&".join(
        part for part in url.split.query.split("&") if part and part.partition("=")[0] not in _OWN
    )
    _, _, rest = url.text.partition("://")
    text = f"postgresql://{rest.partition('?')[0]}" + (f"?{query}" if query else "")
    try:
        found = conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        reason = re.sub(r'"[^"]*"', '"…"', str(error).strip())  # libpq quotes what it cannot read, or all
        raise InvalidValueError(f"cannot read the store URL {shown}: {reason}") from None
    least, most = CONNECT_SECONDS
    hosts = str(found.get("host") or "").count(",") + 1
    defaults = {
        "connect_timeout": str(max(least, min(most, round(timeout / 2 / hosts)))),
        # For what is sent and never confirmed, which nobody waits for: the end of a connection, for example.
        "tcp_user_timeout": str(round(1000 * timeout)),
        "application_name": "mnemic",
        "client_encoding": "utf8",  # the server says what it cannot hold; the driver would fail by itself
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
"""Our own options, and how each is read."""
