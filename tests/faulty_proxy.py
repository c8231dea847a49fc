"""A TCP proxy in front of a real server that stalls, cuts, garbles or slows its answers when told to.

    with FaultyProxy("127.0.0.1", 5432) as proxy:
        connect_to(proxy.host, proxy.port)
        proxy.mode = Stall()          # from now on nothing passes, on open connections too
        proxy.mode = Pass()

The mode may be changed at any moment, and holds for all connections. What the client sends always reaches the
server, except while it refuses, or stalls or cuts with `requests=True`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65536


@dataclass(frozen=True)
class Pass:
    """Pass everything on."""


@dataclass(frozen=True)
class Stall:
    """Keep connections open, accept new ones, and pass no answer on; with `requests`, no request either."""

    requests: bool = False


@dataclass(frozen=True)
class Cut:
    """Close a connection after `after` bytes of answers since the mode was set; `times` of them, or all.

    With `requests`, the bytes of requests count, and the rest does not reach the server.
    """

    after: int = 0
    times: int | None = None
    requests: bool = False


@dataclass(frozen=True)
class Refuse:
    """Give this answer to every request, of HTTP, Redis or one piece, and pass none on."""

    answer: bytes


@dataclass(frozen=True)
class Garbage:
    """Answer `data` instead of what the server says, and hang up unless told to `stay`.

    `after` bytes of answers pass unharmed first.
    """

    data: bytes = b"\xff\xfe\x00garbage\r\n" * 8
    after: int = 0
    stay: bool = False


@dataclass(frozen=True)
class Slow:
    """Pass answers on in pieces of `piece` bytes, with a pause after each."""

    piece: int = 1
    pause: float = 0.01


Mode = Pass | Stall | Cut | Refuse | Garbage | Slow


class FaultyProxy:
    """Listens at a port of its own and passes connections on to a server, as its `mode` says."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode: Mode = Pass()
        self._since = 0
        """How often the mode was set."""
        self._cuts = 0
        self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = "127.0.0.1"
        self.port: int = self._listener.getsockname()[1]
        self.stalled: threading.Event = threading.Event()
        """Set once an answer is held back."""
        self.accepted = 0
        """How many connections were made so far."""
        self.requested = self.answered = 0
        """How many bytes of requests and answers were passed on since the mode was set."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def mode(self) -> Mode:
        """How answers are treated."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        with self._lock:
            self._mode, self._cuts = mode, 0
            self._since += 1
            self.requested = self.answered = 0

    def url(self, url: str) -> str:
        """Return a store's URL with this proxy in place of its server, or of its option `endpoint`."""
        parts = urlsplit(url)
        if "endpoint=" in parts.query:
            options = [
                f"endpoint=http://{self.host}:{self.port}" if option.startswith("endpoint=") else option
                for option in parts.query.split("&")
            ]
            return urlunsplit(parts._replace(query="&".join(options)))
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}{self.host}:{self.port}"))

    def drop(self) -> None:
        """Close all connections, as a server does that goes away."""
        with self._lock:
            for one in self._open:
                _shut(one)

    def close(self) -> None:
        """Close all connections, and listen no more."""
        self._ended = True
        _shut(self._listener)
        self._listener.close()
        self.drop()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(client,), name="proxy", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
        try:
            self._exchange(client, server)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {client, server}
            client.close()
            server.close()

    def _exchange(self, client: socket.socket, server: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        selector.register(client, selectors.EVENT_READ)
        selector.register(server, selectors.EVENT_READ)
        since, passed, asked = self._since, 0, 0
        refused = b""
        """The part of a request that was refused so far."""
        held: list[bytes] = []
        """Answers that came while it stalled: they pass once it no longer does."""
        with selector:
            while not self._ended:
                ready = {key.fileobj for key, _ in selector.select(0.02)}
                mode = self._mode
                if since != self._since:
                    since, passed, asked, refused = self._since, 0, 0, b""
                if client in ready and not (isinstance(mode, Stall) and mode.requests):
                    if not (data := client.recv(CHUNK)):
                        return
                    if isinstance(mode, Refuse):
                        refused += data
                        requests, refused = _whole_requests(refused)
                        client.sendall(mode.answer * requests)
                        continue
                    if (
                        isinstance(mode, Cut)
                        and mode.requests
                        and asked + len(data) > mode.after
                        and self._may_cut(mode)
                    ):
                        server.sendall(data[: max(0, mode.after - asked)])
                        return
                    asked += len(data)
                    self.requested += len(data)
                    server.sendall(data)
                elif client in ready:
                    time.sleep(0.02)
                if server in ready:
                    if not (data := server.recv(CHUNK)):
                        return
                    held.append(data)
                    if isinstance(mode, Stall):
                        self.stalled.set()
                if held and not isinstance(mode, Stall):
                    answer, held = b"".join(held), []
                    if not self._answer(client, answer, mode, passed):
                        return
                    passed += len(answer)
                    self.answered += len(answer)

    def _answer(self, client: socket.socket, data: bytes, mode: Mode, passed: int) -> bool:
        """Send an answer as the mode says; False if the connection is to be closed."""
        if isinstance(mode, Cut) and not mode.requests and passed + len(data) > mode.after and self._may_cut(mode):
            client.sendall(data[: max(0, mode.after - passed)])
            return False
        if isinstance(mode, Garbage) and passed + len(data) > mode.after:
            client.sendall(data[: max(0, mode.after - passed)] + mode.data)
            return mode.stay
        if isinstance(mode, Slow):
            for start in range(0, len(data), mode.piece):
                client.sendall(data[start : start + mode.piece])
                time.sleep(mode.pause)
        else:
            client.sendall(data)
        return True

    def _may_cut(self, mode: Cut) -> bool:
        with self._lock:
            self._cuts += 1
            return mode.times is None or self._cuts <= mode.times


def http_answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """Return an HTTP answer."""
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _whole_requests(data: bytes) -> tuple[int, bytes]:
    """Return how many requests of HTTP or Redis have come whole, and the rest; other data are one request."""
    if data.startswith(b"*"):
        count = 0
        while (end := _end_of_command(data)) is not None:
            count, data = count + 1, data[end:]
        return count, data
    head, blank, body = data.partition(b"\r\n\r\n")
    if b" HTTP/1.1\r\n" not in data:
        return 1, b""
    sizes = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    whole = bool(blank) and (b"100-continue" in head.lower() or len(body) >= int(sizes[0] if sizes else 0))
    return (1, b"") if whole else (0, data)


def _end_of_command(data: bytes) -> int | None:
    """Return where the first command of Redis ends, or None if a part of it is missing."""
    if (position := data.find(b"\r\n")) < 0:
        return None
    arguments, position = int(data[1:position]), position + 2
    for _ in range(arguments):
        if (end := data.find(b"\r\n", position)) < 0:
            return None
        position = end + 2 + int(data[position + 1 : end]) + 2
    return position if position <= len(data) else None


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def proxy_for(url: str) -> FaultyProxy:
    """Return a proxy in front of the server that a store's URL names."""
    parts = urlsplit(url)
    endpoint = next((part[9:] for part in parts.query.split("&") if part.startswith("endpoint=")), "")
    place = urlsplit(endpoint) if endpoint else parts
    assert place.hostname is not None
    assert place.port is not None
    return FaultyProxy(place.hostname, place.port)
