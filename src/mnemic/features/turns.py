"""Which messages belong together, what may leave a session, and what fits a prompt. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from ..errors import BudgetError
from ..records import Message


class Entry(Struct, frozen=True):
    """A message with its key, its place in the log, and its tokens."""

    key: str
    seq: int
    message: Message
    tokens: int = 0


class Group(Struct):
    """Messages that make sense only together: a tool's call with all its answers, or one message."""

    entries: list[Entry]
    unanswered: set[str] = field(default_factory=set)
    over: bool = False
    """A user spoke later, so that no further answer will come."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the messages."""
        return tuple(entry.key for entry in self.entries)


def call_ids(message: Message) -> list[tuple[str, str | None]]:
    """Return the names that an answer may use for each tool call of a message."""
    return [(call.id, call.call_id) for call in message.tool_calls]


def grouped(entries: Sequence[Entry]) -> list[Group]:
    """Return messages in groups; a group stands where its first message stood.

    An answer whose call is not among them is a group of its own.
    """
    groups: list[Group] = []
    asked: dict[str, Group] = {}
    waiting: list[Group] = []
    for entry in entries:
        message = entry.message
        home = asked.get(message.tool_call_id) if message.role == "tool" and message.tool_call_id else None
        if home is not None:
            home.entries.append(entry)
            for ids in call_ids(home.entries[0].message):
                if message.tool_call_id in ids:
                    home.unanswered.discard(ids[0])
            continue
        if message.role == "user":
            for group in waiting:
                group.over = True
            waiting.clear()
        group = Group([entry])
        for call_id, other_id in call_ids(message):
            group.unanswered.add(call_id)
            asked[call_id] = group
            if other_id is not None:
                asked[other_id] = group
        if group.unanswered:
            waiting.append(group)
        groups.append(group)
    return groups


def evictable(entries: Sequence[Entry], *, spare: str | None, complete: bool) -> list[Group]:
    """Return the groups that may leave a session to keep it within its limits, first the first to go.

    `entries` are its oldest messages, all of them if `complete`. Never among them: the message with
    the key `spare`, which is the last that a user wrote; system messages; the newest group; a call
    that may still be answered.
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


class Window:
    """Fills a prompt's budget with messages that are given to it newest first.

    A call stands in it only with all its answers, an answer only with its call.
    """

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.full = False
        self._taken: list[Entry] = []
        self._answers: dict[str, list[Entry]] = {}

    def require(self, entries: Sequence[Entry]) -> None:
        """Make room for what must be in; raises BudgetError if it is more than there is."""
        needed = sum(entry.tokens for entry in entries)
        if needed > self.left:
            raise BudgetError(
                f"the system message and the user's last message need {needed:,} tokens, "
                f"more than the {self.left:,} of the budget"
            )
        self.left -= needed

    def offer(self, entry: Entry) -> None:
        """Take the next older message if it fits; after the first that does not, the window is full."""
        message = entry.message
        if message.role == "tool" and message.tool_call_id:
            self._answers.setdefault(message.tool_call_id, []).append(entry)
            return
        group = [entry]
        for ids in call_ids(message):
            answers = [a for call in ids if call is not None for a in self._answers.pop(call, [])]
            if not answers:
                return
            group.extend(answers)
        cost = sum(one.tokens for one in group)
        if cost > self.left:
            self.full = True
            return
        self.left -= cost
        self._taken.extend(group)

    def messages(self, required: Sequence[Entry]) -> list[Message]:
        """Return what was taken and what must be in, oldest first, the system messages before all."""
        entries = {entry.key: entry for entry in (*required, *self._taken)}.values()
        return [
            entry.message
            for entry in sorted(entries, key=lambda entry: (entry.message.role != "system", entry.seq))
        ]
