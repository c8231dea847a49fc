"""The content of an event: conversation turns, as AgentCore knows them, and a blob with everything else.

The blob is JSON text, since an object would not be returned unchanged. A message's text is not in it: it is one
or more conversational payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from json import dumps
from typing import Any

from msgspec import DecodeError, Struct, field, json

from ...errors import NewerSchemaError, TooLargeError, UnreadableStoreError
from ..keyvalue.kept import Kept, KeptHead, encode

FORMAT = 1
MESSAGE = "message"
"""Kind of records whose text is a conversation turn."""
SPOKEN = frozenset({MESSAGE, "archived"})
"""Kinds of conversation records; all others are lasting."""
MOST_TURNS = 99
"""Maximum number of conversational payloads in one event, besides the blob."""
MOST_TEXT = 100_000
"""Maximum length of one, in characters and in bytes."""
MOST_BYTES = 10_000_000
"""Maximum size of an event."""
ROOM = 64_000
"""Part of it reserved for names and totals."""
PACKED = 128_000
"""Approximate size of a packed event: deleting a record rewrites its event."""

_ROLES = {"user": "USER", "assistant": "ASSISTANT", "tool": "TOOL"}
_MARK = '{"mnemic":'


class Held(Struct, array_like=True):
    """A record; its text may be in this many turns of the event."""

    kind: str
    kept: Kept
    turns: int = 0
    twin: str | None = None
    """Memory record for the service's own search."""
    was: int = 0
    """Its first seq, if that turned out to be taken by another; otherwise 0."""

    @property
    def born(self) -> int:
        """Its first seq, which together with its key identifies it."""
        return self.was or self.kept.seq


class Gone(Struct, array_like=True):
    """A deleted record."""

    kind: str
    key: str
    born: int
    twin: str | None = None
    at: int = 0
    """Time of deletion, in seconds since 1970, if another writer may just have moved it; otherwise 0."""


class Extra(Struct, array_like=True):
    """A derived value; None if it is deleted."""

    kind: str
    key: str
    born: int
    name: str
    version: int
    value: bytes | None
    n: int = 0
    """Number of the event that had it first, if another."""


class Body(Struct, omit_defaults=True):
    """An event: its changes, in this order; for items that it only moves, others may have newer versions."""

    mnemic: int
    scope: str
    n: int
    """Its number in its session; events with the same number are from concurrent writers."""
    by: str = ""
    """The writer, which orders such events."""
    at: int = 0
    """Creation time, in seconds since 1970."""
    seen: int = 0
    """Checksum of the events that the writer knew, to detect concurrent writes."""
    dropped: list[str] = field(default_factory=list)
    """Kinds of dropped streams."""
    floors: dict[str, int] = field(default_factory=dict)
    """By kind, the seq up to which all records are deleted."""
    gone: list[Gone] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    extra: list[Extra] = field(default_factory=list)
    heads: list[KeptHead] = field(default_factory=list)
    group: str | None = None
    """Multi-event write that it belongs to; it counts once another event marks that as complete."""
    groups: list[str] = field(default_factory=list)
    """Multi-event writes that are complete."""

    def kinds(self) -> set[str]:
        """Return the kinds of all content."""
        things: list[Gone | Held | Extra | KeptHead] = [*self.gone, *self.held, *self.extra, *self.heads]
        return {*self.dropped, *self.floors, *(thing.kind for thing in things)}


class _Version(Struct):
    mnemic: int


Content = Gone | Held | Extra
_decode = json.Decoder(Body).decode
_version = json.Decoder(_Version).decode


def turns_of(held: Held) -> list[dict[str, Any]]:
    """Return a message's text as conversational payloads."""
    text = held.kept.text
    if held.kind != MESSAGE or not text:
        return []
    data = held.kept.data
    role = data.get("role") if isinstance(data, dict) else None
    size = MOST_TEXT if text.isascii() else MOST_TEXT // 4
    return [
        {"conversational": {"role": _ROLES.get(str(role), "OTHER"), "content": {"text": text[at : at + size]}}}
        for at in range(0, len(text), size)
    ]


def size_of(content: Content) -> int:
    """Return the approximate size of content in a request."""
    if isinstance(content, Extra):
        return 200 + len(content.key) + len(content.value or b"") * 4 // 3
    if isinstance(content, Gone):
        return 120 + len(content.key)
    # Requests are ASCII, and the blob is JSON within JSON.
    return 300 + len(dumps(encode(content.kept).decode()))


def check_size(content: Content, what: str) -> None:
    """Raise TooLargeError if it does not fit into any event."""
    size = size_of(content)
    turns = len(turns_of(content)) if isinstance(content, Held) else 0
    if size > MOST_BYTES - ROOM or turns > MOST_TURNS:
        raise TooLargeError(
            f"{what} takes about {size:,} bytes, and AgentCore keeps no more than {MOST_BYTES:,} in one event"
        )


def pack(contents: Iterable[tuple[Content, bool]]) -> Iterator[tuple[list[Content], bool]]:
    """Yield content in parts, each for one event, and whether all of its text was stored before.

    Each item comes with whether it is only moved, so that it is not treated as said again.
    """
    part: list[Content] = []
    size = turns = 0
    said: bool | None = None
    for content, moved in contents:
        its_size = size_of(content)
        its_turns = len(turns_of(content)) if isinstance(content, Held) else 0
        other = bool(its_turns) and said is not None and said is not moved
        if part and (other or size + its_size > PACKED or turns + its_turns > MOST_TURNS):
            yield part, said is not False
            part, size, turns, said = [], 0, 0, None
        part.append(content)
        size += its_size
        turns += its_turns
        if its_turns:
            said = moved
    yield part, said is not False


def fill(body: Body, contents: Iterable[Content]) -> None:
    """Put content into an event's body."""
    for content in contents:
        if isinstance(content, Held):
            body.held.append(content)
        elif isinstance(content, Gone):
            body.gone.append(content)
        else:
            body.extra.append(content)


def payload(body: Body) -> list[dict[str, Any]]:
    """Return the payload of an event."""
    turns: list[dict[str, Any]] = []
    held = []
    for one in body.held:
        own = turns_of(one)
        turns += own
        slim_one = Held(one.kind, _without_text(one.kept), len(own), one.twin, one.was)
        held.append(slim_one if own else one)
    slim = Body(**{name: getattr(body, name) for name in Body.__struct_fields__ if name != "held"}, held=held)
    return [*turns, {"blob": encode(slim).decode()}]


def parse(event: dict[str, Any], url: str) -> Body | None:
    """Parse a Mnemic event; None for any other.

    Raises NewerSchemaError or UnreadableStoreError.
    """
    parts = event.get("payload") or ()
    blob = next((p["blob"] for p in parts if isinstance(p.get("blob"), str) and p["blob"].startswith(_MARK)), None)
    if blob is None:
        return None
    where = f"{url}: event {event['eventId']} of session {event['sessionId']!r}"
    try:
        if _version(blob).mnemic > FORMAT:
            raise NewerSchemaError(f"{where} was written by a newer version of Mnemic")
        body = _decode(blob)
    except DecodeError as error:
        raise UnreadableStoreError(f"{where} cannot be read: {error}") from None
    texts = iter([part["conversational"]["content"]["text"] for part in parts if "conversational" in part])
    for held in body.held:
        if held.turns:
            own = [text for _, text in zip(range(held.turns), texts, strict=False)]
            if len(own) < held.turns:
                raise UnreadableStoreError(f"{where} has lost the text of message {held.kept.key!r}")
            held.kept.text = "".join(own)
    return body


def _without_text(kept: Kept) -> Kept:
    twin = Kept(*(getattr(kept, name) for name in Kept.__struct_fields__))
    twin.text = None
    return twin
