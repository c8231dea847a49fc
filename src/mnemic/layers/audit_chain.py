"""The layer that numbers and links the entries of the audit log, below the layers that take time.

The settings of a log's stream hold its head: the number and link of its last entry. A write expects the head that its
entries continue, and sets the new one, in the same transaction. Of two writers one finds another head, and tries again
with that; callers do not notice. Within a process, writes continue the heads of writes that are still under way, so
that they can share a commit. What is cached here is never trusted: the store compares it.

The first entry of a chain is also noted in a register, a chain of its own at the root, before a second write is made:
so the removal of a whole chain is found. The register has checkpoints of long chains as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from datetime import datetime
from typing import Any, cast

from msgspec.structs import force_setattr, replace

from ..checks import new_id
from ..errors import SettingsChangedError, StoreBusyError, StoreError
from ..event_loop import ForkAware, notify_on_fork, running_loop
from ..records import AUDIT_KIND, AUDIT_KINDS, CHAINS_KIND, SIGNING_KIND, Record, ScopePath, StreamName
from ..store.confinement import Unconfined
from ..store.protocol import Capability, Nearest, OwnIndex, Store
from ..store.query import Expect, Op, Outcome, Put, StreamScan, Touch, Write
from ..store.retry import ATTEMPTS, pause_after
from ..telemetry.calls import count
from .audit_entry import SALT, ChainKey, Head, linked
from .index_cache import KeyedLock
from .layer import Layer
from .store_signing import StoreSigning

log: logging.Logger = logging.getLogger("mnemic.store")

REGISTER = ScopePath()
"""Scope of the register."""
CHECKPOINT_EVERY = 1000
"""After how many entries of a chain the register has a checkpoint of it."""
MAX_HEADS = 10_000
"""How many heads are cached."""


class _Chain:
    """A chain as far as this process knows it."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.ready = False
        """Whether the head was read, and the chain is in the register."""
        self.resets = 0
        self.lock = threading.Lock()
        """Held during a write by threads without an event loop, which would overtake one another."""


class ChainLayer(Layer, ForkAware):
    """Numbers and links entries of the audit log that pass through it; all else passes unchanged."""

    def __init__(self, below: Store, signing: StoreSigning | None = None) -> None:
        """Take the keys of the links; by default one that is kept in the store below."""
        super().__init__(below)
        self.keys: StoreSigning = signing or StoreSigning(below)
        self._key: ChainKey | None = None
        self.after_fork()
        notify_on_fork(self)

    def after_fork(self) -> None:
        """Start without heads: threads that held locks are gone in a child."""
        self._chains: dict[StreamName, _Chain] = {}
        self._taking = threading.Lock()
        self._starting = KeyedLock()

    async def write(self, write: Write) -> list[Outcome]:
        """Pass a write on, its entries numbered and linked; tried again if another writer was faster.

        Raises StoreBusyError if others were faster each time: nothing was written.
        """
        entries = [op.record for op in write.ops if isinstance(op, Put) and op.record.kind in AUDIT_KINDS]
        if not entries:
            return await self._below.write(write)
        if self._key is None:
            self._key = ChainKey(await self.keys.key())
        name = (entries[0].scope.path, entries[0].kind)
        for attempt in range(1, ATTEMPTS + 1):
            chain = self._known(name)
            if not chain.ready:
                async with self._starting.hold(name):
                    outcomes = None if chain.ready else await self._start(chain, write, entries)
            else:
                outcomes = await self._attempt(chain, write, entries)
            if outcomes is not None:
                return outcomes
            await pause_after(attempt)
        raise StoreBusyError(
            f"an entry of the audit log: gave up after {ATTEMPTS} attempts, since others wrote first each time"
        )

    @property
    def index(self) -> OwnIndex:
        """The index of the store below, if that has one."""
        return cast("Nearest", self._below).index

    async def append(self, scope: ScopePath, kind: str, entries: Sequence[dict[str, Any]]) -> None:
        """Append entries with these fields to a chain."""
        now = self.clock()
        with Unconfined():  # the register is at the root
            await self.write(Write(tuple(Put(new_entry(scope, kind, fields, now)) for fields in entries)))

    def _known(self, name: StreamName) -> _Chain:
        with self._taking:
            if (chain := self._chains.get(name)) is None:
                if len(self._chains) >= MAX_HEADS:
                    self._chains.pop(next(iter(self._chains)))
                chain = self._chains[name] = _Chain()
            return chain

    async def _start(self, chain: _Chain, write: Write, entries: Sequence[Record]) -> list[Outcome] | None:
        """Read the head of a chain, and begin one that is not there with this write; None to try again."""
        scope, kind = entries[0].scope, entries[0].kind
        await self._load(chain, scope, kind)
        outcomes = None
        if chain.head is None:
            outcomes = await self._attempt(chain, write, entries)
            if write.id is not None:
                # Perhaps it was done before, and began nothing.
                await self._load(chain, scope, kind)
        if (head := chain.head) is not None:
            chain.ready = head.number > head.begun or kind == CHAINS_KIND
            if not chain.ready:
                begin = {"operation": "begin", "key": scope.path}
                chain.ready = await self._note(begin, head, required=outcomes is None)
        return outcomes

    async def _load(self, chain: _Chain, scope: ScopePath, kind: str) -> None:
        chain.head = await self.stored_head(scope, kind)

    async def stored_head(self, scope: ScopePath, kind: str) -> Head | None:
        """Return the last entry of a chain; None if there is none."""
        page = await self._below.streams(StreamScan(scope=scope, kinds=(kind,), below=False, empty=True))
        return Head.parse(page.items[0].settings) if page.items else None

    async def _note(self, fields: dict[str, Any], head: Head, *, required: bool = False) -> bool:
        """Append to the register; a failure is logged, unless it is `required` before a change."""
        try:
            await self.append(REGISTER, CHAINS_KIND, [fields | {"heads": [head.shown]}])
        except StoreError as error:
            if required:
                raise
            log.warning("the register of audit chains could not be written yet: %s", error)
            return False
        return True

    async def _attempt(self, chain: _Chain, write: Write, entries: Sequence[Record]) -> list[Outcome] | None:
        """Send the write with its entries linked to the head; None if the stored head is another one."""
        # On an event loop, writes reach the store in the order in which they took their numbers; threads need a lock.
        with nullcontext() if running_loop() is not None else chain.lock:
            with self._taking:
                before, resets = chain.head, chain.resets
                sent, after = self._linked(write, before)
                chain.head = after
            scope, kind = entries[0].scope, entries[0].kind
            try:
                outcomes = await self._below.write(sent)
            except SettingsChangedError as error:
                stored = Head.parse(error.settings)
                if error.settings is not None and stored is None:
                    self._take_back(chain, before, after)
                    raise
                # Without settings, it is this stream or one of the caller's.
                if stored is None and (stored := await self.stored_head(scope, kind)) == before:
                    self._take_back(chain, before, after)
                    raise
                count("retries", "conflict")
                with self._taking:
                    if chain.resets == resets:
                        chain.head, chain.resets = stored, resets + 1
                        chain.ready = chain.ready and stored is not None
                return None
            except BaseException:
                self._take_back(chain, before, after)
                raise
        outcomes = _outcomes_of(write, sent, outcomes)
        last = after.number // CHECKPOINT_EVERY
        if before is not None and before.number // CHECKPOINT_EVERY < last and kind == AUDIT_KIND:
            await self._note({"operation": "checkpoint"}, after)
        return outcomes

    def _take_back(self, chain: _Chain, before: Head | None, after: Head) -> None:
        """Restore the head after a failed write, unless later writes continue it: they fail, and find out."""
        with self._taking:
            if chain.head is after:
                chain.head = before

    def _linked(self, write: Write, before: Head | None) -> tuple[Write, Head]:
        """Return a write with its entries linked and the head expected and set, and the new head."""
        assert self._key is not None
        begun = 0
        head = before
        if head is None:
            begun = sum(isinstance(op, Put) and op.record.kind in AUDIT_KINDS for op in write.ops)
            head = Head(0, new_id()[12:], "", 0)
        ops: list[Op] = []
        for op in write.ops:
            if not isinstance(op, Put) or op.record.kind not in AUDIT_KINDS:
                ops.append(op)
                continue
            scope, kind = op.record.scope, op.record.kind
            if head is before or not head.number:
                ops.append(Expect(scope, kind, settings=None if before is None else before.text))
            record, head = linked(op.record, head, self._key, begun)
            ops.append(put_entry(record))
        ops.append(Touch(scope, kind, None, head.text))
        return replace(write, ops=tuple(ops)), head


async def has_own_log(store: Store, signing: bool) -> bool:
    """Return whether a store has an audit log, and its key is given, `signing`, or kept in it; not that of a server."""
    if Capability.SEARCH in store.capabilities or Capability.RECORDS not in store.capabilities:
        return False
    scan = StreamScan(scope=REGISTER, kinds=(CHAINS_KIND, SIGNING_KIND), below=False)
    kinds = {stream.kind for stream in (await store.streams(scan)).items}
    return CHAINS_KIND in kinds and (signing or SIGNING_KIND in kinds)


_PUT = Put(Record(REGISTER, AUDIT_KIND, "entry"), 0)


def put_entry(record: Record) -> Put:
    """Return the operation that adds an entry which needs no check: its fields were checked before."""
    entry = copy(_PUT)
    force_setattr(entry, "record", record)
    return entry


def new_entry(scope: ScopePath, kind: str, fields: dict[str, Any], time: datetime) -> Record:
    """Return an entry that is not linked yet, with a salt of its own."""
    salt = new_id()
    return Record(scope, kind, salt, data={**fields, SALT: salt}, created=time)


def _outcomes_of(write: Write, sent: Write, outcomes: list[Outcome]) -> list[Outcome]:
    """Return the outcomes of the operations that the caller gave.

    A repeated write has those of the first attempt, which may have had other operations.
    """
    first = next(n for n, op in enumerate(sent.ops) if n == len(write.ops) or op is not write.ops[n])
    return [*outcomes[:first], *outcomes[first + 1 : -1]] if len(outcomes) > first + 1 else outcomes
