"""Downloads what frameworks have stored on a server, as JSON lines: a DynamoDB table, and keys of Redis."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

from ..errors import InvalidValueError, MissingExtraError, StoreUnavailableError
from ..features.export import FileOrPath
from ..store.registry import StoreURL

PREFIX = "agent_memory"
"""Prefix of the keys of an Opper agent's memory in Redis, as its document has it."""
_SCHEMES = re.compile(r"(dynamodb|rediss?)://")
_SPECIAL = re.compile(r"[\\*?\[\]^-]")
"""Characters with a meaning in a pattern of Redis."""


def is_on_server(path: FileOrPath) -> bool:
    """Return whether an import is from a server."""
    return isinstance(path, str) and _SCHEMES.match(path) is not None


@contextmanager
def downloaded(url: str) -> Iterator[IO[bytes]]:
    """Provide a temporary file with a line for each item of a table, or for each key.

    Raises InvalidValueError for a bad URL, MissingExtraError, or StoreUnavailableError if the server refuses.
    """
    parsed = StoreURL.parse(url)
    found = _table(parsed) if url.startswith("dynamodb") else _keys(parsed)
    with TemporaryFile() as file:
        for value in found:
            file.write(json.dumps(value, ensure_ascii=False, default=_base64).encode() + b"\n")
        if not file.tell():
            raise InvalidValueError(f"{parsed} has nothing to import")
        file.seek(0)
        yield file


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _table(url: StoreURL) -> Iterator[dict[str, Any]]:
    """Yield the items of a table, with its keys named PK and SK."""
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError:
        raise MissingExtraError("importing a DynamoDB table needs botocore: pip install 'mnemic[dynamodb]'") from None
    options = url.take(region=str, endpoint=str, profile=str)
    name = url.split.netloc
    try:
        session = botocore.session.Session(profile=options.get("profile"))
        client = session.create_client(
            "dynamodb", region_name=options.get("region"), endpoint_url=options.get("endpoint")
        )
        schema = client.describe_table(TableName=name)["Table"]["KeySchema"]
        new = {key["AttributeName"]: "PK" if key["KeyType"] == "HASH" else "SK" for key in schema}
        for page in client.get_paginator("scan").paginate(TableName=name, ConsistentRead=True):
            for item in page["Items"]:
                yield {"Item": {new.get(attribute, attribute): value for attribute, value in item.items()}}
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise StoreUnavailableError(f"{url} cannot be read: {error}") from None


def _keys(url: StoreURL) -> Iterator[dict[str, Any]]:
    """Yield the keys with a prefix, without it, and their values."""
    try:
        import redis
    except ImportError:
        raise MissingExtraError("importing keys of Redis needs redis: pip install 'mnemic[redis]'") from None
    prefix = f"{url.options.get('prefix', PREFIX)}:"
    address = url.split._replace(query="&".join(f"{k}={v}" for k, v in url.options.items() if k != "prefix")).geturl()
    try:
        with closing(redis.Redis.from_url(address)) as client:
            pattern = _SPECIAL.sub(lambda found: f"\\{found[0]}", prefix)
            for key in sorted(client.scan_iter(match=f"{pattern}*", count=1000, _type="string")):
                value: Any = client.get(key)
                if value is not None:
                    yield {
                        "key": key.decode(errors="replace").removeprefix(prefix),
                        "value": value.decode(errors="replace"),
                    }
    except (redis.RedisError, ValueError) as error:
        raise StoreUnavailableError(f"{url} cannot be read: {error}") from None
