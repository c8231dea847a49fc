"""AWS emulators on this machine: DynamoDB, S3 and AgentCore Memory, from the packages ministack and moto."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from .processes import HOST, PATIENCE, Process, answers, free_port, installed, needed, new_folder

DYNAMODB_VARIABLE = "MNEMIC_TEST_DYNAMODB_URL"
S3_VARIABLE = "MNEMIC_TEST_S3_URL"
AGENTCORE_VARIABLE = "MNEMIC_TEST_AGENTCORE_URL"
PYTHON = os.environ.get("MNEMIC_TEST_PYTHON", sys.executable)
"""The Python that has the emulators: they do not fit into every environment with a framework."""
REGION = "us-east-1"
_BUCKET = "mnemic-trials"
_IDENTITY = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


class Emulator:
    """Emulated AWS services on a local port."""

    def __init__(self, name: str, *command: str, environment: Mapping[str, str], port: int) -> None:
        for name, value in _IDENTITY.items():
            os.environ.setdefault(name, value)
        folder = new_folder(name)
        self.endpoint: str = f"http://{HOST}:{port}"
        self.process: Process = Process(
            [PYTHON, *command],
            folder=folder,
            ready=lambda: answers(port),
            environment={"TMPDIR": str(folder), **environment},
        )
        self.process.start()

    @functools.cached_property
    def bucket(self) -> str:
        """Name of a bucket, created on first use."""
        client("s3", {"endpoint": self.endpoint}).create_bucket(Bucket=_BUCKET)
        return _BUCKET


@functools.cache
def ministack() -> Emulator:
    """Return the ministack that all tests share: DynamoDB, S3 and AgentCore Memory."""
    if sys.executable == PYTHON:
        installed("ministack")
    port = free_port()
    environment = {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb,s3,bedrock-agentcore",
        "IOT_MTLS_ENABLED": "0",  # it would listen on all interfaces
        "SFTP_ENABLED": "0",
        "DOCKER_HOST": "unix:///nonexistent",  # it would remove containers of other ministacks
        "LOG_LEVEL": "WARNING",
    }
    program = str(Path(__file__).with_name("ministack_like_aws.py"))
    return Emulator("ministack", program, environment=environment, port=port)


@functools.cache
def moto() -> Emulator:
    """Return the moto that all tests share: DynamoDB and S3, an independent implementation."""
    installed("moto")
    installed("flask_cors")
    port = free_port()
    steady_moto = str(Path(__file__).with_name("steady_moto.py"))
    return Emulator("moto", steady_moto, "-H", HOST, "-p", str(port), environment={}, port=port)


@contextmanager
def empty_table(
    _folder: Path | None = None, *, emulator: Callable[[], Emulator] = ministack, layout: str | None = None
) -> Iterator[str]:
    """Provide the URL of a table that is created when it is opened, and deleted afterwards."""
    name, options = _own(DYNAMODB_VARIABLE) or ("mnemic", _options(emulator()))
    table = f"{name or 'mnemic'}-trial-{uuid4().hex[:12]}"
    extra = {"layout": layout} if layout else {}
    try:
        yield _url("dynamodb", table, {**options, "create": "1", **extra})
    finally:
        dynamodb = client("dynamodb", options)
        with suppress(dynamodb.exceptions.ResourceNotFoundException):
            dynamodb.delete_table(TableName=table)


@contextmanager
def empty_prefix(_folder: Path | None = None, *, emulator: Callable[[], Emulator] = ministack) -> Iterator[str]:
    """Provide the URL of an empty prefix in a bucket; it is emptied afterwards."""
    own = _own(S3_VARIABLE)
    place, options = own or (emulator().bucket, _options(emulator()))
    bucket, _, below = place.partition("/")
    prefix = "/".join(part for part in (below.strip("/"), f"trial-{uuid4().hex[:12]}") if part)
    try:
        yield _url("s3", f"{bucket}/{prefix}", options)
    finally:
        s3 = client("s3", options)
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", ()):
                s3.delete_object(Bucket=bucket, Key=item["Key"])


@contextmanager
def empty_memory(_folder: Path | None = None) -> Iterator[str]:
    """Provide the URL of a new memory without strategies; it is deleted afterwards."""
    _, options = _own(AGENTCORE_VARIABLE) or ("", _options(ministack()))
    control = client("bedrock-agentcore-control", options)
    made = control.create_memory(name=f"mnemic_trial_{uuid4().hex[:12]}", eventExpiryDuration=30)["memory"]
    try:
        until = time.monotonic() + 10 * PATIENCE
        while control.get_memory(memoryId=made["id"])["memory"]["status"] == "CREATING":
            if time.monotonic() > until:
                raise TimeoutError(f"the memory {made['id']} is not ready")
            time.sleep(0.1)
        yield _url("agentcore", made["id"], options)
    finally:
        control.delete_memory(memoryId=made["id"])


def client(service: str, options: Mapping[str, str]) -> Any:
    """Return a client of a service for the region and endpoint in a URL's options."""
    return _client(service, options.get("region", REGION), options.get("endpoint"))


@functools.cache
def _client(service: str, region: str, endpoint: str | None) -> Any:
    session = needed("botocore.session").get_session()
    return session.create_client(service, region_name=region, endpoint_url=endpoint)


def _options(emulator: Emulator) -> dict[str, str]:
    return {"region": REGION, "endpoint": emulator.endpoint}


def _own(variable: str) -> tuple[str, dict[str, str]] | None:
    """Return the location and options of the URL in an environment variable, if it is set."""
    if not (url := os.environ.get(variable)):
        return None
    parts = urlsplit(url)
    return parts.netloc + parts.path, dict(parse_qsl(parts.query))


def _url(scheme: str, place: str, options: Mapping[str, str]) -> str:
    return f"{scheme}://{place}?" + "&".join(f"{name}={value}" for name, value in options.items())
