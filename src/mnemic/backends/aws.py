"""What back-ends on AWS share: clients, how long they try, and what AWS's errors mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import aiobotocore.session
from aiobotocore.config import AioConfig
from botocore import exceptions as boto
from botocore.loaders import Loader

from ..errors import (
    InvalidValueError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from ..store.registry import StoreURL

ATTEMPTS = 4
"""How often a request is sent before it is given up, with growing pauses of random length in between."""
CONNECTIONS = 64
"""How many requests a client has under way at the same time."""


def _endpoint(text: str) -> str:
    split = urlsplit(text)
    # Requests are signed: a user or a token in the endpoint would only be shown by the errors of the client.
    if split.scheme not in ("http", "https") or not split.hostname or "@" in text or split.query:
        raise ValueError(text)
    return text


OPTIONS: dict[str, Callable[[str], object]] = {"region": str, "endpoint": _endpoint, "profile": str}
"""The options of a URL that `connect` reads, for StoreURL.take."""


async def connect(service: str, url: StoreURL, *, attempts: int | None = None, **settings: Any) -> Any:
    """Return a client of a service, to be closed with its `close`; `attempts=1` sends each request once.

    Region, endpoint and profile are those of the URL's options, else those of the environment, as are the
    credentials. Raises one of our errors.
    """
    options = url.take(**{name: OPTIONS.get(name, str) for name in url.options})
    endpoint = options.get("endpoint")
    config = AioConfig(
        retries={"mode": "standard", "total_max_attempts": attempts or ATTEMPTS},
        connect_timeout=5,
        read_timeout=30,
        max_pool_connections=CONNECTIONS,
        **settings,
    )
    try:
        session = aiobotocore.session.AioSession(profile=options.get("profile"))
        session.register_component("data_loader", _loader())
        # Without TLS there are no certificates to be read, which takes a thread.
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


def explain(error: Exception, url: StoreURL | str) -> Exception:
    """Return an error of AWS, or of the way to it, as one of ours that names the URL; others as they are."""
    if isinstance(error, boto.ClientError):
        code, status = code_of(error), status_of(error)
        kind, hint = _CODES.get(code) or _STATUSES.get(status) or (StoreError, "AWS refused a request")
        return kind(f"{url}: {hint} ({error})")
    if isinstance(error, boto.BotoCoreError):
        for classes, kind, hint in _CLASSES:
            if isinstance(error, classes):
                return kind(f"{url}: {hint} ({error})")
        return StoreError(f"{url}: a request to AWS failed ({error})")
    return error


def code_of(error: boto.ClientError) -> str:
    """Return the name that a service gives its error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: boto.ClientError) -> int:
    """Return the status of the HTTP answer that told of an error; 0 if it is not known."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@functools.cache
def _loader() -> Loader:
    """Return what reads the descriptions of services, which are large, and remembers them."""
    return Loader(extra_search_paths=[])


_LOST = "the connection broke; a write may or may not have been done, and can be sent again if it has an id"
_BUSY = "AWS has held requests back for too long; try again later"
_DENIED = "these credentials do not permit it"
_EXPIRED = "the credentials have expired; renew them"
_WRONG = "the credentials, or the region, are not right"
_REGION = "it lies in another region; name it with the option region"
_FULL = "a limit of the account or the table is reached"
_FAILED = "AWS failed; a write may or may not have been done"
_GONE = "it does not exist in this region"

_CLASSES: list[tuple[tuple[type[Exception], ...], type[Exception], str]] = [
    (
        (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError),
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
            boto.CredentialRetrievalError,
            boto.TokenRetrievalError,
            boto.UnknownTokenProviderError,
            boto.UnknownCredentialError,
            boto.RefreshWithMFAUnsupportedError,
            boto.MetadataRetrievalError,
            boto.SSOError,
            boto.LoginError,
        ),
        StorePermissionError,
        "the credentials cannot be fetched, or have expired",
    ),
    (
        (
            boto.NoRegionError,
            boto.InvalidRegionError,
            boto.UnknownRegionError,
            boto.ServiceNotInRegionError,
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
            boto.ParamValidationError,
            boto.ValidationError,
            boto.InvalidDNSNameError,
            boto.InvalidHostLabelError,
            boto.EndpointProviderError,
            boto.UnsupportedS3ArnError,
        ),
        InvalidValueError,
        "it cannot be the name of anything at AWS",
    ),
]

_CODES: dict[str, tuple[type[Exception], str]] = {
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccessDeniedException",
            "AllAccessDisabled",
            "AccountProblem",
            "NotSignedUp",
            "OptInRequired",
            "UnauthorizedException",
            "KMSAccessDeniedException",
        ),
        (StorePermissionError, _DENIED),
    ),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),
        (StorePermissionError, _EXPIRED),
    ),
    **dict.fromkeys(
        (
            "AuthFailure",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "InvalidToken",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
        ),
        (StorePermissionError, _WRONG),
    ),
    "RequestTimeTooSkewed": (StorePermissionError, "the clock of this machine is wrong"),
    **dict.fromkeys(
        (
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "PermanentRedirect",
            "TemporaryRedirect",
            "Redirect",
        ),
        (InvalidValueError, _REGION),
    ),
    **dict.fromkeys(
        (
            "BandwidthLimitExceeded",
            "PriorRequestNotComplete",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "RetryableConflictException",
            "SlowDown",
            "ThrottledException",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "TransactionConflictException",
            "TransactionInProgressException",
            "ResourceInUseException",
            "OperationAborted",
        ),
        (StoreBusyError, _BUSY),
    ),
    **dict.fromkeys(
        (
            "ItemCollectionSizeLimitExceededException",
            "LimitExceededException",
            "ServiceQuotaExceededException",
            "TableQuotaExceeded",
            "TooManyBuckets",
            "XMinioStorageFull",
        ),
        (StoreFullError, _FULL),
    ),
    **dict.fromkeys(
        (
            "NoSuchBucket",
            "ResourceNotFoundException",
            "TableNotFoundException",
        ),
        (UnreadableStoreError, _GONE),
    ),
    **dict.fromkeys(
        ("InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "RequestTimeout"),
        (StoreUnavailableError, _FAILED),
    ),
}

_STATUSES: dict[int, tuple[type[Exception], str]] = {
    301: (InvalidValueError, _REGION),
    307: (InvalidValueError, _REGION),
    401: (StorePermissionError, _WRONG),
    403: (StorePermissionError, _DENIED),
    404: (UnreadableStoreError, _GONE),
    429: (StoreBusyError, _BUSY),
    **dict.fromkeys(range(500, 600), (StoreUnavailableError, _FAILED)),
    507: (StoreFullError, _FULL),
}
