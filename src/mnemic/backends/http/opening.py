"""Opens stores on a Mnemic server by their URL; docs/backends.md lists the options."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

from msgspec import json

from ...errors import InvalidValueError, StoreError, StorePermissionError
from ...store.diagnosis import diagnosed_by
from ...store.registry import Backend, StoreURL
from ...store.wire import PATH, ServedStore
from ..calls import bounded_number, seconds
from .client import ConnectionOptions, HttpClient
from .on_failure import EmptyOnFailure
from .store import HttpStore

KEY_VARIABLE = "MNEMIC_API_KEY"
"""Environment variable with the API key, unless the URL has one or names another variable."""
TIMEOUT = 3.0
CONNECT_TIMEOUT = 1.0
CONNECTIONS = 50
FAILURES = 3
"""How many failures in a row open the circuit breaker."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")

log: logging.Logger = logging.getLogger("mnemic.store")

decode_served: Callable[[bytes], ServedStore] = json.Decoder(ServedStore).decode


async def open_store(url: StoreURL) -> HttpStore:
    """Ask the server about its store and return it; raises InvalidValueError, or a StoreError."""
    connecting, empty = connection(url)
    client = HttpClient(connecting)
    served = None
    try:
        served = await client.get(PATH, decode_served)
    except StoreError as error:
        if not empty or isinstance(error, StorePermissionError):
            await client.close()
            raise
    except BaseException:
        await client.close()
        raise
    return (EmptyOnFailure if empty else HttpStore)(client, served)


def connection(url: StoreURL) -> tuple[ConnectionOptions, bool]:
    """Return how to connect, and whether failures are answered as by an empty store."""
    secure = url.scheme == "https"
    given: dict[str, Any] = url.take(
        timeout=seconds,
        connect_timeout=seconds,
        max_connections=bounded_number(1, 10_000),
        breaker=bounded_number(0, 1_000_000),
        on_failure={"error": False, "empty": True}.__getitem__,
        api_key_env=str,
        **({"ssl_ca_certs": str} if secure else {}),
    )
    if not url.split.hostname:
        raise InvalidValueError(f"{url} names no server: write {url.scheme}://host:7676/")
    timeout = given.get("timeout", TIMEOUT)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    headers["User-Agent"] = f"mnemic/{version('mnemic')}"
    if (key := _key(url, given.get("api_key_env"))) is not None:
        headers["Authorization"] = f"Bearer {key}"
        if not secure and url.split.hostname not in LOOPBACK:
            log.warning("%s: the API key is sent without encryption: use https://", url)
    host = url.split.netloc.rpartition("@")[2]
    connecting = ConnectionOptions(
        url=str(url),
        address=f"{url.scheme}://{host}{url.split.path.rstrip('/')}",
        headers=headers,
        timeout=timeout,
        connect_timeout=given.get("connect_timeout", min(CONNECT_TIMEOUT, timeout / 2)),
        connections=given.get("max_connections", CONNECTIONS),
        failures=given.get("breaker", FAILURES),
        ssl=_trusted(url, given["ssl_ca_certs"]) if "ssl_ca_certs" in given else True,
    )
    return connecting, given.get("on_failure", False)


def _key(url: StoreURL, variable: str | None) -> str | None:
    """Return the API key: of the URL, of the variable that it names, or of MNEMIC_API_KEY; never shown."""
    if url.split.username and url.split.password is None:
        raise InvalidValueError(f"{url}: an API key in the URL is its password: {url.scheme}://:KEY@host")
    if variable is not None:
        if not os.environ.get(variable):
            raise InvalidValueError(f"{url}: the environment variable that api_key_env names is not set")
        return _checked(url, os.environ[variable])
    key = unquote(url.split.password) if url.split.password else os.environ.get(KEY_VARIABLE)
    return _checked(url, key) if key else None


def _checked(url: StoreURL, key: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidValueError(f"{url}: the API key has characters that no key has")
    return key


def _trusted(url: StoreURL, path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise InvalidValueError(f"{url}: cannot read ssl_ca_certs ({error.strerror})") from None


BACKEND = Backend(open=open_store, diagnose=diagnosed_by(__package__))
