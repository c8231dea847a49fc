"""Conversations as trees of messages: each branch becomes a session of its own, as a fork does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from ..checks import shown
from ..errors import InvalidValueError
from ..messages import Message
from .items import MessageItem

MAX_COPIES = 1_000_000
"""How many messages the branches of one conversation may have together."""


class ConversationNode(Struct):
    """A place in a conversation; some have no message. `order` lists children as the source does."""

    message: Message | None
    parent: str | None
    timed: bool = True
    order: Sequence[str] = ()
    children: list[str] = field(default_factory=list)


def branches(
    conversation: str, nodes: Mapping[str, ConversationNode], started: datetime | None = None
) -> Iterator[MessageItem]:
    """Yield the messages of a conversation, branch by branch, the oldest first.

    The first child of a node continues the branch of its parent. Another begins a session that repeats what was said
    before, and is named by that child: so it has the same name in a later export, in which it has grown. A message
    without a time has that of the one before, the first that of the conversation. Raises InvalidValueError if it is
    not a tree, or has too many long branches.
    """
    waiting = [id for id, node in nodes.items() if node.parent is None or node.parent not in nodes][::-1]
    _link(nodes)
    main, seen, copied = True, 0, 0
    while waiting:
        start = waiting.pop()
        path = _before(nodes, start)
        shared = len(path)
        at: str | None = start
        while at is not None:
            node = nodes[at]
            seen += 1
            if node.message is not None:
                path.append(node)
            waiting += reversed(node.children[1:])
            at = node.children[0] if node.children else None
        copied += len(path)
        if copied > MAX_COPIES:
            raise InvalidValueError(f"the branches of conversation {shown(conversation)} repeat too many messages")
        if len(path) > shared:
            session = conversation if main else f"{conversation}.{start}"
            main = False
            time = started
            for node in path:
                assert node.message is not None
                time = node.message.timestamp if node.timed else time
                message = node.message if time is None else replace(node.message, timestamp=time)
                yield MessageItem(session, message, time is not None)
    if seen < len(nodes):
        raise InvalidValueError(f"conversation {shown(conversation)} is not a tree")


def _link(nodes: Mapping[str, ConversationNode]) -> None:
    """Tell each node its children."""
    for id, node in nodes.items():
        node.children = [child for child in dict.fromkeys(node.order) if child in nodes and nodes[child].parent == id]
    for id, node in nodes.items():
        if node.parent is not None and node.parent in nodes and id not in nodes[node.parent].order:
            nodes[node.parent].children.append(id)


def _before(nodes: Mapping[str, ConversationNode], start: str) -> list[ConversationNode]:
    """Return the nodes with messages from the beginning up to a node, without it."""
    path: list[ConversationNode] = []
    at = nodes[start].parent
    while at is not None and at in nodes:
        if nodes[at].message is not None:
            path.append(nodes[at])
        at = nodes[at].parent
    return path[::-1]
