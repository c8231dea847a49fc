"""A connection: uvicorn's protocol with limits on headers, on connections, and on clients that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .request_metrics import RequestMetrics
from .settings import Settings

__all__ = ["ClientConnection", "connections"]

LINGER_SECONDS = 2.0
"""How long a body that was refused is still read, so that the client gets to see the answer."""
PLAIN = "HTTP/1.1 {}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 0\r\nconnection: close\r\n{}\r\n"


class _RefusedError(Exception):
    """Ends the parsing of a request that is refused."""


class ClientConnection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *arguments: Any, settings: Settings, figures: RequestMetrics, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settings = settings
        self._figures = figures
        self._in_head = True
        self._has_begun = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            self._refuse("503 Service Unavailable", "connections", "retry-after: 1\r\n")
            return
        self._head_timer = self.loop.call_later(self._settings.header_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all timers."""
        self._end_head_timer()
        self._end_write_timer()
        super().connection_lost(exc)

    # ------------------------------------------------------------ headers

    def data_received(self, data: bytes) -> None:
        """Parse what came, and limit what is not yet a whole head of a request."""
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._head_bytes > self._settings.max_header_bytes:
            self._refuse("431 Request Header Fields Too Large", "headers")
        elif self._head_timer is None and (self._has_begun or self.cycle is None or self.cycle.response_complete):
            # Any data ends the timer of idle connections, also line ends that begin no request.
            self._head_timer = self.loop.call_later(self._settings.header_seconds, self._head_is_late)

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        self._has_begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; httptools leaves white space at the end of its value, which is not part of it."""
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin a request."""
        self._in_head = False
        self._end_head_timer()
        most = self._settings.max_header_bytes
        # One chunk may also hold a body, or the next request: only then is the sum needed.
        if self._head_bytes > most and len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > most:
            self._refuse("431 Request Header Fields Too Large", "headers")
            raise _RefusedError
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request; the next one may follow."""
        self._in_head = True
        self._has_begun = False
        self._head_bytes = 0
        if self.cycle.response_complete:
            self._end_write_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless the connection is closed already."""
        if not self.transport.is_closing():
            self._figures.reject("not_http")
            super().send_400_response(msg)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            return
        self._refuse("408 Request Timeout", "header_time")

    def _refuse(self, status: str, reason: str, header: str = "") -> None:
        self._figures.reject(reason)
        self.transport.write(PLAIN.format(status, header).encode())
        self.transport.close()

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # ------------------------------------------------------------ answers

    def on_response_complete(self) -> None:
        """End an answer; what the client still sends or does not read is limited."""
        super().on_response_complete()
        if self.cycle is not None and self.cycle.more_body and self.cycle.response_complete:
            self._start_write_timer(LINGER_SECONDS)
        elif self.transport.is_closing():
            self._start_write_timer(self._settings.write_seconds)

    def pause_writing(self) -> None:
        """Give the client a time to read what was sent."""
        super().pause_writing()
        self._start_write_timer(self._settings.write_seconds)

    def resume_writing(self) -> None:
        """Go on sending."""
        self._end_write_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once if the client has not read everything."""
        super().timeout_keep_alive_handler()
        self._start_write_timer(self._settings.write_seconds)

    def _start_write_timer(self, seconds: float) -> None:
        self._end_write_timer()
        self._write_timer = self.loop.call_later(seconds, self._abort)

    def _end_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort(self) -> None:
        self._write_timer = None
        self._figures.reject("unread")
        self.transport.abort()


def connections(settings: Settings, figures: RequestMetrics) -> Callable[..., ClientConnection]:
    """Return a function that makes the connections of a server."""

    def connect(*arguments: Any, **options: Any) -> ClientConnection:
        return ClientConnection(*arguments, settings=settings, figures=figures, **options)

    return connect
