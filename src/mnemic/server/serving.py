"""Runs the server: opens the store, listens, says where, and stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from os import strerror
from traceback import format_tb
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ..checks import printable
from ..errors import InvalidValueError, NotFoundError
from ..layers.audit_settings import Audit
from ..layers.master_key import EncryptionKeys
from ..memory import AsyncMemory, open_async
from ..redaction.config import Redaction
from ..signing import read_signing_keys
from ..store import registry
from ..store.protocol import Capability
from ..telemetry import JSONFormatter, register_prometheus
from .access import no_keys
from .app import build_app
from .connection import connections
from .health import operations
from .limits import Limiter
from .request_metrics import RequestMetrics
from .settings import Settings, is_loopback

__all__ = ["serve"]

Say = Callable[[str], None]


class _TextFormatter(logging.Formatter):
    """Formats a log record as a line; an exception is its class and place, since its message may quote content."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        kind, _, traceback = ei
        return f"{''.join(format_tb(traceback))}{kind.__qualname__}"


class Server(uvicorn.Server):
    """A server that ends streams when it stops, and tells when it listens."""

    def __init__(self, config: uvicorn.Config, limiter: Limiter, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._limiter = limiter
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, end streams, and finish what was accepted."""
        self._limiter.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; a stop that was asked for is no failure."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def listen(settings: Settings) -> socket.socket:
    """Return a socket on the address; raises InvalidValueError if that is not possible."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
        # uvloop sets it by itself. asyncio, which serves where there is no uvloop, does so only for sockets whose
        # protocol is named: there, the body of an answer would wait 40 ms until the client acknowledges the headers.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise InvalidValueError(
            f"cannot listen on {settings.host}:{settings.port}: {_said(error)}; choose another with --host and --port"
        ) from None


def _said(error: OSError) -> str:
    # asyncio and socket add where it happened to `strerror`.
    return str(error) if isinstance(error, socket.gaierror) or error.errno is None else strerror(error.errno)


def serve(
    settings: Settings,
    store: str,
    keys: EncryptionKeys | None,
    say: Say,
    started: Callable[[str], None] | None,
    redact: Redaction | None = None,
) -> None:
    """Serve a store until a signal stops the server; `started` is called with the address of the dashboard."""
    raise_file_limit()
    configure_logging(settings)
    listening = listen(settings)
    with listening, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, store, keys, redact, listening, say, started))


async def _serve(
    settings: Settings,
    store: str,
    keys: EncryptionKeys | None,
    redact: Redaction | None,
    listening: socket.socket,
    say: Say,
    started: Callable[[str], None] | None,
) -> None:
    if settings.metrics:
        register_prometheus(operations())
    opening = open_async(
        store,
        embedder=settings.embedder,
        index=settings.index,
        encryption_key=keys,
        audit=Audit(reads=settings.audit_reads) if settings.audit else None,
        signing_key=read_signing_keys(settings.signing_key_file, settings.signing_key_env),
        history=timedelta(days=settings.history_days) if settings.history_days else "recorded",
        redact=redact,
    )
    new = await _is_new(store)
    if new and settings.exposed and settings.jwt_issuer is None:
        raise no_keys(settings)  # before the store is made
    async with opening as memory:
        app = build_app(memory, settings)
        await app.state.authenticator.prepare()
        open_to_all = not await app.state.authenticator.needs_key()
        address = _address(settings, listening)

        def tell() -> None:
            for line in start_message(settings, memory, address, new=new, open_to_all=open_to_all):
                say(line)
            if started is not None:
                started(f"{address}/dashboard/")

        config = uvicorn_config(app, settings, app.state.figures)
        await Server(config, app.state.limiter, tell).serve([listening])


def uvicorn_config(app: ASGIApp, settings: Settings, figures: RequestMetrics) -> uvicorn.Config:
    """Return the configuration with which uvicorn serves an application within the limits."""
    return uvicorn.Config(
        app,
        http=connections(settings, figures),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=settings.idle_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=settings.stop_seconds,  # type: ignore[arg-type]
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


async def _is_new(store: str) -> bool:
    try:
        await registry.find_existing(store)
    except NotFoundError:
        return True
    return False


def start_message(
    settings: Settings, memory: AsyncMemory, address: str, *, new: bool = False, open_to_all: bool = False
) -> Iterator[str]:
    """Yield the lines that tell what is served, and where."""
    durable = Capability.DURABLE in memory._backend.capabilities
    kept = "durable: what is answered is stored" if durable else "NOT durable: all is lost when the server stops"
    yield f"store      {printable(memory.url)} ({'new, ' if new else ''}{kept})"
    yield f"access     {'everyone on this machine, until there is a key' if open_to_all else 'with a key or a token'}"
    yield f"API        {address}/api/v1"
    if settings.mcp:
        yield f"MCP        {address}/mcp/SCOPE"
    if settings.dashboard:
        yield f"dashboard  {address}/dashboard/"
    if not (is_loopback(settings.host) or settings.tls_cert or settings.trusted_proxies):
        yield "WARNING    keys and content are sent unencrypted: set tls_cert and tls_key, or use a proxy with HTTPS"


def _address(settings: Settings, listening: socket.socket) -> str:
    host = settings.host
    if ":" in host:
        host = f"[{host}]"
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{listening.getsockname()[1]}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def configure_logging(settings: Settings) -> None:
    """Log to stderr, in the form that is wanted."""
    handler = logging.StreamHandler()
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JSONFormatter() if settings.log_format == "json" else text)
    for name, level in (("mnemic", logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def raise_file_limit() -> None:
    """Let the process have as many open files, and so connections, as it may."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))
        except (OSError, ValueError):
            logging.getLogger("mnemic.server").warning("only %d files can be open at a time", soft)
