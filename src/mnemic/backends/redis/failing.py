"""Maps errors of Redis, and tells which commands can be retried."""

from __future__ import annotations

from redis import exceptions as driver

from ...errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)

_OWN = (driver.RedisError, driver.RedisClusterException)
"""Exceptions that the driver raises itself."""


class UnsentError(driver.ConnectionError):
    """The connection failed before the command was sent, so it was certainly not run."""


_REFUSED = (
    UnsentError,
    driver.BusyLoadingError,
    driver.ClusterError,
    driver.TryAgainError,
    driver.ReadOnlyError,
    driver.SlotNotCoveredError,
)
"""Temporary refusals: nothing was done, and a retry may succeed."""

_BY_TEXT: tuple[tuple[str, type[StoreError], str], ...] = (
    ("MISCONF", StoreFullError, "the server cannot save to its disk, and takes no writes"),
    ("NOREPLICAS", StoreUnavailableError, "the server has too few replicas, and takes no writes"),
    ("ACL failure in script", StorePermissionError, "the user may not do this"),
    ("WRONGTYPE", UnreadableStoreError, "the keys with this prefix are not Mnemic's; choose another prefix"),
    ("BUSY", StoreBusyError, "the server is busy with another client's script"),
    ("max number of clients", StoreBusyError, "the server has too many clients"),
    ("Cluster mode is not enabled", UnreadableStoreError, "this is not a cluster: use redis:// instead"),
    ("cluster support disabled", UnreadableStoreError, "this is not a cluster: use redis:// instead"),
    ("compiling script", UnreadableStoreError, "the server is too old: Redis 7.0 or newer, or Valkey, is needed"),
    (
        "certificate verify failed",
        StorePermissionError,
        "the server's certificate is not trusted; name who signed it with ssl_ca_certs",
    ),
    ("DB index", UnreadableStoreError, "the server has no database of this number"),
    ("All slots are not covered", StoreUnavailableError, "parts of the cluster are down"),
)

_BY_CLASS: tuple[tuple[type[BaseException], type[StoreError], str], ...] = (
    (driver.AuthenticationError, StorePermissionError, "the user name or the password is wrong or missing"),
    (driver.AuthenticationWrongNumberOfArgsError, StorePermissionError, "the server takes no user name"),
    (driver.AuthorizationError, StorePermissionError, "access is denied"),
    (driver.NoPermissionError, StorePermissionError, "the user may not do this"),
    (driver.OutOfMemoryError, StoreFullError, "the server's memory is full"),
    (driver.MaxConnectionsError, StoreBusyError, "all connections are in use"),
    (driver.BusyLoadingError, StoreUnavailableError, "the server is still loading its data"),
    (driver.ReadOnlyError, StoreUnavailableError, "this is a replica, which cannot be written; name the primary"),
    (driver.MovedError, UnreadableStoreError, "this is part of a cluster: use redis+cluster:// instead"),
    (driver.AskError, UnreadableStoreError, "this is part of a cluster: use redis+cluster:// instead"),
    (driver.ClusterDownError, StoreUnavailableError, "the cluster, or a part of it, is down"),
    (driver.TryAgainError, StoreUnavailableError, "a part of the cluster is being moved"),
    (driver.ClusterError, StoreUnavailableError, "the cluster redirects from node to node"),
    (driver.SlotNotCoveredError, StoreUnavailableError, "a part of the cluster is down"),
    (driver.TimeoutError, StoreUnavailableError, "the server did not answer in time"),
    (driver.InvalidResponse, UnreadableStoreError, "the server does not speak the Redis protocol"),
    (driver.ConnectionError, StoreUnavailableError, "the server cannot be reached"),
    (driver.RedisClusterException, StoreUnavailableError, "the cluster cannot be reached"),
    (OSError, StoreUnavailableError, "the server cannot be reached"),
)


def explain(url: str, error: BaseException, *, lost: bool = False) -> StoreError:
    """Return the Mnemic error for a driver error; `lost` means that a write may or may not have run."""
    cause = error.__cause__
    if isinstance(error, UnsentError | driver.RedisClusterException) and isinstance(cause, Exception):
        return explain(url, cause, lost=lost)  # these say that something failed, but not why
    kind, hint = _meaning(error)
    if lost:
        hint += "; the write may or may not have been done: with an id it can safely be sent again"
    told = " ".join(str(error).split())
    return kind(f"{url}: {hint} ({told[:300]})" if told else f"{url}: {hint}")


def refused(error: BaseException) -> bool:
    """Return whether a command was certainly not run, so that it can be retried."""
    cause = error.__cause__
    if isinstance(error, driver.RedisClusterException) and isinstance(cause, Exception):
        return refused(cause) or broken(cause)  # no node could even tell which node to ask
    return isinstance(error, _REFUSED)


def broken(error: BaseException) -> bool:
    """Return whether the connection broke during a command, which may have run."""
    return type(error) in (driver.ConnectionError, driver.TimeoutError) or not isinstance(error, _OWN)


def _meaning(error: BaseException) -> tuple[type[StoreError], str]:
    told = str(error)
    for text, kind, hint in _BY_TEXT:
        if text in told:
            return kind, hint
    for cls, kind, hint in _BY_CLASS:
        if isinstance(error, cls):
            return kind, hint
    return StoreError, "the server failed"
