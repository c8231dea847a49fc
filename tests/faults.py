"""What goes wrong with a store, and what must be true of it afterwards.

Every fault test has the same three parts: a store behind a `Network`, calls whose outcomes a `Ledger` keeps, and
`Ledger.check`, which compares them with what is stored: acknowledged once and in order, `unsure` at most once, and an
error that is not `unsure` never.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mnemic
from faulty_proxy import FaultyProxy, Mode, Pass, proxy_for
from mnemic import MnemicError
from servers import valkey
from servers.keyserver import new_cluster, own_prefix
from servers.processes import HOST
from servers.stores import REMOTE, empty_store

DURABLE = [*REMOTE, "valkey-cluster", "agentcore"]
"""Every durable back-end across a network."""


class Network:
    """The way to a store, over a proxy for each of its servers; all of them have the same mode."""

    def __init__(self, url: str, through: str, proxies: list[FaultyProxy]) -> None:
        self.url = url
        """The store, past the network."""
        self.through = through
        """The store, across the network."""
        self.proxies = proxies

    def set(self, mode: Mode) -> None:
        """Let the network fail in this way from now on."""
        for proxy in self.proxies:
            proxy.mode = mode

    def drop(self) -> None:
        """Close all connections."""
        for proxy in self.proxies:
            proxy.drop()

    @property
    def requested(self) -> int:
        """How many bytes of requests have passed since the mode was set."""
        return sum(proxy.requested for proxy in self.proxies)

    @property
    def answered(self) -> int:
        """How many bytes of answers have passed since the mode was set."""
        return sum(proxy.answered for proxy in self.proxies)

    @property
    def accepted(self) -> int:
        """How many connections were made."""
        return sum(proxy.accepted for proxy in self.proxies)

    def open(self, option: str, **layers: Any) -> mnemic.Memory:
        """Open the store across the network, with an option of the URL and layers."""
        return mnemic.open(with_option(self.through, option), embedder=None, **layers)


def with_option(url: str, option: str) -> str:
    """Return a URL with one option more."""
    return f"{url}{'&' if '?' in url else '?'}{option}"


@contextmanager
def network(name: str, folder: Path) -> Iterator[Network]:
    """Provide an empty store and the network before it; what takes long, such as making a table, is done already."""
    if name == "valkey-cluster":
        proxies = _cluster()
        with own_prefix(f"redis+cluster://{HOST}:{proxies[0].port}") as url:
            try:
                yield Network(url, url, proxies)
            finally:
                for proxy in proxies:
                    proxy.mode = Pass()
        return
    with empty_store(name, folder) as url, proxy_for(url) as proxy:
        mnemic.open(with_option(url, "timeout=60"), embedder=None).close()
        yield Network(url, proxy.url(url), [proxy])


@functools.cache
def _cluster() -> list[FaultyProxy]:
    """Return the proxies before the nodes of a cluster of their own: nodes tell clients the addresses of the others."""
    nodes = new_cluster(valkey.program())
    proxies = [FaultyProxy(HOST, node.port) for node in nodes]
    for node, proxy in zip(nodes, proxies, strict=True):
        node.ask("CONFIG", "SET", "cluster-announce-port", str(proxy.port))
    ports = {proxy.port for proxy in proxies}
    while any({slots[2][1] for slots in node.ask("CLUSTER", "SLOTS")} != ports for node in nodes):
        time.sleep(0.02)
    return proxies


@dataclass
class Ledger:
    """What a writer has sent, in order, and what it was told."""

    name: str
    acknowledged: list[int] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    errors: list[MnemicError] = field(default_factory=list)

    def keep(self, n: int, call: Callable[[str], object]) -> MnemicError | None:
        """Call with the text of number `n`, and keep the outcome; errors that are not ours are raised."""
        try:
            call(f"{self.name}-{n}")
        except MnemicError as error:
            (self.unsure if error.unsure else self.refused).append(n)
            self.errors.append(error)
            return error
        self.acknowledged.append(n)
        return None

    def add(self, chat: mnemic.Session, n: int, *, once: bool = False) -> MnemicError | None:
        """Add message `n`, with an id or without, and keep the outcome."""
        return self.keep(n, lambda text: chat.add("user", text, once=text if once else None))

    def add_surely(self, chat: mnemic.Session, n: int) -> None:
        """Add message `n`, with an id, until it is acknowledged: what was broken is replaced after some attempts."""
        for _ in range(20):
            failed = self.add(chat, n, once=True)
            if failed is None:
                return
            assert failed.retry, failed
        raise AssertionError(f"{n} is not acknowledged: {self.errors[-1]}")

    def check(self, texts: Iterable[str | None]) -> list[int]:
        """Compare what is stored with what the writer was told; return the stored numbers."""
        own = [text for text in texts if text is not None and text.startswith(f"{self.name}-")]
        stored = [int(text.rpartition("-")[2]) for text in own]
        assert stored == sorted(set(stored)), f"{self.name}: out of order, or twice: {stored}"
        assert set(self.acknowledged) <= set(stored), f"{self.name}: acknowledged, and lost"
        wrong = set(stored) - set(self.acknowledged) - set(self.unsure)
        assert not wrong, f"{self.name}: stored, though the error said that it was not: {sorted(wrong)}"
        return stored


def said(chat: mnemic.Session) -> list[str | None]:
    """Return the texts of a session."""
    return [message.text for message in chat.messages()]


class Writer(threading.Thread):
    """Adds messages and memories until it is told to stop.

    One that is `sure` sends each again, with an id, until it is acknowledged.
    """

    def __init__(self, home: mnemic.Scope, name: str, *, sure: bool, memories: bool = False) -> None:
        super().__init__(name=name, daemon=True)
        self.said = Ledger(name)
        self.remembered = Ledger(name)
        self.sure = sure
        self._home = home
        self._chat = home.session("shared")
        self._memories = memories
        self._ended = threading.Event()
        self._escaped: BaseException | None = None

    def run(self) -> None:
        n = 0
        try:
            while not self._ended.is_set():
                if self._memories and n % 3 == 0:
                    failed = self.remembered.keep(n, lambda text: self._home.remember(text, once=self._id(text)))
                else:
                    failed = self.said.add(self._chat, n, once=self.sure)
                n += not (self.sure and failed)
        except BaseException as error:
            self._escaped = error

    def _id(self, text: str) -> str | None:
        return text if self.sure else None

    @property
    def acknowledged(self) -> int:
        """How many writes were acknowledged."""
        return len(self.said.acknowledged) + len(self.remembered.acknowledged)

    @property
    def errors(self) -> list[MnemicError]:
        """The errors that it was told."""
        return self.said.errors + self.remembered.errors

    def check(self, home: mnemic.Scope) -> None:
        """Compare what is stored with what it was told."""
        stored = self.said.check(said(home.session("shared")))
        if self._memories:
            stored += self.remembered.check(memory.text for memory in home.memories.list())
        if self.sure:
            told = sorted(self.said.acknowledged + self.remembered.acknowledged)
            assert told == list(range(len(told)))
            assert sorted(stored) in (told, [*told, len(told)]), "at most one was stored and not acknowledged"

    def end(self) -> None:
        """Stop after the running call, which must end; raises what is no error of ours."""
        self._ended.set()
        self.join(120)
        assert not self.is_alive(), "a call does not end"
        if self._escaped is not None:
            raise self._escaped
