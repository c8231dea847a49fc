"""Group commit: concurrent writers share one transaction, and so one wait for the disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ...errors import StoreError

Result = TypeVar("Result")

BATCH = 1000
"""Maximum number of writes in one transaction, to bound the first caller's wait."""


class Transaction(Protocol):
    """Interface of a started transaction."""

    def save(self) -> None:
        """Set the savepoint for `restore`."""

    def restore(self, error: Exception) -> Exception:
        """Roll back to the savepoint and return the mapped error.

        Raises it if the engine has already rolled back everything.
        """
        ...


Tx = TypeVar("Tx", bound=Transaction)
Work = Callable[[Tx], Any]


class Pending(Generic[Tx]):
    """One caller's write, and its result."""

    __slots__ = ("done", "error", "finish", "result", "work")

    def __init__(self, work: Work[Tx], finish: Callable[[Pending[Tx]], object] | None = None) -> None:
        self.work: Work[Tx] = work
        self.finish: Callable[[Pending[Tx]], object] | None = finish
        self.done: bool = False
        self.result: Any = None
        self.error: BaseException | None = None

    def outcome(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit(Generic[Tx]):
    """Runs writes one after another; the thread with the lock also runs what others have queued."""

    def __init__(self, transact: Callable[[Callable[[Tx], None]], None]) -> None:
        """Take a function that runs work in a transaction: durable when it returns, rolled back if it raises."""
        self._transact = transact
        self._lock = threading.Lock()
        self._queue: deque[Pending[Tx]] = deque()

    def run(self, work: Callable[[Tx], Result]) -> Result:
        """Run `work` in a transaction; return when it is durable."""
        pending: Pending[Tx] = Pending(work)
        self._queue.append(pending)
        while not pending.done:
            self.drain()
        result: Result = pending.outcome()
        return result

    def enqueue(self, pending: Pending[Tx]) -> None:
        """Queue work for the next `drain`, which calls `pending.finish`."""
        self._queue.append(pending)

    def drain(self) -> bool:
        """Run queued writes, at most BATCH, in one transaction; return whether more are queued."""
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
            if batch:
                self._commit(batch)
        for pending in batch:
            if pending.finish is not None:
                pending.finish(pending)
        return bool(self._queue)

    def _commit(self, batch: list[Pending[Tx]]) -> None:
        def work(tx: Tx) -> None:
            if len(batch) == 1:
                batch[0].result = batch[0].work(tx)
            else:
                for pending in batch:
                    self._attempt(pending, tx)

        try:
            self._transact(work)
        except BaseException as error:
            interrupted = not isinstance(error, Exception)
            for pending in batch:
                if pending.error is None:
                    pending.error = StoreError("the write was interrupted") if interrupted else error
            if interrupted:
                raise
        finally:
            for pending in batch:
                pending.done = True

    def _attempt(self, pending: Pending[Tx], tx: Tx) -> None:
        """Run one write of a group in isolation from the others' failures."""
        tx.save()
        try:
            pending.result = pending.work(tx)
        except Exception as error:
            pending.error = tx.restore(error)
