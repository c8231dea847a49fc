"""The feed of changes: writes of this process at once, those of other processes by polling, for many readers.

Polling compares the versions of streams and reads the records that are newer. It finds every put, but of deletions only
that there were some, so those come without an id. However many scopes are read, it takes at most a tenth of the time.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime, timedelta
from hashlib import blake2b
from os import urandom
from time import monotonic
from typing import Literal

from msgspec import Struct

from ..checks import from_microseconds, shown, to_microseconds
from ..errors import ClosedError, InvalidValueError, MnemicError
from ..layers.layer import Layer
from ..layers.restricted import UNREAD
from ..memory import AsyncMemory
from ..records import Record, ScopePath, Stream, StreamName
from ..store.protocol import Capability, Store, all_streams, scan_pages
from ..store.query import Delete, Limit, Op, Outcome, Purge, Put, Scan, StreamScan, Write
from ..telemetry.calls import Origin

LOG = logging.getLogger("mnemic.server")
POLL_SECONDS = 1.0
"""Shortest time between two polls of a scope."""
REST = 9
"""How many times as long as a poll the pause after it is, at least."""
KEPT_SECONDS = 60.0
"""How long a scope is polled after its last reader has left, so that one that returns misses nothing."""
QUEUE = 4_096
"""How many changes wait for a reader; one that is slower is dropped."""
DELETIONS = 10_000
"""How many deletions are kept for readers that return."""
MARGIN = timedelta(seconds=10)
"""How far the clocks of writers may differ."""
TOLD = 10_000
"""How many puts are known to have been told, so that a reader that returns does not get them again."""
LOCAL = 10_000
"""How many puts of this process are known in a stream until it is polled."""


class RecordChange(Struct, frozen=True):
    """A record that was written or deleted; without an id, some records of the stream were deleted."""

    number: int
    event: Literal["put", "delete"]
    scope: ScopePath
    kind: str
    id: str | None
    version: int | None


class Position(Struct, frozen=True):
    """A place in the feed: the last change, and the time up to which every put was delivered."""

    number: int | None
    """None if the position is of another process, whose changes had other numbers."""
    time: datetime


class _Known(Struct, frozen=True):
    """The state of a stream when it was polled."""

    version: int = 0
    count: int = 0
    last_seq: int = 0
    created: datetime | None = None


class _Watch:
    """A scope that has readers, or had some a short time ago."""

    def __init__(self, began: int, polled: datetime) -> None:
        self.began = began
        """Number of the last change before it began."""
        self.polled = polled
        """Time up to which the puts of other processes are known."""
        self.readers = 0
        self.ends: float | None = None


class Reader:
    """One reader's queue of changes."""

    def __init__(self, feed: ChangeFeed, scope: ScopePath, kinds: frozenset[str]) -> None:
        self.scope = scope
        self.too_slow: bool = False
        """Whether changes were left out; the reader has to begin again at its last position."""
        self._feed = feed
        self._kinds = kinds
        self._last = feed.newest
        self._complete = feed.complete(scope)
        self._waiting: deque[RecordChange] = deque()
        self._arrived = asyncio.Event()

    def wants(self, change: RecordChange) -> bool:
        """Return whether the reader is to see a change."""
        return change.kind in self._kinds and self.scope.contains(change.scope)

    def offer(self, change: RecordChange) -> None:
        """Queue a change, if the reader is to see it."""
        if self.too_slow or change.kind not in self._kinds:
            return
        if len(self._waiting) >= QUEUE:
            self.too_slow = True
        else:
            self._waiting.append(change)
        self._arrived.set()

    async def take(self, seconds: float) -> list[RecordChange]:
        """Wait for changes, and return those that there are; none if there were none for some time."""
        if not self._waiting and not self.too_slow:
            self._complete = self._feed.complete(self.scope)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        self._arrived.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def position(self, change: RecordChange | None = None) -> Position:
        """Return the position after a change, or before the first."""
        if change is not None:
            self._last = change.number
        return Position(self._last, self._complete)


class ChangeFeed:
    """The changes of a store, for readers of its scopes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shared = Capability.SHARED in store.capabilities
        self._epoch = urandom(8)
        self._secret = urandom(32)
        self.newest: int = 0
        """Number of the newest change."""
        self._read = False
        """Whether there was ever a reader."""
        self._readers: dict[str, set[Reader]] = {}
        self._deletions: deque[RecordChange] = deque()
        self._told: OrderedDict[tuple[str, str, str | None], tuple[int | None, int]] = OrderedDict()
        """Version and number of the newest puts by scope, kind and id."""
        self._forgotten = 0
        self._watches: dict[str, _Watch] = {}
        self._known: dict[StreamName, _Known] = {}
        self._local: dict[StreamName, set[tuple[str, int]]] = {}
        self._local_deletions: Counter[StreamName] = Counter()
        self._polling: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def announcing(self, memory: AsyncMemory) -> AsyncMemory:
        """Return the same memory with its changes announced here."""
        view = copy(memory)
        view._store = ChangeLayer(memory._store, self)
        return view

    def complete(self, scope: ScopePath) -> datetime:
        """Return the time up to which all puts of a scope are in the queues of its readers."""
        watch = self._watches.get(scope.path)
        return self._store.clock() if watch is None or not self._shared else watch.polled

    def to_id(self, position: Position) -> str:
        """Return a position as the id of an event; the number in it is masked, since it counts the changes of all."""
        assert position.number is not None
        nonce = urandom(8)
        number = position.number ^ self._mask(nonce)
        return (self._epoch + nonce + struct.pack(">QQ", number, to_microseconds(position.time))).hex()

    def from_id(self, text: str) -> Position:
        """Return the position that the id of an event stands for; raises InvalidValueError."""
        with suppress(ValueError, OverflowError, struct.error):
            given = bytes.fromhex(text) if len(text) == 64 else b""
            number, time = struct.unpack(">QQ", given[16:])
            same = given[:8] == self._epoch
            return Position(number ^ self._mask(given[8:16]) if same else None, from_microseconds(time))
        raise InvalidValueError(f"Last-Event-ID must be an id of this stream: {shown(text)}")

    def _mask(self, nonce: bytes) -> int:
        return int.from_bytes(blake2b(nonce, key=self._secret, digest_size=8).digest(), "big")

    # ------------------------------------------------------------ changes of this process

    def announce(self, ops: Sequence[Op], outcomes: Sequence[Outcome]) -> None:
        """Tell readers what a write has changed."""
        for op, did in zip(ops, outcomes, strict=False):  # a retry by id may have had fewer operations
            if isinstance(op, Put):
                if self._read and op.record.kind not in UNREAD:
                    name = (op.record.scope.path, op.record.kind)
                    if self._polling is not None and len(local := self._local.setdefault(name, set())) < LOCAL:
                        local.add((op.record.key, did.version))
                    self._publish("put", op.record.scope, op.record.kind, op.record.key, did.version)
            elif isinstance(op, Delete):
                self._deleted(op.ref.scope, op.ref.kind, did.removed)
            elif isinstance(op, Limit):
                self._deleted(op.scope, op.kind, did.removed)
            elif isinstance(op, Purge) and did.count:
                self._deleted(op.scope, op.kind, (None,), did.count)

    def _deleted(self, scope: ScopePath, kind: str, keys: Sequence[str | None], count: int | None = None) -> None:
        if kind in UNREAD or not keys:
            return
        if self._polling is not None:
            self._local_deletions[scope.path, kind] += len(keys) if count is None else count
        for key in keys:
            self._publish("delete", scope, kind, key, None)

    def _publish(
        self, event: Literal["put", "delete"], scope: ScopePath, kind: str, id: str | None, version: int | None
    ) -> None:
        self.newest += 1
        change = RecordChange(self.newest, event, scope, kind, id, version)
        if event == "delete":
            if len(self._deletions) >= DELETIONS:
                self._forgotten = self._deletions.popleft().number
            self._deletions.append(change)
        else:
            name = (scope.path, kind, id)
            self._told[name] = version, change.number
            self._told.move_to_end(name)
            if len(self._told) > TOLD:
                self._told.popitem(last=False)
        if self._readers:
            for path in _upward(scope.path):
                for reader in self._readers.get(path, ()):
                    reader.offer(change)

    # ------------------------------------------------------------ readers

    async def join(self, scope: ScopePath, kinds: Iterable[str]) -> Reader:
        """Begin to read the changes of a scope and below, of some kinds."""
        self._read = True
        if self._shared and scope.path not in self._watches:
            self.newest += 1  # what other processes have done since the positions before is not known
        reader = Reader(self, scope, frozenset(kinds))
        self._readers.setdefault(scope.path, set()).add(reader)
        try:
            watch = await self._watched(scope)
        except BaseException:
            self._remove(reader)
            raise
        watch.readers += 1
        watch.ends = None
        return reader

    def leave(self, reader: Reader) -> None:
        """End to read."""
        self._remove(reader)
        watch = self._watches.get(reader.scope.path)
        if watch is None:
            return
        watch.readers -= 1
        if not watch.readers:
            watch.ends = monotonic() + KEPT_SECONDS
            if not self._shared:
                del self._watches[reader.scope.path]

    def _remove(self, reader: Reader) -> None:
        here = self._readers[reader.scope.path]
        here.remove(reader)
        if not here:
            del self._readers[reader.scope.path]

    def deletions_since(self, reader: Reader, position: Position) -> list[RecordChange] | None:
        """Return the deletions after a position; None if not all are known."""
        began = self._watches[reader.scope.path].began if self._shared else 0
        if position.number is None or position.number < max(self._forgotten, began):
            return None
        return [change for change in self._deletions if change.number > position.number and reader.wants(change)]

    def was_told(self, record: Record, position: Position) -> bool:
        """Return whether a reader at a position, since which all deletions are known, has been told of a put."""
        version, number = self._told.get((record.scope.path, record.kind, record.key), (None, 0))
        return version == record.version and position.number is not None and number <= position.number

    # ------------------------------------------------------------ changes of other processes

    async def _watched(self, scope: ScopePath) -> _Watch:
        """Return the watch of a scope; a new one knows the present versions."""
        async with self._lock:
            watch = self._watches.get(scope.path)
            if watch is None:
                watch = _Watch(self.newest, self._store.clock())
                if self._shared:
                    await self._poll(scope)
                self._watches[scope.path] = watch
        if self._shared and self._polling is None:
            self._polling = asyncio.create_task(self._poll_in_turn())
        return watch

    async def _poll_in_turn(self) -> None:
        try:
            while self._watches:
                for path in list(self._watches):
                    began = monotonic()
                    await self._poll_watch(path)
                    took = monotonic() - began
                    await asyncio.sleep(max(POLL_SECONDS / max(1, len(self._watches)), REST * took))
        finally:
            self._polling = None
            self._local.clear()
            self._local_deletions.clear()

    async def _poll_watch(self, path: str) -> None:
        watch = self._watches.get(path)
        if watch is None:
            return
        if watch.ends is not None and monotonic() > watch.ends:
            del self._watches[path]
            self._known = {name: known for name, known in self._known.items() if self._is_watched(name[0])}
            return
        began = self._store.clock()
        try:
            async with self._lock:
                await self._poll(ScopePath(path))
        except ClosedError:
            self._watches.clear()
        except MnemicError as error:
            LOG.warning("the changes of a scope could not be read (%s); trying again", type(error).__name__)
        else:
            watch.polled = began

    def _is_watched(self, path: str) -> bool:
        return any(above in self._watches for above in _upward(path))

    async def _poll(self, scope: ScopePath) -> None:
        """Compare the streams of a scope with their known versions, and publish the changes."""
        gone = {name for name in self._known if scope.contains(ScopePath(name[0]))}
        async for stream in all_streams(self._store, StreamScan(scope=scope, empty=True)):
            if stream.kind in UNREAD:
                continue
            gone.discard(stream.name)
            now = _Known(stream.version, stream.count, stream.last_seq, stream.created)
            known = self._known.get(stream.name)
            if known == now:
                continue
            if known is not None or self._is_watched(stream.scope.path):
                await self._follow(stream, known or _Known())
            self._known[stream.name] = now
        for name in gone:
            known = self._known.pop(name)
            if known.count > self._local_deletions.pop(name, 0):
                self._publish("delete", ScopePath(name[0]), name[1], None, None)

    async def _follow(self, stream: Stream, known: _Known) -> None:
        """Publish the changes of one stream."""
        local = self._local.pop(stream.name, set())
        deleted = known.count - self._local_deletions.pop(stream.name, 0)
        if known.created is not None and stream.created != known.created:  # it was dropped, and began again
            if deleted > 0:
                self._publish("delete", stream.scope, stream.kind, None, None)
            known, deleted = _Known(), 0
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), after_version=known.version, bodies=False)
        async for page in scan_pages(self._store, scan):
            for record in page:
                deleted += known.last_seq < record.seq <= stream.last_seq
                put = (record.key, record.version)
                if put not in local and put not in self._local.get(stream.name, ()):
                    self._publish("put", stream.scope, stream.kind, record.key, record.version)
            await asyncio.sleep(0)  # readers take what there is
        if later := {put for put in local if put[1] > stream.version}:
            self._local.setdefault(stream.name, set()).update(later)
        if deleted > stream.count:
            self._publish("delete", stream.scope, stream.kind, None, stream.version)


class ChangeLayer(Layer):
    """Announces every write to the feed."""

    def __init__(self, below: Store, feed: ChangeFeed) -> None:
        super().__init__(below)
        self.origin: Origin = getattr(below, "origin", self.origin)
        self._feed = feed

    async def write(self, write: Write) -> list[Outcome]:
        """Pass the write on, and tell readers of it."""
        outcomes = await self._below.write(write)
        self._feed.announce(write.ops, outcomes)
        return outcomes


def _upward(path: str) -> Iterator[str]:
    """Yield the path of a scope and of those above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""
