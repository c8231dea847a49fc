"""One run of an agent: the memory in its prompt, and what is stored, when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart

from ..checks import check_count, check_number, new_id
from ..errors import ConflictError, InvalidValueError
from ..event_loop import running_loop
from ..features.context import hits_that_fit, lines_of
from ..features.hits import Hit
from ..features.memory_items import count_use
from ..features.notes import NoteInfo, to_info
from ..features.sessions import AsyncSession
from ..features.summary import quoted
from ..memory_access import AnySession, MemoryAccess
from ..messages import AgentCall, Message, ToolCall
from ..records import ARCHIVED, MEMORY, MESSAGE, NOTE, Ref, Value
from ..scope import AsyncScope
from ..store.availability import optional
from ..store.query import Scan
from ..tokens import TokenCounter
from .conversion import from_pydantic_ai, from_request_part, from_response, to_pydantic_ai

INTERRUPTED = "No result: this call was interrupted, or is still under way. It may or may not have had its effect."
"""Placeholder for a missing tool result in a prompt."""
NOTES = "Your notes, by key (read_note shows what is in one):"
"""Heading of the list of notes."""
MAX_NOTES = 100
"""Maximum number of notes that are listed."""


AgentCalls: TypeAlias = Callable[[ToolCall], AgentCall | None]
"""Maps tool calls to agent calls, if they are such."""


class CallContext(Struct, frozen=True, kw_only=True):
    """The session of a call, its caller, the caller's tool call, and the nesting depth."""

    session: AnySession | None = None
    speaker: str | None = None
    call: AgentCall | None = None
    depth: int = 0
    run_id: str | None = None
    """Prefix of the stored messages' ids, by default the run's own id."""
    within: tuple[Ref, ...] = ()
    """Messages of the callers' current turns."""


class RunMemory:
    """Reads from and writes to the session during one run.

    A message is stored as soon as it is complete: the user's before the model is called, the model's before its
    tools run, a tool result before the model is called again.
    """

    def __init__(
        self,
        memory: MemoryAccess,
        session: AsyncSession,
        *,
        agent: str | None = None,
        run_id: str | None = None,
        thinking: bool = False,
        caller: CallContext | None = None,
        agent_calls: AgentCalls | None = None,
    ) -> None:
        self.memory = memory
        self.session = session
        self.agent = agent
        self.run_id: str = run_id or new_id()
        self.prompt_id: str | None = None
        """Id of the user's message."""
        self.asked_in: dict[str, str] = {}
        """Ids of the messages with tool calls, by tool call id."""
        self._thinking = thinking
        self.caller: CallContext = CallContext() if caller is None else caller
        self._agent_calls = agent_calls
        self._messages: Sequence[ModelMessage] = ()
        self._kept: dict[int, Any] = {}
        """Stored parts, by identity: a run may copy the message around them."""
        self._unsaved: list[Message] = []
        self._count = 0
        self._open: dict[str, str] = {}
        """Tool calls without a stored result, by id."""
        self._history: list[ModelMessage] | None = None
        self._block: ModelRequest | None = None
        self.shown: PromptMemory | None = None
        self.max_answer: int = Budget().answer
        """Maximum number of tokens in a memory tool's result."""
        self._stored: list[str] = []
        self._started = False

    @property
    def begun(self) -> bool:
        """Whether the memory for the prompt has been determined."""
        return self._history is not None

    @property
    def current(self) -> tuple[Ref, ...]:
        """Stored messages of the turn being answered, and of its callers' turns."""
        memory = self.memory.scope.path
        own = (Ref(self.session.scope, kind, id) for id in self._stored for kind in (MESSAGE, ARCHIVED))
        return tuple(ref for ref in (*self.caller.within, *own) if memory.contains(ref.scope))

    async def begin(self, query: str, budget: Budget, messages: Sequence[ModelMessage]) -> None:
        """Determine the memory for the prompt, and store the incoming messages.

        A run with its own history gets no other.
        """
        before = [message for message in messages if message.run_id != self.run_id]
        given = from_pydantic_ai(before) if before else None
        self._messages = messages
        self._unsaved += self._new()
        self.max_answer = budget.answer

        async def both() -> PromptMemory:
            await self._start()
            # The prompt is stored after the search, so that it does not find itself.
            shown = await show(self.memory.scope, self.session, query, budget, given, self.current)
            await self._save()
            return shown

        shown = await self.memory.run(both())
        self._history = to_pydantic_ai(shown.turns, agent=self.agent)
        self._block = None if shown.block is None else ModelRequest([UserPromptPart(shown.block)])
        self.shown = shown

    def prompt(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return the messages for the model: earlier turns, recalled memory, and the run's messages."""
        history = self._history or []
        ours = {id(message) for message in (*history, self._block)}
        # Another history processor may have inserted this message into the run's history.
        rest = [message for message in messages if id(message) not in ours]
        first = next((n for n, m in enumerate(rest) if m.run_id == self.run_id), len(rest))
        block = [] if self._block is None else [self._block]
        return [*history, *rest[:first], *block, *rest[first:]]

    async def keep(self, messages: Sequence[ModelMessage] | None = None) -> None:
        """Store new messages of the run."""
        if messages is not None:
            self._messages = messages
        self._unsaved += self._new()
        await self._saved()

    async def end(self, *, failed: bool) -> None:
        """Store the remaining messages; unanswered tool calls of a failed run get a result that says so."""
        self._unsaved += self._new()
        if failed:
            for call, name in self._open.items():
                flags = self._stamped({"interrupted": True})
                self._unsaved.append(Message("tool", INTERRUPTED, self._id(), name, tool_call_id=call, metadata=flags))
            self._open = {}
        await self._saved()
        # What the store has confirmed during the run need not be read again.
        if self.session._settings.view.settings.retention == "single_run" or not self._started:
            await self.memory.run(self._clear())

    async def _start(self) -> None:
        """Clear a single-run session before the run first reads or writes it."""
        if not self._started:
            await self._clear()
            self._started = True

    async def _clear(self) -> None:
        if await self.session._retention() == "single_run":
            await self.session._expire()

    async def _saved(self) -> None:
        async def saving() -> None:
            await self._start()
            await self._save()

        if self._unsaved:
            await self.memory.run(saving())

    async def _save(self) -> None:
        """Store pending messages; a retry stores nothing twice."""
        saving = list(self._unsaved)
        known = {message.id for message in saving}
        try:
            await self.session.add_many(saving)
            self._stored += known
        except ConflictError:
            # An earlier run with this id took another course.
            anew = {id: f"{id}-{new_id()}" for id in known}
            self.asked_in = {call: anew.get(id, id) for call, id in self.asked_in.items()}
            self.prompt_id = anew.get(self.prompt_id or "", self.prompt_id)
            await self.session.add_many([replace(message, id=anew[message.id]) for message in saving])
            self._stored += anew.values()
        # A cancelled run may have added more meanwhile.
        self._unsaved = [message for message in self._unsaved if message.id not in known]

    def _new(self) -> list[Message]:
        new: list[Message] = []
        for message in self._messages:
            if message.run_id != self.run_id:
                continue
            parts = [part for part in message.parts if id(part) not in self._kept]
            if not parts:
                continue
            self._kept.update((id(part), part) for part in parts)
            if isinstance(message, ModelResponse):
                # A copied answer that marks the end of the run is not a second answer.
                if len(parts) == len(message.parts):
                    new += map(self._said, from_response(message, thinking=self._thinking))
            else:
                new += [self._heard(made) for part in parts for made in from_request_part(part)]
        return new

    def _said(self, message: Message) -> Message:
        """Return the stored form of a model's message."""
        made = replace(message, id=self._id(), name=self.agent, metadata=self._stamped(message.metadata))
        for call in message.tool_calls:
            self.asked_in[call.id] = made.id
            self._open[call.id] = call.name
        if self._agent_calls is not None:
            calls = [found for call in message.tool_calls if (found := self._agent_calls(call))]
            made = replace(made, agent_calls=calls)
        return made

    def _heard(self, message: Message) -> Message:
        """Return the stored form of an incoming message."""
        made = replace(message, id=self._id(), metadata=self._stamped(message.metadata))
        if message.role == "tool":
            self._open.pop(message.tool_call_id or "", None)
        elif self.prompt_id is None:
            self.prompt_id = made.id
            made = replace(made, name=message.name or self.caller.speaker)
            if self.caller.call is not None:
                made = replace(made, agent_calls=[self.caller.call])
        return made

    def _stamped(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return metadata if self.agent is None else {"agent": self.agent, **metadata}

    def _id(self) -> str:
        self._count += 1
        return f"{self.caller.run_id or self.run_id}-{self._count}"


class Budget(Value, frozen=True, kw_only=True):
    """How much memory an agent's prompt contains.

    `max_tokens` is the total: a `share` for notes and recalled texts, at most `recall` of them with a score of at
    least `min_score`, and the rest for the newest turns. A memory tool's result has at most `answer` tokens.
    """

    max_tokens: int = 4_000
    share: float = 0.3
    recall: int = 8
    min_score: float = 0.1
    notes: bool = True
    answer: int = 1_500

    def __post_init__(self) -> None:
        """Raise InvalidValueError for invalid numbers, or a share outside 0 to 1."""
        check_count(self.max_tokens, "max_tokens", least=1)
        check_count(self.recall, "recall")
        check_count(self.answer, "answer", least=100)
        if not 0 <= check_number(self.share, "share") <= 1:
            raise InvalidValueError(
                f"share, the part of the budget for notes and recall, must be from 0 to 1: {self.share}"
            )


class PromptMemory(Struct, frozen=True):
    """Memory in a prompt: turns, and a text with the rest, or None."""

    turns: list[Message]
    block: str | None
    hits: list[Hit]


async def show(
    scope: AsyncScope,
    session: AsyncSession,
    query: str,
    budget: Budget,
    given: list[Message] | None = None,
    exclude: Sequence[Ref] = (),
) -> PromptMemory:
    """Return the memory for a query; if turns are `given`, no others are included.

    Records in `exclude` are not recalled.
    """
    aside = int(budget.max_tokens * budget.share)

    async def window() -> list[Message]:
        if given is not None:
            return given
        # A single turn that is too long must not block the conversation.
        room = max(1, budget.max_tokens - aside)
        return await session.window(room, interrupted=INTERRUPTED, partial=True)

    async def notes() -> tuple[list[NoteInfo], int]:
        return await _newest_notes(scope) if budget.notes and aside else ([], 0)

    async def found() -> list[Hit]:
        wanted = budget.recall and aside and query.strip()
        return (
            await scope.recall(query, budget.recall, min_score=budget.min_score, uses=False, exclude=exclude)
            if wanted
            else []
        )

    if running_loop() is None:
        recent, (entries, count), hits = await window(), await notes(), await found()
    else:
        recent, (entries, count), hits = await asyncio.gather(window(), notes(), found())
    tokens = scope._tokens
    listed, cost = _listed(entries, count, tokens, aside // 2)
    picked = hits_that_fit(hits, recent, session, tokens, aside - cost) if hits else []
    if used := [hit.record.ref for hit in picked if hit.record.kind == MEMORY]:
        await count_use(scope._store, used)
    lines = [*listed, *(lines_of(picked) if picked else [])]
    return PromptMemory([] if given is not None else recent, quoted(lines) if lines else None, picked)


async def _newest_notes(scope: AsyncScope) -> tuple[list[NoteInfo], int]:
    """Return the newest notes, without values, and the total number of notes."""
    scan = Scan(scope=scope.path, kinds=(NOTE,), reverse=True, limit=MAX_NOTES, bodies=False)
    with optional():
        page = await scope._store.scan(scan)
        count = len(page.items) if page.cursor is None else (await scope.notes.usage())[0]
    return [to_info(record) for record in page.items], count


def _listed(entries: list[NoteInfo], count: int, tokens: TokenCounter, room: int) -> tuple[list[str], int]:
    """Return the list of notes, most recently written first, and its token cost."""
    if not entries:
        return [], 0
    lines = [NOTES]
    left = room - tokens.count(quoted([NOTES])) - 8
    newest = sorted(entries, key=lambda entry: entry.updated, reverse=True)
    for entry in newest:
        said = f"- {entry.key}" + (f": {' '.join(entry.description.split())}" if entry.description else "")
        cost = tokens.count(said) + 1
        if cost > left:
            break
        left -= cost
        lines.append(said)
    if (more := count - len(lines) + 1) > 0:
        lines.append(f"- and {more:,} more: list_notes shows all")
    return lines, room - left
