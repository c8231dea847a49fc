"""Masks passwords, keys and tokens in store URLs for error messages, even in mistyped URLs."""

from __future__ import annotations

import re

HARMLESS = frozenset(
    {
        "branch", "busy_timeout", "connect_timeout", "create", "layout", "lock_timeout", "max_connections",
        "partitions", "pool_max", "pool_min", "prefix", "prepare", "recall", "region", "renew", "schema",
        "ssl_cert_reqs", "sslmode", "statement_timeout", "synchronous", "target_session_attrs", "timeout",
        "tls",
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
