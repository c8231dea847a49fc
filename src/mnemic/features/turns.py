"""Groups messages into turns, selects evictions, and fills prompt windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import check_count, check_text
from ..errors import BudgetError
from ..messages import Message, decode
from ..records import Record, Ref, ScopePath
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Scan
from ..tokens import TokenCounter, count_message, tokens_of
from .kinds import MESSAGE, SUMMARY
from .summary import SUMMARY_ID, SUMMARY_KEY, summary_message

AnyMessage = TypeVar("AnyMessage", bound=Message)

NEWEST = 200
"""How many of the newest messages are searched for the user's last message."""


class Entry(Struct, frozen=True):
    """A message with its key, position and tokens."""

    key: str
    seq: int
    message: Message
    tokens: int = 0


class Group(Struct):
    """Messages that belong together: a tool call with all its results, or one message."""

    entries: list[Entry]
    unanswered: set[str] = field(default_factory=set)
    over: bool = False
    """Whether a user spoke later, so that no further result will come."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the messages."""
        return tuple(entry.key for entry in self.entries)


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


def spoken(message: Message) -> bool:
    """Return whether a message is the user's own, not just a tool result with the user role."""
    return message.role == "user" and not answers_of(message)


def _blocks(message: Message, kind: str) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, list):
        for block in message.content:
            if isinstance(block, dict) and block.get("type") == kind:
                yield block


def grouped(entries: Sequence[Entry]) -> list[Group]:
    """Return messages in groups, in the order of their first messages.

    A result without its call is a group of its own.
    """
    groups: list[Group] = []
    asked: dict[str, Group] = {}
    waiting: list[Group] = []
    for entry in entries:
        message = entry.message
        answers = answers_of(message)
        home = next((asked[answer] for answer in answers if answer in asked), None)
        if home is not None:
            home.entries.append(entry)
            for ids in calls_of(home.entries[0].message):
                if not set(answers).isdisjoint(ids):
                    home.unanswered.discard(ids[0])
            continue
        if spoken(message):
            for group in waiting:
                group.over = True
            waiting.clear()
        group = Group([entry])
        for call_id, other_id in calls_of(message):
            group.unanswered.add(call_id)
            asked[call_id] = group
            if other_id is not None:
                asked[other_id] = group
        if group.unanswered:
            waiting.append(group)
        groups.append(group)
    return groups


def evictable(entries: Sequence[Entry], *, spare: str | None, complete: bool) -> list[Group]:
    """Return the groups that may be evicted, in order.

    `entries` are the oldest messages, all of them if `complete`. Never evicted: the message with the key `spare`,
    the user's last; system messages; the newest group; a call that may still be answered.
    """
    groups = grouped(entries)
    if complete and groups:
        newest = entries[-1].key
        groups = [group for group in groups if newest not in group.keys]
    return [
        group
        for group in groups
        if (group.over or not group.unanswered) and not any(_kept(entry, spare) for entry in group.entries)
    ]


def _kept(entry: Entry, spare: str | None) -> bool:
    return entry.key == spare or entry.message.role == "system"


def fitting(messages: Sequence[AnyMessage], max_tokens: int, tokens: TokenCounter) -> list[AnyMessage]:
    """Return the messages of a conversation that a window of `max_tokens` contains.

    Messages that are too long for it are skipped.
    """
    entries = [Entry(str(n), n, message, count_message(message, tokens)) for n, message in enumerate(messages, 1)]
    required = [entry for entry in entries if entry.message.role == "system"]
    required += [entry for entry in entries if spoken(entry.message)][-1:]
    present = {entry.key for entry in required}
    window = Window(max_tokens, partial=True)
    required = window.require(required)
    for entry in reversed(entries):
        if entry.key not in present and not window.full:
            window.offer(entry)
    return cast("list[AnyMessage]", window.messages(required))


def _stand_in(interrupted: Entry, asked: Entry, call: str) -> Entry:
    """Return a placeholder for a missing result, right after its call."""
    message = replace(interrupted.message, id=f"{asked.key}/{call}", tool_call_id=call)
    return replace(interrupted, key=message.id, seq=asked.seq, message=message)


class Window:
    """Fills a token budget with messages, offered newest first.

    A call is included only with all its results, a result only with its call. `interrupted` replaces missing
    results; without it, such a call is skipped. With `partial`, required messages that do not fit, and messages
    longer than the whole budget, are skipped too.
    """

    def __init__(self, budget: int, interrupted: Entry | None = None, *, partial: bool = False) -> None:
        self.left: int = budget
        self._budget = budget
        self.full: bool = False
        self._partial = partial
        self._interrupted = interrupted
        self._taken: list[Entry] = []
        self._answers: dict[str, Entry] = {}

    def require(self, entries: Sequence[Entry]) -> list[Entry]:
        """Reserve space for required messages, and return them; raises BudgetError if they do not fit."""
        needed = sum(entry.tokens for entry in entries)
        if needed > self.left and not self._partial:
            raise BudgetError(
                f"the system message and the user's last message need {needed:,} tokens, "
                f"more than the {self.left:,} of the budget"
            )
        taken = []
        for entry in entries:
            if entry.tokens <= self.left:
                taken.append(entry)
                self.left -= entry.tokens
        return taken

    def offer(self, entry: Entry) -> None:
        """Add the next older message if it fits; after the first that does not, the window is full."""
        message = entry.message
        answers = answers_of(message)
        if answers or message.role == "tool":
            self._answers.update((answer, entry) for answer in answers)
            return
        group = {entry.key: entry}
        for ids in calls_of(message):
            answer = next((self._answers[name] for name in ids if name in self._answers), None)
            if answer is None:
                if self._interrupted is None:
                    return
                answer = _stand_in(self._interrupted, entry, ids[0])
            group[answer.key] = answer
        cost = sum(one.tokens for one in group.values())
        if cost > self.left:
            # A message that no window of this size could hold does not end a partial one.
            self.full = not self._partial or cost <= self._budget
            return
        self.left -= cost
        self._taken.extend(group.values())

    def messages(self, required: Sequence[Entry]) -> list[Message]:
        """Return the chosen and required messages, oldest first, system messages before all."""
        entries = {entry.key: entry for entry in (*required, *self._taken)}.values()

        def place(entry: Entry) -> tuple[bool, int]:
            # A summary has no position, so it comes right after the system messages.
            return entry.message.role != "system", entry.seq

        return [entry.message for entry in sorted(entries, key=place)]


async def read_window(
    store: Store, scope: ScopePath, tokens: TokenCounter, max_tokens: int, *, interrupted: str | None, partial: bool
) -> list[Message]:
    """Return the newest messages of a session that fit, as `AsyncSession.window` does; raises BudgetError."""

    def to_entry(record: Record) -> Entry:
        return Entry(record.key, record.seq, decode(record), tokens_of(record, tokens))

    def weighed(key: str, message: Message) -> Entry:
        return Entry(key, 0, message, count_message(message, tokens))

    stand_in = None
    if interrupted is not None:
        said = check_text(interrupted, "interrupted")
        stand_in = weighed("@interrupted", Message("tool", said, metadata={"interrupted": True}))
    window = Window(check_count(max_tokens, "max_tokens", least=1), stand_in, partial=partial)
    required = [to_entry(record) for record in await system_records(store, scope)]
    scan = Scan(scope=scope, kinds=(MESSAGE,), reverse=True, limit=NEWEST)
    page = await store.scan(scan)
    newest = [to_entry(record) for record in page.items]
    required += [entry for entry in newest if spoken(entry.message)][:1]
    present = {entry.key for entry in required}
    required = window.require(required)
    if (text := await read_summary(store, scope)) is not None:
        summary = weighed(SUMMARY_ID, summary_message(text))
        required += window.require([summary]) if summary.tokens <= window.left else []
    while True:
        for entry in newest:
            if entry.key not in present and not window.full:
                window.offer(entry)
        if window.full or page.cursor is None:
            return window.messages(required)
        page = await store.scan(replace(scan, cursor=page.cursor))
        newest = [to_entry(record) for record in page.items]


async def read_summary(store: Store, scope: ScopePath) -> str | None:
    """Return the running summary of a session, if it has one."""
    (record,) = await store.read([Ref(scope, SUMMARY, SUMMARY_KEY)])
    return record.text if record is not None else None


async def system_records(store: Store, scope: ScopePath) -> list[Record]:
    """Return the system messages of a session as records, oldest first."""
    where = (Condition("labels.role", "eq", "system"),)
    return [record async for record in scan_all(store, Scan(scope=scope, kinds=(MESSAGE,), where=where))]
