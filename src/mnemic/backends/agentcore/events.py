"""What an event holds: turns of a conversation, as AgentCore knows them, and a blob with all else.

The blob is a JSON text, since an object would not come back as it was given. A message's own text is not in
it: that is a conversational payload, or several if it is long.
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
"""The kind of records whose text is a turn of a conversation."""
SPOKEN = frozenset({MESSAGE, "archived"})
"""The kinds of what was said; all others are to last."""
MOST_TURNS = 99
"""The most conversational payloads in one event, beside the blob."""
MOST_TEXT = 100_000
"""The longest text of one, in characters and in bytes."""
MOST_BYTES = 10_000_000
"""The largest event."""
ROOM = 64_000
"""What of that is left for the names and totals that come with every event."""
PACKED = 128_000
"""About how much is put together: a record that goes takes the event with it, and the others move."""

_ROLES = {"user": "USER", "assistant": "ASSISTANT", "tool": "TOOL"}
_MARK = '{"mnemic":'


class Held(Struct, array_like=True):
    """A record; its text may be in the event's turns, so many of them."""

    kind: str
    kept: Kept
    turns: int = 0
    twin: str | None = None
    """The memory record by which the service's own search finds it."""
    was: int = 0
    """The seq that it had at first, if another turned out to have it, too; else 0."""

    @property
    def born(self) -> int:
        """The seq that it had at first, which with its key tells it from all others."""
        return self.was or self.kept.seq


class Gone(Struct, array_like=True):
    """A record that is no more."""

    kind: str
    key: str
    born: int
    twin: str | None = None
    at: int = 0
    """Since when, in seconds since 1970, if another writer may just have moved it; else 0."""


class Extra(Struct, array_like=True):
    """What was derived from a record; None if it is no more."""

    kind: str
    key: str
    born: int
    name: str
    version: int
    value: bytes | None
    n: int = 0
    """The number of the event that held it first, if that was another."""


class Body(Struct, omit_defaults=True):
    """An event: what it changes, in this order; of things that it only moves, others may hold newer ones."""

    mnemic: int
    scope: str
    n: int
    """Its number in its session; of two with the same one, the writers did not know of each other."""
    by: str = ""
    """The writer, by which such events are put in order."""
    at: int = 0
    """When it was made, in seconds since 1970."""
    seen: int = 0
    """The sum of the events that counted for the writer, by which others see whether it knew the same."""
    dropped: list[str] = field(default_factory=list)
    """Kinds whose streams are no more."""
    floors: dict[str, int] = field(default_factory=dict)
    """By kind, up to which seq all records are no more."""
    gone: list[Gone] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    extra: list[Extra] = field(default_factory=list)
    heads: list[KeptHead] = field(default_factory=list)
    group: str | None = None
    """The write that it is a part of, which counts only once another event says that it is complete."""
    groups: list[str] = field(default_factory=list)
    """Writes that are complete."""

    def kinds(self) -> set[str]:
        """Return the kinds of all that it is about."""
        things: list[Gone | Held | Extra | KeptHead] = [*self.gone, *self.held, *self.extra, *self.heads]
        return {*self.dropped, *self.floors, *(thing.kind for thing in things)}


class _Version(Struct):
    mnemic: int


Content = Gone | Held | Extra
_decode = json.Decoder(Body).decode
_version = json.Decoder(_Version).decode


def turns_of(held: Held) -> list[dict[str, Any]]:
    """Return a message's text as AgentCore keeps what was said."""
    text = held.kept.text
    if held.kind != MESSAGE or not text:
        return []
    data = held.kept.data
    role = data.get("role") if isinstance(data, dict) else None
    size = MOST_TEXT if text.isascii() else MOST_TEXT // 4
    return [
        {
            "conversational": {
                "role": _ROLES.get(str(role), "OTHER"),
                "content": {"text": text[at : at + size]},
            }
        }
        for at in range(0, len(text), size)
    ]


def size_of(content: Content) -> int:
    """Return about how many bytes a content takes in a request."""
    if isinstance(content, Extra):
        return 200 + len(content.key) + len(content.value or b"") * 4 // 3
    if isinstance(content, Gone):
        return 120 + len(content.key)
    # Requests are ASCII, and the blob is JSON within JSON.
    return 300 + len(dumps(encode(content.kept).decode()))


def check_size(content: Content, what: str) -> None:
    """Raise TooLargeError if no event can hold it."""
    size = size_of(content)
    turns = len(turns_of(content)) if isinstance(content, Held) else 0
    if size > MOST_BYTES - ROOM or turns > MOST_TURNS:
        raise TooLargeError(
            f"{what} takes about {size:,} bytes, and AgentCore keeps no more than {MOST_BYTES:,} in one event"
        )


def pack(contents: Iterable[tuple[Content, bool]]) -> Iterator[tuple[list[Content], bool]]:
    """Yield contents in parts, each for one event, and whether all that was said in it was said before.

    Each comes with whether it is only moved: what is moved is not to be taken for said once more.
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
    """Put contents into an event's body."""
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
    """Return what an event of ours holds; None for one of others.

    Raises NewerSchemaError or UnreadableStoreError.
    """
    parts = event.get("payload") or ()
    blob = next(
        (p["blob"] for p in parts if isinstance(p.get("blob"), str) and p["blob"].startswith(_MARK)), None
    )
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
