"""Learns from conversations: summaries, facts, insights and titles."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from msgspec import field, to_builtins
from msgspec.structs import replace

from ..checks import check_count, check_time, shown
from ..errors import ConflictError, InvalidValueError
from ..features.fact_items import Fact
from ..features.memory_items import MemoryItem
from ..features.sessions import AsyncSession
from ..features.summary import SUMMARY_KEY, Summarize, summary_record, title_of
from ..features.summary import extractive as extractive
from ..features.turns import TurnMessage, group_turns
from ..memory_access import AnyMemory, AnySession, MemoryAccess
from ..messages import Message, decode
from ..records import MEMORY, MESSAGE, PROGRESS, SUMMARY, TITLE, Record, Ref, Value
from ..scope import AsyncScope
from ..store.availability import cause_name
from ..store.protocol import scan_all
from ..store.query import Condition, Put, Scan, Write
from .journal import WRITTEN_BY, AsyncJournal, Provenance
from .model_requests import (
    EXTRACT,
    REFLECT,
    SUMMARIZE,
    TITLE_TASK,
    Asked,
    ExtractedFacts,
    FoundFact,
    Insights,
    Triple,
    ask_for,
    asked,
    model_name,
    numbered,
)

log: logging.Logger = logging.getLogger("mnemic.agents")

Lesson: TypeAlias = Literal["summarize", "extract", "title"]
"""Background jobs after a turn."""
LESSONS: tuple[Lesson, ...] = get_args(Lesson)

AT_ONCE = 40
"""How many messages a model sees at once."""
MATERIAL = 200
"""How many items a reflection considers."""
SPEAKERS = ("user", "assistant")
"""Roles to learn from; tool results are not used."""
ATTEMPTS = 20
"""How often a summary is retried after losing a race."""
MAX_ERRORS = 100
"""Maximum number of errors kept."""


class Summary(Value, frozen=True, kw_only=True):
    """A running summary of a session, and the range of messages that it covers."""

    text: str
    first_seq: int
    last_seq: int
    messages: int


class Extracted(Value, frozen=True, kw_only=True):
    """Facts found in a session, as memories and as links, and the number of rejected ones."""

    facts: list[MemoryItem] = field(default_factory=list)
    links: list[Fact] = field(default_factory=list)
    skipped: int = 0


class AsyncLearner:
    """Condenses the conversations of a scope.

    `model` is a function, sync or async, from messages or a prompt to text, or a pydantic-ai model. Without one,
    summaries and titles are extracted from the conversation's own sentences, and other methods raise
    InvalidValueError. What it writes names its source message and can be undone.
    """

    name: str

    def __init__(self, memory: AnyMemory | MemoryAccess, model: Any = None, *, name: str = "learner") -> None:
        """Raise InvalidValueError for an invalid memory or model."""
        self.memory: MemoryAccess = MemoryAccess.of(memory, name)
        self.name = name
        self._model: Asked | None = None if model is None else asked(model)
        self._model_name = model_name(model)
        self._jobs = BackgroundJobs()

    def __repr__(self) -> str:
        """Return the class and the name."""
        return f"<{type(self).__name__} {self.name!r}>"

    async def summarize(self, session: AnySession, *, keep: int = 20) -> Summary | None:
        """Update the running summary of a session to cover all but its last `keep` messages; None if there is none.

        The messages stay. Messages added meanwhile are left for the next summary; concurrent summaries build on
        each other.
        """
        check_count(keep, "keep")
        chat = await self._open(session)
        ref = Ref(chat.scope, SUMMARY, SUMMARY_KEY)
        for _ in range(ATTEMPTS):
            old = await self._read(ref)
            fresh = await self._after(chat, _summary(old).last_seq if old is not None else 0)
            try:
                for leaving in _batches(_up_to(fresh, keep)):
                    await self._carry_on(chat, old, leaving)
                    old = await self._read(ref)
            except ConflictError:
                continue
            return None if old is None else _summary(old)
        raise ConflictError(f"too many concurrent summaries of session {chat.scope.path!r}", key=SUMMARY_KEY)

    async def _carry_on(self, chat: AsyncSession, old: Record | None, leaving: list[Record]) -> None:
        model: Any = extractive
        if (ask := self._model) is not None:

            async def model(messages: list[Message]) -> str:
                return await ask([Message("system", SUMMARIZE), *messages])

        messages = [decode(record) for record in leaving]
        put = await summary_record(Summarize(model), chat.scope, old, leaving, messages)
        record = replace(put.record, meta=self._written_by(chat, leaving[-1].key))
        write = Write((Put(record, put.if_version),))
        await self.memory.run(chat._store.write(write))

    async def extract(self, session: AnySession) -> Extracted:
        """Extract facts from messages of a session that are new since the last call, and store them.

        Each fact is stored as a memory or a triple, with the id of its message and the model's confidence. Raises
        InvalidValueError without a model, or if its answer is invalid.
        """
        model = self._needed("extract")
        chat = await self._open(session)
        facts: list[MemoryItem] = []
        links: list[Fact] = []
        skipped = 0
        mark = await self._read(Ref(chat.scope, PROGRESS, "extract"))
        done = mark.data["seq"] if mark is not None and isinstance(mark.data, dict) else 0
        version = mark.version if mark is not None else 0
        for fresh in _batches(await self._after(chat, int(done))):
            spoken = [record for record in fresh if record.text and _role(record) in SPEAKERS]
            found = (
                await ask_for(ExtractedFacts, model, EXTRACT, numbered(_lines(spoken))) if spoken else ExtractedFacts()
            )
            skipped += await self._store_found(chat, spoken, found, facts, links)
            data = {"seq": fresh[-1].seq}
            put = Put(Record(scope=chat.scope, kind=PROGRESS, key="extract", data=data), version)
            try:
                (did,) = await self.memory.run(chat._store.write(Write((put,))))
            except ConflictError:
                break  # another process learns from this session, and continues
            version = did.version
        return Extracted(facts=facts, links=links, skipped=skipped)

    async def _store_found(
        self,
        chat: AsyncSession,
        spoken: list[Record],
        found: ExtractedFacts,
        facts: list[MemoryItem],
        links: list[Fact],
    ) -> int:
        """Store what a model found, add it to the lists, and return the number of rejected items."""
        skipped = 0
        items: list[FoundFact | Triple] = [*found.facts, *found.triples]
        for item in items:
            if not 1 <= item.message <= len(spoken):
                skipped += 1  # a fact without a source is dropped
                continue
            source = spoken[item.message - 1]
            confidence = min(1.0, max(0.0, item.confidence))
            writer = self._writer("extract", self._provenance(chat, source.key))
            try:
                if isinstance(item, FoundFact):
                    meta = {"confidence": confidence, "session": chat.name}
                    work = writer.remember(
                        item.text, source=source.key, metadata=meta, valid_from=source.created, duplicates="skip"
                    )
                    facts.append(await self.memory.run(work))
                else:
                    stated = writer.facts.add(
                        item.subject,
                        item.predicate,
                        item.object,
                        single=item.single,
                        valid_from=source.created,
                        source=source.key,
                        confidence=confidence,
                    )
                    links.append(await self.memory.run(stated))
            except InvalidValueError:
                skipped += 1  # an empty name, or one that is far too long
        return skipped

    async def reflect(self, period: timedelta | tuple[datetime, datetime] = timedelta(days=1)) -> list[MemoryItem]:
        """Derive insights from everything said and remembered in a period; store and return them.

        The period is a duration up to now, or a start and an end. Each insight has its sources in its metadata.
        Raises InvalidValueError without a model, or if its answer is invalid.
        """
        model = self._needed("reflect")
        scope = await self.memory.open()
        since, until = _period(period, scope._store.clock())
        material = await self.memory.run(self._material(since, until))
        if not material:
            return []
        found = await ask_for(Insights, model, REFLECT, numbered(_lines(material)))
        stored = []
        for insight in found.insights:
            sources = [material[n - 1] for n in insight.sources if 1 <= n <= len(material)]
            if not sources or not insight.text.strip():
                continue
            meta = {
                "insight": True,
                "since": since.isoformat(),
                "until": until.isoformat(),
                "sources": [[r.scope.path, r.kind, r.key] for r in sources],
            }
            importance = min(10.0, max(0.0, insight.importance))
            writer = self._writer("reflect", self._provenance())
            work = writer.remember(insight.text, importance=importance, metadata=meta, duplicates="merge")
            stored.append(await self.memory.run(work))
        return stored

    async def _material(self, since: datetime, until: datetime) -> list[Record]:
        where = (Condition("created", "ge", since), Condition("created", "le", until))
        found: list[Record] = []
        scope = self.memory.scope
        for kind in (MEMORY, MESSAGE):
            scan = Scan(scope=scope.path, kinds=(kind,), below=True, where=where)
            async for record in scan_all(scope._store, scan):
                said = kind == MEMORY or _role(record) in SPEAKERS
                if record.text and said and not record.meta.get("insight"):
                    found.append(record)
        found.sort(key=lambda record: (record.created or since, record.seq))
        # The newest represent a long period best; memories before messages.
        first = sorted(found, key=lambda r: (r.kind == MEMORY, r.importance or 0, r.created or since))
        chosen = {record.ref for record in first[-MATERIAL:]}
        return [record for record in found if record.ref in chosen]

    async def title(self, session: AnySession, *, renew: bool = False) -> str | None:
        """Return the title of a session, created once, or again with `renew`; None while it is empty."""
        chat = await self._open(session)
        old = await self._read(Ref(chat.scope, TITLE, TITLE))
        if old is not None and not renew:
            return old.title
        page = await self.memory.run(chat._store.scan(Scan(scope=chat.scope, kinds=(MESSAGE,), limit=20)))
        messages = [message for message in map(decode, page.items) if message.role in SPEAKERS]
        made = title_of(messages)
        if made is None:
            return None
        if self._model is not None:
            said = "\n".join(f"{m.name or m.role}: {m.text or ''}"[:500] for m in messages)
            answer = await self._model([Message("system", TITLE_TASK), Message("user", said)])
            made = " ".join(answer.strip().strip("\"'*#").split())[:120] or made
        record = Record(scope=chat.scope, kind=TITLE, key=TITLE, title=made, meta=self._written_by(chat))
        await self.memory.run(chat._store.write(Write((Put(record),))))
        return made

    async def later(self, session: AnySession, *lessons: Lesson) -> None:
        """Learn from a session in the background, and return at once; by default, everything possible.

        Failures are logged, kept in `errors`, and retried when the session is next given.
        """
        able: tuple[Lesson, ...] = LESSONS if self._model is not None else ("summarize", "title")
        for lesson in lessons or able:
            if lesson not in LESSONS:
                raise InvalidValueError(f"there is no lesson {shown(lesson)}: there are {', '.join(LESSONS)}")
            name = session if isinstance(session, str) else session.scope.path
            self._jobs.submit((lesson, name), partial(getattr(self, lesson), session))

    @property
    def waiting(self) -> int:
        """Number of pending background jobs."""
        return self._jobs.waiting

    @property
    def errors(self) -> list[Exception]:
        """Errors of background jobs, newest last."""
        return list(self._jobs.errors)

    async def drain(self) -> None:
        """Wait until all background jobs are done."""
        await self._jobs.drain()

    async def close(self) -> None:
        """Finish background jobs, and close the memory, if it was opened here."""
        await self.drain()
        await self.memory.close()

    async def __aenter__(self) -> AsyncLearner:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _needed(self, what: str) -> Asked:
        if self._model is None:
            raise InvalidValueError(f"{what} needs a model, and this learner has none: give it one as `model`")
        return self._model

    async def _open(self, session: AnySession) -> AsyncSession:
        await self.memory.open()
        return self.memory.session(session)

    async def _read(self, ref: Ref) -> Record | None:
        (record,) = await self.memory.run(self.memory.scope._store.read([ref]))
        return record

    async def _after(self, chat: AsyncSession, seq: int) -> list[Record]:
        """Return the messages after a position, oldest first, without system messages."""

        async def read() -> list[Record]:
            found: list[Record] = []
            scan = Scan(scope=chat.scope, kinds=(MESSAGE,), reverse=True, limit=200)
            async for record in scan_all(chat._store, scan):
                if record.seq <= seq:
                    break
                if "role" not in record.labels:
                    found.append(record)
            return found[::-1]

        return await self.memory.run(read())

    def _provenance(self, chat: AsyncSession | None = None, message: str | None = None) -> Provenance:
        session, scope = (None, None) if chat is None else (chat.name, chat.scope.path)
        return Provenance(agent=self.name, session=session, scope=scope, message=message, model=self._model_name)

    def _written_by(self, chat: AsyncSession, message: str | None = None) -> dict[str, Any]:
        at = self.memory.scope._store.clock().isoformat()
        return {WRITTEN_BY: {**to_builtins(self._provenance(chat, message)), "at": at}}

    def _writer(self, what: str, by: Provenance) -> AsyncScope:
        return AsyncJournal(self.memory.scope).writer(what, by)


def _batches(records: list[Record]) -> Iterator[list[Record]]:
    for start in range(0, len(records), AT_ONCE):
        yield records[start : start + AT_ONCE]


def _role(record: Record) -> Any:
    return record.data.get("role") if isinstance(record.data, dict) else None


def _up_to(records: list[Record], keep: int) -> list[Record]:
    """Return all but the last records, without separating a tool call from its results."""
    entries = [TurnMessage(record.key, record.seq, decode(record)) for record in records]
    by_key = {record.key: record for record in records}
    found: list[Record] = []
    for group in group_turns(entries):
        if len(records) - len(found) - len(group.messages) < keep or (group.unanswered and not group.over):
            break
        found += [by_key[key] for key in group.keys]
    return sorted(found, key=lambda record: record.seq)


def _summary(record: Record) -> Summary:
    data: dict[str, Any] = record.data if isinstance(record.data, dict) else {}
    numbers = {name: data.get(name, 0) for name in ("first_seq", "last_seq", "messages")}
    return Summary(text=record.text or "", **numbers)


def _lines(records: Sequence[Record]) -> list[str]:
    lines = []
    for record in records:
        message = decode(record) if record.kind == MESSAGE else None
        said = f"{message.name or message.role}: " if message is not None else ""
        lines.append(f"({record.created:%Y-%m-%d}) {said}{record.text}" if record.created else f"{said}{record.text}")
    return lines


def _period(period: timedelta | tuple[datetime, datetime], now: datetime) -> tuple[datetime, datetime]:
    if isinstance(period, timedelta):
        return now - period, now
    since, until = period
    if check_time(since, "since") >= check_time(until, "until"):
        raise InvalidValueError(f"a period ends after it begins: {since} to {until}")
    return since, until


class BackgroundJobs:
    """Runs jobs in order, on the event loop on which they were submitted.

    A job submitted again while it waits runs once. If the loop ends first, the remaining jobs run when the worker
    is next used, on another loop.
    """

    def __init__(self) -> None:
        self.errors: deque[Exception] = deque(maxlen=MAX_ERRORS)
        """Errors, newest last."""
        self._waiting: dict[Hashable, Callable[[], Awaitable[object]]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of pending jobs."""
        return len(self._waiting)

    def submit(self, name: Hashable, work: Callable[[], Awaitable[object]]) -> None:
        """Submit a job, and return at once."""
        self._waiting.setdefault(name, work)
        self._start()

    async def drain(self) -> None:
        """Wait until all jobs are done, including new ones."""
        while self._waiting or self._is_busy():
            self._start()
            assert self._task is not None
            await asyncio.wait([self._task])

    def _is_busy(self) -> bool:
        task = self._task
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    def _start(self) -> None:
        if not self._is_busy():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mnemic-learning")

    async def _work(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            work = self._waiting.pop(name)
            try:
                await work()
            except asyncio.CancelledError:
                # The loop ends: another one may run it.
                self._waiting.setdefault(name, work)
                raise
            except Exception as error:
                log.warning("background work failed, and is kept in `errors` (%s)", cause_name(error))
                log.debug("what failed was %s", name)
                self.errors.append(error)
