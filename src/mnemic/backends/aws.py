"""Shared code of AWS back-ends: clients, retries, deadlines, and error mapping."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import aiobotocore.session
import aiohttp
from aiobotocore.config import AioConfig
from botocore import exceptions as boto
from botocore.loaders import Loader

from ..errors import (
    InvalidValueError,
    MnemicError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from ..store.availability import cause_name
from ..store.registry import StoreURL
from ..telemetry.calls import count
from .calls import TIMEOUT, Calls, seconds

ATTEMPTS = 4
"""Maximum number of attempts of a request, with exponential backoff and jitter."""
BROKEN = 2
"""How often a request is repeated if its answer was cut off or invalid."""
CONNECTIONS = 64
"""Maximum number of concurrent requests of a client."""


log: logging.Logger = logging.getLogger("mnemic.store")

Meaning: TypeAlias = tuple[type[MnemicError], str]
"""The class of an error, and a hint."""


def _endpoint(text: str) -> str:
    split = urlsplit(text)
    # Requests are signed: credentials in the endpoint would only be exposed by the client's errors.
    if split.scheme not in ("http", "https") or not split.hostname or "@" in text or split.query:
        raise ValueError(text)
    return text


OPTIONS: dict[str, Callable[[str], object]] = {"region": str, "endpoint": _endpoint, "profile": str, "timeout": seconds}
"""URL options that `connect` reads, for StoreURL.take."""


class Response(dict[str, Any]):
    """Response of a service; a missing required part raises UnreadableStoreError."""

    def __init__(self, parts: dict[str, Any], url: StoreURL, operation: str) -> None:
        super().__init__(parts)
        self._url = url
        self._operation = operation

    def __missing__(self, part: str) -> Any:
        raise UnreadableStoreError(
            f"{self._url}: {_NOT_AWS}; the answer has no {part}", unsure=not self._operation.startswith(_READS)
        )


class Requests:
    """Sends requests to a service, each with a deadline; maps every error except a refusal."""

    def __init__(self, service: str, url: StoreURL, before_send: Any = None, **settings: Any) -> None:
        """Take the arguments of `connect`, and a hook that is called with each request before it is sent."""
        self.url = url
        self.meta: Any = None
        """The driver's metadata of the service and its endpoint."""

        async def client() -> Any:
            made = await connect(service, url, **settings)
            made.meta.events.register(f"response-received.{made.meta.service_model.service_id.hyphenize()}", _note_lost)
            if before_send is not None:
                made.meta.events.register(f"before-send.{service}", before_send)
            self.meta = made.meta
            return made

        timeout = float(url.options.get("timeout", TIMEOUT))
        self.calls: Calls[Any] = Calls(str(url), timeout, client, lambda client: client.close())

    @classmethod
    async def open(cls, service: str, url: StoreURL, **settings: Any) -> Requests:
        """Connect to a service; close the result after use. Raises as `connect` does."""
        requests = cls(service, url, **settings)
        await requests.calls.connected()
        return requests

    async def send(self, operation: str, **parameters: Any) -> Any:
        """Return the answer to a request, with its body as bytes if it has one.

        Repeated if the answer is cut off or invalid; a request that must not run twice guards against it itself.
        Raises ClientError if the service refuses it.
        """
        changes = not operation.startswith(_READS)

        async def attempts(client: Any) -> Any:
            failures = 0
            lost: list[bool] = []
            _lost.set(lost)
            while True:
                try:
                    return await self._attempt(client, operation, parameters)
                except boto.ClientError as error:
                    error.response["Unsure"] = changes and bool(lost)
                    raise
                except Exception as error:  # anything that the driver raises
                    failures += 1
                    lost += [True] * (not isinstance(error, NOT_SENT))
                    if failures > BROKEN or isinstance(error, boto.BotoCoreError):
                        ours = explain(error, self.url)
                        ours.unsure = changes and bool(lost)
                        raise ours from error
                    count("retries", "connection")
                    log.debug("%s: retry %d (%s)", self.url, failures, cause_name(error))
                    await asyncio.sleep(random.uniform(0, 0.05))  # noqa: S311

        return await self.calls.run(attempts, changes=changes)

    async def _attempt(self, client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        try:
            answer = Response(await getattr(client, operation)(**parameters), self.url, operation)
        except boto.ClientError as error:
            # A refusal is an answer, too, unless the service says that it is down.
            if isinstance(explain(error, self.url), StoreUnavailableError):
                self.calls.availability.lost(error)
            else:
                self.calls.availability.answered()
            raise
        if "Body" in answer:
            async with answer["Body"] as body:
                answer["Body"] = await body.read()
        return answer

    async def close(self) -> None:
        await self.calls.close()


async def connect(service: str, url: StoreURL, *, attempts: int | None = None, **settings: Any) -> Any:
    """Return a client of a service; `attempts=1` sends each request once.

    Region, endpoint and profile come from the URL's options or else from the environment, credentials from the
    environment. Raises a StoreError or InvalidValueError.
    """
    options = url.take(**{name: OPTIONS.get(name, str) for name in url.options})
    endpoint = options.get("endpoint")
    timeout: Any = options.get("timeout", TIMEOUT)
    config = AioConfig(
        retries={"mode": "standard", "total_max_attempts": attempts or ATTEMPTS},
        # Half of a call's time, so that there is time for another attempt after a silent connection.
        connect_timeout=timeout / 2,
        read_timeout=timeout / 2,
        max_pool_connections=CONNECTIONS,
        **settings,
    )
    try:
        session = aiobotocore.session.AioSession(profile=options.get("profile"))
        session.register_component("data_loader", _loader())
        # Without TLS no certificates have to be loaded, which would take a thread.
        plain = isinstance(endpoint, str) and endpoint.startswith("http:")
        context = session.create_client(
            service,
            region_name=options.get("region"),
            endpoint_url=endpoint,
            verify=False if plain else None,
            config=config,
        )
        return await context.__aenter__()
    except (boto.BotoCoreError, boto.ClientError) as error:
        raise explain(error, url) from error


_lost: ContextVar[list[bool]] = ContextVar("mnemic-lost")
"""Has an item for each attempt of the running request whose answer was lost."""


def _note_lost(exception: Exception | None = None, parsed_response: Any = None, **_: Any) -> None:
    """Note that an attempt may have been carried out; the driver repeats it."""
    failed = parsed_response is not None and _meaning(parsed_response) is _FAILED
    if failed or (exception is not None and not isinstance(exception, NOT_SENT)):
        _lost.get([]).append(True)


def explain(error: Exception, url: StoreURL | str, meaning: Meaning | None = None) -> MnemicError:
    """Return the Mnemic error for an error of AWS, the network or the driver; it names the URL.

    `meaning` is that of a code of one service.
    """
    if isinstance(error, MnemicError):
        return error
    if isinstance(error, boto.ClientError):
        kind, hint = meaning or _meaning(error.response) or (StoreError, "AWS refused a request")
        ours = kind(f"{url}: {hint} ({error})")
        ours.unsure = bool(error.response.get("Unsure"))
        return ours
    if isinstance(error, boto.BotoCoreError):
        for classes, kind, hint in _CLASSES:
            if isinstance(error, classes):
                return kind(f"{url}: {hint} ({error})")
        return StoreError(f"{url}: a request to AWS failed ({error})")
    cause = f"({type(error).__name__}: {error})"
    if isinstance(error, aiohttp.ClientError | OSError):
        return StoreUnavailableError(f"{url}: {_LOST} {cause}")
    return UnreadableStoreError(f"{url}: {_NOT_AWS} {cause}")


def code_of(error: boto.ClientError) -> str:
    return _code(error.response)


def status_of(error: boto.ClientError) -> int:
    """Return the HTTP status of an error; 0 if unknown."""
    return _status(error.response)


def _meaning(response: Any) -> Meaning | None:
    return _CODES.get(_code(response)) or _STATUSES.get(_status(response))


def _code(response: Any) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def _status(response: Any) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@functools.cache
def _loader() -> Loader:
    """Return a cached loader of the large service descriptions."""
    return Loader(extra_search_paths=[])


_UNKNOWN = "a write may or may not have been done, and can be sent again if it has an id"
_NOT_AWS = f"the endpoint does not speak AWS's protocol; {_UNKNOWN}"
_LOST = f"the connection broke; {_UNKNOWN}"
_DENIED = (StorePermissionError, "these credentials do not permit it")
_WRONG = (StorePermissionError, "the credentials or the region are wrong")
_REGION = (InvalidValueError, "it is in another region; set the option region")
_BUSY = (StoreBusyError, "AWS throttled the requests for too long; try again later")
_FULL: Meaning = (StoreFullError, "a limit of the account or the table is reached")
_GONE = (UnreadableStoreError, "it does not exist in this region")
_FAILED: Meaning = (StoreUnavailableError, "AWS failed; a write may or may not have been done")

NOT_SENT: tuple[type[Exception], ...] = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
    boto.SSLError,
)
"""Failures of a request of which nothing has reached the service."""
_READS = ("get_", "batch_get_", "query", "list_", "describe_", "head_")
"""How the names of operations begin that change nothing."""

_CLASSES: list[tuple[tuple[type[Exception], ...], type[MnemicError], str]] = [
    (
        NOT_SENT,
        StoreUnavailableError,
        "AWS, or the endpoint, cannot be reached",
    ),
    ((boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError), StoreUnavailableError, _LOST),
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.NoAuthTokenError),
        StorePermissionError,
        "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the option profile",
    ),
    (
        (
            boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.UnknownTokenProviderError,
            boto.UnknownCredentialError, boto.RefreshWithMFAUnsupportedError, boto.MetadataRetrievalError,
            boto.SSOError, boto.LoginError,
        ),
        StorePermissionError,
        "the credentials cannot be fetched, or have expired",
    ),
    (
        (
            boto.NoRegionError, boto.InvalidRegionError, boto.UnknownRegionError, boto.ServiceNotInRegionError,
            boto.BaseEndpointResolverError,
        ),
        InvalidValueError,
        "it is not known which region is meant; name it with the option region, or in AWS_REGION",
    ),
    (
        (boto.ProfileNotFound, boto.ConfigParseError, boto.ConfigNotFound, boto.InvalidConfigError),
        InvalidValueError,
        "the configuration of AWS cannot be read",
    ),
    (
        (
            boto.ParamValidationError, boto.ValidationError, boto.InvalidDNSNameError, boto.InvalidHostLabelError,
            boto.EndpointProviderError, boto.UnsupportedS3ArnError,
        ),
        InvalidValueError,
        "it is not a valid name at AWS",
    ),
]  # fmt: skip

_CODES: dict[str, Meaning] = {
    code: meaning
    for meaning, codes in (
        (
            _DENIED,
            "AccessDenied AccessDeniedException AllAccessDisabled AccountProblem NotSignedUp OptInRequired "
            "UnauthorizedException KMSAccessDeniedException",
        ),
        (
            (StorePermissionError, "the credentials have expired; renew them"),
            "ExpiredToken ExpiredTokenException RequestExpired TokenRefreshRequired",
        ),
        (
            _WRONG,
            "AuthFailure IncompleteSignature IncompleteSignatureException InvalidAccessKeyId InvalidClientTokenId "
            "InvalidSignatureException InvalidToken MissingAuthenticationToken MissingAuthenticationTokenException "
            "SignatureDoesNotMatch UnrecognizedClientException",
        ),
        ((StorePermissionError, "the clock of this machine is wrong"), "RequestTimeTooSkewed"),
        (
            _REGION,
            "AuthorizationHeaderMalformed IllegalLocationConstraintException PermanentRedirect TemporaryRedirect "
            "Redirect",
        ),
        (
            _BUSY,
            "BandwidthLimitExceeded PriorRequestNotComplete ProvisionedThroughputExceededException "
            "RequestLimitExceeded RequestThrottled RequestThrottledException RetryableConflictException SlowDown "
            "ThrottledException Throttling ThrottlingException TooManyRequestsException "
            "TransactionConflictException TransactionInProgressException ResourceInUseException OperationAborted",
        ),
        (
            _FULL,
            "ItemCollectionSizeLimitExceededException LimitExceededException ServiceQuotaExceededException "
            "TableQuotaExceeded TooManyBuckets XMinioStorageFull",
        ),
        (_GONE, "NoSuchBucket ResourceNotFoundException TableNotFoundException"),
        (_FAILED, "InternalError InternalFailure InternalServerError ServiceUnavailable RequestTimeout"),
    )
    for code in codes.split()
}
"""Meanings of the error codes of services."""

_STATUSES: dict[int, Meaning] = {
    301: _REGION,
    307: _REGION,
    401: _WRONG,
    403: _DENIED,
    404: _GONE,
    429: _BUSY,
    **dict.fromkeys(range(500, 600), _FAILED),
    507: _FULL,
}
"""Meanings of HTTP statuses, if the code is unknown."""
