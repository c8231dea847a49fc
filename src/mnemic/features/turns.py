"""Groups messages into turns, selects evictions, and fills prompt windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import check_count, check_text
from ..errors import BudgetError
from ..messages import Message, decode
from ..records import MESSAGE, SUMMARY, Record, Ref, ScopePath
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Scan
from ..tokens import TokenCounter, count_message, tokens_of
from .summary import SUMMARY_ID, SUMMARY_KEY, summary_message

AnyMessage = TypeVar("AnyMessage", bound=Message)

NEWEST = 200
"""How many of the newest messages are searched for the user's last message, and how many are read at once at most."""
TYPICAL_TOKENS = 20
"""A low estimate of a message's tokens: more messages than fit are seldom read."""


class TurnMessage(Struct, frozen=True):
    """A message with its key, position and tokens, and its record if it is stored."""

    key: str
    seq: int
    message: Message
    tokens: int = 0
    record: Record | None = None

    @classmethod
    def of(cls, record: Record, tokens: TokenCounter | None = None) -> TurnMessage:
        """Return the message of a record, with its stored weight unless `tokens` counts it."""
        count = record.weight if tokens is None else tokens_of(record, tokens)
        return cls(record.key, record.seq, decode(record), count, record)


class Turn(Struct):
    """Messages that belong together: a tool call with all its results, or one message."""

    messages: list[TurnMessage]
    unanswered: set[str] = field(default_factory=set)
    over: bool = False
    """Whether a user spoke later, so that no further result will come."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple([message.key for message in self.messages])

    @property
    def records(self) -> list[Record]:
        return [message.record for message in self.messages if message.record is not None]

    @property
    def weight(self) -> int:
        return sum([message.tokens for message in self.messages])


def calls_of(message: Message) -> list[tuple[str, str | None]]:
    """Return the ids that a result may use for each tool call of a message."""
    if not message.tool_calls and message.content.__class__ is not list:
        return []
    calls: list[tuple[str, str | None]] = [(call.id, call.call_id) for call in message.tool_calls]
    return calls + [(block.get("id", ""), None) for block in _blocks(message, "tool_use")]


def answers_of(message: Message) -> list[str]:
    """Return the ids of the calls that a message answers."""
    if message.role != "tool" and message.content.__class__ is not list:
        return []  # A fast path for nearly every message: a window looks at hundreds.
    own = [message.tool_call_id] if message.role == "tool" and message.tool_call_id else []
    return own + [block.get("tool_use_id", "") for block in _blocks(message, "tool_result")]


def is_from_user(message: Message) -> bool:
    """Return whether a message is the user's own, not just a tool result with the user role."""
    return message.role == "user" and not answers_of(message)


def _blocks(message: Message, kind: str) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, list):
        for block in message.content:
            if isinstance(block, dict) and block.get("type") == kind:
                yield block


def group_turns(messages: Sequence[TurnMessage]) -> list[Turn]:
    """Return messages in turns, in the order of their first messages; a result without its call is its own turn."""
    turns: list[Turn] = []
    by_call: dict[str, Turn] = {}
    waiting: list[Turn] = []
    for item in messages:
        answers = answers_of(item.message)
        answered = next((by_call[answer] for answer in answers if answer in by_call), None)
        if answered is not None:
            answered.messages.append(item)
            for ids in calls_of(answered.messages[0].message):
                if not set(answers).isdisjoint(ids):
                    answered.unanswered.discard(ids[0])
            continue
        if is_from_user(item.message):
            for turn in waiting:
                turn.over = True
            waiting.clear()
        turn = Turn([item])
        for call_id, other_id in calls_of(item.message):
            turn.unanswered.add(call_id)
            by_call[call_id] = turn
            if other_id is not None:
                by_call[other_id] = turn
        if turn.unanswered:
            waiting.append(turn)
        turns.append(turn)
    return turns


def evictable(messages: Sequence[TurnMessage], last_user: str | None, *, complete: bool) -> list[Turn]:
    """Return the turns that may be evicted, in order.

    `messages` are the oldest, all of them if `complete`. Never evicted: the message with the key `last_user`;
    system messages; the newest turn; a call that may still be answered.
    """
    turns = group_turns(messages)
    if complete and turns:
        newest = messages[-1].key
        turns = [turn for turn in turns if newest not in turn.keys]
    return [
        turn
        for turn in turns
        if (turn.over or not turn.unanswered)
        and not any(item.key == last_user or item.message.role == "system" for item in turn.messages)
    ]


def messages_that_fit(messages: Sequence[AnyMessage], max_tokens: int, tokens: TokenCounter) -> list[AnyMessage]:
    """Return the messages of a conversation that a window of `max_tokens` contains.

    Messages that are too long for it are skipped.
    """
    items = [TurnMessage(str(n), n, message, count_message(message, tokens)) for n, message in enumerate(messages, 1)]
    required = [item for item in items if item.message.role == "system"]
    required += [item for item in items if is_from_user(item.message)][-1:]
    window = Window(max_tokens, partial=True)
    window.require(required)
    window.offer(reversed(items))
    return cast("list[AnyMessage]", window.messages())


class Window:
    """Fills a token budget with messages, offered newest first.

    A call is included only with all its results, a result only with its call. `interrupted` replaces missing
    results; without it, such a call is skipped. With `partial`, required messages that do not fit, and messages
    longer than the whole budget, are skipped too.
    """

    def __init__(self, budget: int, interrupted: TurnMessage | None = None, *, partial: bool = False) -> None:
        self.left: int = budget
        self.full: bool = False
        self._budget = budget
        self._partial = partial
        self._interrupted = interrupted
        self._required: set[str] = set()
        self._taken: dict[str, TurnMessage] = {}
        self._answers: dict[str, TurnMessage] = {}

    def require(self, messages: Sequence[TurnMessage]) -> None:
        """Reserve space for required messages; raises BudgetError if they do not fit."""
        needed = sum(item.tokens for item in messages)
        if needed > self.left and not self._partial:
            raise BudgetError(
                f"the system message and the user's last message need {needed:,} tokens, "
                f"more than the {self.left:,} of the budget"
            )
        for item in messages:
            self._required.add(item.key)
            if item.tokens <= self.left:
                self._taken[item.key] = item
                self.left -= item.tokens

    def offer(self, messages: Iterable[TurnMessage]) -> None:
        """Add the next older messages that fit; after the first that does not, the window is full."""
        for item in messages:
            if self.full:
                return
            if item.key not in self._required:
                self._offer(item)

    def _offer(self, item: TurnMessage) -> None:
        answers = answers_of(item.message)
        if answers or item.message.role == "tool":
            self._answers.update((answer, item) for answer in answers)
            return
        turn = {item.key: item}
        for ids in calls_of(item.message):
            answer = next((self._answers[name] for name in ids if name in self._answers), None)
            if answer is None:
                if self._interrupted is None:
                    return
                # A placeholder for the missing result, right after its call.
                message = replace(self._interrupted.message, id=f"{item.key}/{ids[0]}", tool_call_id=ids[0])
                answer = replace(self._interrupted, key=message.id, seq=item.seq, message=message)
            turn[answer.key] = answer
        cost = sum(one.tokens for one in turn.values())
        if cost > self.left:
            # A message that no window of this size could hold does not end a partial one.
            self.full = not self._partial or cost <= self._budget
            return
        self.left -= cost
        self._taken |= turn

    @property
    def keys(self) -> set[str]:
        """The keys of the chosen messages."""
        return set(self._taken)

    def messages(self) -> list[Message]:
        """Return the chosen messages, oldest first, system messages before all."""
        # A summary has no position, so it comes right after the system messages.
        ordered = sorted(self._taken.values(), key=lambda item: (item.message.role != "system", item.seq))
        return [item.message for item in ordered]


async def read_window(
    store: Store, scope: ScopePath, tokens: TokenCounter, max_tokens: int, *, interrupted: str | None, partial: bool
) -> list[Message]:
    """Return the newest messages of a session that fit, as `AsyncSession.window` does; raises BudgetError."""
    return (await fill_window(store, scope, tokens, max_tokens, interrupted=interrupted, partial=partial)).messages()


async def fill_window(
    store: Store,
    scope: ScopePath,
    tokens: TokenCounter,
    max_tokens: int,
    *,
    interrupted: str | None = None,
    partial: bool = False,
) -> Window:
    """Fill a window with the newest messages of a session; raises BudgetError."""

    def counted(key: str, message: Message) -> TurnMessage:
        return TurnMessage(key, 0, message, count_message(message, tokens))

    placeholder = None
    if interrupted is not None:
        result = Message("tool", check_text(interrupted, "interrupted"), metadata={"interrupted": True})
        placeholder = counted("@interrupted", result)
    window = Window(check_count(max_tokens, "max_tokens", least=1), placeholder, partial=partial)
    required = [TurnMessage.of(record, tokens) for record in await system_records(store, scope)]
    at_once = min(max(max_tokens // TYPICAL_TOKENS, 20), NEWEST)
    scan = Scan(scope=scope, kinds=(MESSAGE,), reverse=True, limit=at_once)
    page = await store.scan(scan)
    newest = list(page.items)
    while (said := _last_from_user(newest, tokens)) is None and page.cursor is not None and len(newest) < NEWEST:
        page = await store.scan(replace(scan, cursor=page.cursor))
        newest += page.items
    window.require(required if said is None else [*required, said])
    if (text := await read_summary(store, scope)) is not None:
        summary = counted(SUMMARY_ID, summary_message(text))
        if summary.tokens <= window.left:
            window.require([summary])
    while True:
        window.offer(TurnMessage.of(record, tokens) for record in newest)
        if window.full or page.cursor is None:
            return window
        page = await store.scan(replace(scan, cursor=page.cursor))
        newest = list(page.items)


def _last_from_user(newest: Iterable[Record], tokens: TokenCounter) -> TurnMessage | None:
    """Return the first of the newest messages that is the user's own."""
    items = (TurnMessage.of(record, tokens) for record in newest)
    return next((item for item in items if is_from_user(item.message)), None)


async def read_summary(store: Store, scope: ScopePath) -> str | None:
    """Return the running summary of a session, if it has one."""
    (record,) = await store.read([Ref(scope, SUMMARY, SUMMARY_KEY)])
    return record.text if record is not None else None


async def system_records(store: Store, scope: ScopePath) -> list[Record]:
    """Return the system messages of a session as records, oldest first."""
    where = (Condition("labels.role", "eq", "system"),)
    return [record async for record in scan_all(store, Scan(scope=scope, kinds=(MESSAGE,), where=where))]
