"""The sync API of the journal and the learner. Made by tools/generate_sync.py; do not edit."""

# fmt: off
from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..event_loop import Driver, Portal
from ..features.memory_items import MemoryItem
from ..memory_access import AnySession
from ..records import ScopePath
from ..sync import Memory, Scope
from .journal import Act, AsyncJournal, Provenance
from .learning import AsyncLearner, Extracted, Lesson, Summary

__all__ = ["Journal", "Learner", "open_journal", "open_learner"]


class Journal:
    """Journal of agents' writes in one scope."""

    def __init__(self, wrapped: AsyncJournal, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        """Return the class and the path of the scope."""
        return f'<{type(self).__name__} of {self.scope.path!r}>'

    def history(
        self, key: str | None = None, *, agent: str | None = None, session: str | None = None, kind: str | None = None,
        limit: int | None = None,
    ) -> list[Act]:
        """Return acts, oldest first, filtered by key, agent, session and kind.

        The keys of a fact are its subject, predicate and object. `limit` counts back from the newest.
        """
        return self._driver.run(self._async.history(key, agent=agent, session=session, kind=kind, limit=limit))

    def undo(self, act: Act | str, *, by: str = "user", force: bool = False) -> Act:
        """Undo an act, given as such or by its id; return the new act.

        Restores a note's previous value or deletes a new note, deletes an added memory, ends a stated fact now
        and reopens the fact that it replaced. Raises NotFoundError if there is no such act, ConflictError if the
        record has changed since or the act is undone already; `force` overwrites it.
        """
        return self._driver.run(self._async.undo(act, by=by, force=force))

    def undo_last(
        self, limit: int = 1, *, agent: str | None = None, session: str | None = None, by: str = "user",
    ) -> list[Act]:
        """Undo the last `limit` acts, newest first, of all or of an agent or session.

        Skips acts that are undone already.
        """
        return self._driver.run(self._async.undo_last(limit, agent=agent, session=session, by=by))

    def writer(self, what: str, by: Provenance) -> Scope:
        """Return the scope for writing on behalf of an agent: writes carry their provenance and are journaled."""
        return Scope(self._async.writer(what, by), self._driver)


class Learner:
    """Condenses the conversations of a scope.

    `model` is a function, sync or async, from messages or a prompt to text, or a pydantic-ai model. Without one,
    summaries and titles are extracted from the conversation's own sentences, and other methods raise
    InvalidValueError. What it writes names its source message and can be undone.
    """

    def __init__(self, wrapped: AsyncLearner, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.name: str = wrapped.name

    def __repr__(self) -> str:
        """Return the class and the name."""
        return f'<{type(self).__name__} {self.name!r}>'

    def summarize(self, session: AnySession, *, keep: int = 20) -> Summary | None:
        """Update the running summary of a session to cover all but its last `keep` messages; None if there is none.

        The messages stay. Messages added meanwhile are left for the next summary; concurrent summaries build on
        each other.
        """
        return self._driver.run(self._async.summarize(session, keep=keep))

    def extract(self, session: AnySession) -> Extracted:
        """Extract facts from messages of a session that are new since the last call, and store them.

        Each fact is stored as a memory or a triple, with the id of its message and the model's confidence. Raises
        InvalidValueError without a model, or if its answer is invalid.
        """
        return self._driver.run(self._async.extract(session))

    def reflect(self, period: timedelta | tuple[datetime, datetime] = timedelta(days=1)) -> list[MemoryItem]:
        """Derive insights from everything said and remembered in a period; store and return them.

        The period is a duration up to now, or a start and an end. Each insight has its sources in its metadata.
        Raises InvalidValueError without a model, or if its answer is invalid.
        """
        return self._driver.run(self._async.reflect(period))

    def title(self, session: AnySession, *, renew: bool = False) -> str | None:
        """Return the title of a session, created once, or again with `renew`; None while it is empty."""
        return self._driver.run(self._async.title(session, renew=renew))

    def later(self, session: AnySession, *lessons: Lesson) -> None:
        """Learn from a session in the background, and return at once; by default, everything possible.

        Failures are logged, kept in `errors`, and retried when the session is next given.
        """
        self._driver.run(self._async.later(session, *lessons))

    @property
    def waiting(self) -> int:
        """Number of pending background jobs."""
        return self._async.waiting

    @property
    def errors(self) -> list[Exception]:
        """Errors of background jobs, newest last."""
        return self._async.errors

    def drain(self) -> None:
        """Wait until all background jobs are done."""
        self._driver.run(self._async.drain())

    def close(self) -> None:
        """Finish background jobs, and close the memory, if it was opened here."""
        self._driver.close(self._async.close())

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()



def open_journal(scope: Scope) -> Journal:
    """Open the journal of agents' writes in a scope, to list and undo them."""
    return Journal(AsyncJournal(scope._async), scope._driver)


def open_learner(memory: Scope | Memory | str, model: Any = None, *, name: str = "learner") -> Learner:
    """Open a learner for the conversations of a scope, on a background event loop; `close` it after use.

    Arguments and errors are those of `AsyncLearner`.
    """
    return Learner(AsyncLearner(memory, model, name=name), Portal())
