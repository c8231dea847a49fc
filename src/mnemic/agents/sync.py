"""What agents wrote and learned, sync. Made by tools/generate_sync.py; do not edit."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..driving import Driver, Portal
from ..features.memory_items import MemoryItem
from ..records import ScopePath
from ..sync import Memory, Scope
from .homes import AnySession
from .journal import Act, AsyncJournal, Provenance
from .learning import AsyncLearner, Extracted, Lesson, Summary

__all__ = ["Journal", "Learner", "open_journal", "open_learner"]


class Journal:
    """What agents did in one scope."""

    def __init__(self, twin: AsyncJournal, driver: Driver) -> None:
        self._driver = driver
        self._twin = twin

    @property
    def scope(self) -> ScopePath:
        return self._twin.scope

    def __repr__(self) -> str:
        """Return the class and the path of the scope."""
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    def history(
        self,
        key: str | None = None,
        *,
        agent: str | None = None,
        session: str | None = None,
        kind: str | None = None,
        limit: int | None = None,
    ) -> list[Act]:
        """Return what was done, oldest first, to what has this key, or by this agent, or in this session.

        A fact has its subject, its predicate and its object for keys. `limit` counts back from the newest.
        """
        return self._driver.run(self._twin.history(key, agent=agent, session=session, kind=kind, limit=limit))

    def undo(self, act: Act | str, *, by: str = "user", force: bool = False) -> Act:
        """Take back an act, or the one of this id, and return the act that this is.

        A note has its former value again, or is gone if there was none; what was remembered is forgotten;
        a fact that was stated ends now, and the one that it ended goes on. Raises NotFoundError if there
        is no such act, ConflictError if what it changed was changed again since, or it is undone already;
        with `force` that is overwritten.
        """
        return self._driver.run(self._twin.undo(act, by=by, force=force))

    def undo_last(
        self, limit: int = 1, *, agent: str | None = None, session: str | None = None, by: str = "user"
    ) -> list[Act]:
        """Take back the last `limit` acts, the last first, of all or of an agent or session; not those undone."""
        return self._driver.run(self._twin.undo_last(limit, agent=agent, session=session, by=by))

    def writer(self, what: str, by: Provenance) -> Scope:
        """Return the scope as one who writes it in their name: records say so, and the journal holds it."""
        return Scope(self._twin.writer(what, by), self._driver)


class Learner:
    """Makes of what was said in a scope what is worth keeping of it.

    `model` is a function, sync or async, from messages or a prompt to text, or one of pydantic-ai's models.
    Without one, summaries and titles are made of the conversation's own sentences, and the rest raises
    InvalidValueError. What it writes says which message it is from, and can be undone.
    """

    def __init__(self, twin: AsyncLearner, driver: Driver) -> None:
        self._driver = driver
        self._twin = twin

    @property
    def name(self) -> str:
        return self._twin.name

    def __repr__(self) -> str:
        """Return the class and the name."""
        return f"<{type(self).__name__} {self.name!r}>"

    def summarize(self, session: AnySession, *, keep: int = 20) -> Summary | None:
        """Carry on the running summary of a session up to its last `keep` messages; None if it has none.

        The log stays as it is. Messages that come meanwhile are the next summary's; if another summarises
        meanwhile, its summary is carried on.
        """
        return self._driver.run(self._twin.summarize(session, keep=keep))

    def extract(self, session: AnySession) -> Extracted:
        """Find facts in what was said in a session since the last time, and keep them with their sources.

        Facts are remembered, and stated as links, each with the id of its message and the model's
        confidence. Raises InvalidValueError without a model, or if it does not answer as it is asked to.
        """
        return self._driver.run(self._twin.extract(session))

    def reflect(self, period: timedelta | tuple[datetime, datetime] = timedelta(days=1)) -> list[MemoryItem]:
        """Remember what all that was said and remembered in a period amounts to; return these insights.

        The period is the last so much time, or from one moment to another. Each insight has its sources
        in its metadata. Raises InvalidValueError without a model, or if it does not answer as asked.
        """
        return self._driver.run(self._twin.reflect(period))

    def title(self, session: AnySession, *, renew: bool = False) -> str | None:
        """Return the title of a session, made once, or again with `renew`; None while it is empty."""
        return self._driver.run(self._twin.title(session, renew=renew))

    def later(self, session: AnySession, *lessons: Lesson) -> None:
        """Learn from a session in the background, and return at once; without names, all that can be learned.

        What fails is logged, kept in `errors`, and done again when the session is next given.
        """
        self._driver.run(self._twin.later(session, *lessons))

    @property
    def waiting(self) -> int:
        """How much is to be learned in the background."""
        return self._twin.waiting

    @property
    def errors(self) -> list[Exception]:
        """What went wrong in the background, the newest last."""
        return self._twin.errors

    def drain(self) -> None:
        """Return when all that was given has been learned."""
        self._driver.run(self._twin.drain())

    def close(self) -> None:
        """Learn what is left, and close the memory, if it was opened here."""
        self._driver.close(self._twin.close())

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_journal(space: Scope) -> Journal:
    """Return what agents wrote in a scope, to be listed and undone."""
    return Journal(AsyncJournal(space._twin), space._driver)


def open_learner(memory: Scope | Memory | str | None, model: Any = None, *, name: str = "learner") -> Learner:
    """Return what learns from the conversations of a scope, on an event loop of its own; `close` it.

    Takes and raises what `AsyncLearner` does.
    """
    return Learner(AsyncLearner(memory, model, name=name), Portal())
