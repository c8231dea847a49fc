"""AgentCore's ids of scopes, and the form of records in events and memory records.

An event has the conversation turns that AgentCore's strategies read, and a blob with everything else. The blob is JSON
text, since an object would not be returned unchanged.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from functools import lru_cache
from hashlib import sha256
from json import dumps
from typing import Any, NamedTuple

from msgspec import DecodeError, Raw, Struct, field, json
from msgspec.structs import replace

from ...errors import InvalidValueError, NewerSchemaError, TooLargeError, UnreadableStoreError
from ...records import MESSAGE, Record, known_scope
from ...store.codec import decode_record, encode_record
from ...store.stream_state import StreamState

FORMAT = 2
MOST_TURNS = 99
"""Maximum number of conversation turns in one event, besides the blob."""
MOST_TURN = 100_000
"""Maximum size of a turn, in characters and in bytes."""
MOST_EVENT = 10_000_000
"""Maximum size of an event."""
MOST_RECORD_TEXT = 16_000
"""Maximum length of the text of a memory record."""
EMPTY = "-"
"""Text of a memory record without text, since it must have one."""
_ROLES = {"user": "USER", "assistant": "ASSISTANT", "tool": "TOOL"}

ROOT = "0_-root"
"""Actor of scopes with one segment, and session of the root itself."""
MOST_SESSION, MOST_ACTOR, MOST_NAMESPACE = 100, 255, 1024
_HASHED, _HASHED_PATH = "0_-h", "0_-p"
_PLAIN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]|_(?!-))*")


class ActorSession(NamedTuple):
    """Actor and session of a scope: its parent, and its last segment."""

    actor: str
    session: str

    @property
    def arguments(self) -> dict[str, Any]:
        return {"actorId": self.actor, "sessionId": self.session}

    @classmethod
    def of(cls, path: str) -> ActorSession:
        above, _, last = _ids(path).rpartition("/")
        if len(above) > MOST_ACTOR:
            above = _HASHED_PATH + sha256(above.encode()).hexdigest()
        return cls(above or ROOT, last or ROOT)

    def may_be_below(self, path: str) -> bool:
        """Return whether its scope may be this one, or below it; a hashed actor may be anywhere."""
        own = "/".join(part for part in self if part != ROOT)
        return not path or f"{own}/".startswith(f"{_ids(path)}/") or self.actor.startswith(_HASHED_PATH)


def namespace_of(path: str) -> str:
    """Return the namespace of a scope's memory records; raises InvalidValueError if it is too long."""
    namespace = f"/mnemic/{_ids(path)}/" if path else "/mnemic/"
    if len(namespace) > MOST_NAMESPACE:
        raise InvalidValueError(f"AgentCore stores no memories in scope {path[:50]!r}…: its path is too long")
    return namespace


@lru_cache(maxsize=10_000)
def _ids(path: str) -> str:
    """Return a path whose segments are valid ids: plain names as they are, others hashed."""
    plain = (
        name if len(name) <= MOST_SESSION and _PLAIN.fullmatch(name) else _HASHED + sha256(name.encode()).hexdigest()
        for name in path.split("/")
    )
    return "/".join(plain) if path else ""


# events


class SessionEvent(Struct, omit_defaults=True):
    """A change of a session: the records that it adds, and what it removes from the events before it."""

    mnemic: int
    scope: str
    n: int
    """Its number in the session; events with the same number are from concurrent writers."""
    new: list[tuple[str, int, Raw]] = field(default_factory=list)
    """Kind, number of turns with the text, and JSON of added records."""
    moved: list[tuple[str, Raw]] = field(default_factory=list)
    """Kind and JSON of changed records, and of others in the events that this one replaces."""
    streams: list[StreamState] = field(default_factory=list)
    """States of the changed streams."""
    dropped: list[str] = field(default_factory=list)
    """Kinds of dropped streams."""
    removed: list[tuple[str, str | None, int]] = field(default_factory=list)
    """Kind, key and seq of removed records; without a key, all up to this seq."""
    replaces: list[str] = field(default_factory=list)
    """Ids of events that this one makes obsolete."""


class StoredEvent(NamedTuple):
    id: str
    event: SessionEvent
    new: list[Record]
    moved: list[Record]

    @property
    def time(self) -> int:
        """Its time in milliseconds, which its id begins with."""
        return int(self.id.partition("#")[0])

    @property
    def order(self) -> tuple[int, str]:
        return (self.event.n, self.id)


def turns_of(record: Record) -> list[dict[str, Any]]:
    """Return a message's text as conversation turns."""
    text = record.text
    if record.kind != MESSAGE or not text:
        return []
    role = record.data.get("role") if isinstance(record.data, dict) else None
    size = MOST_TURN if text.isascii() else MOST_TURN // 4
    return [
        {"conversational": {"role": _ROLES.get(str(role), "OTHER"), "content": {"text": text[at : at + size]}}}
        for at in range(0, len(text), size)
    ]


def size_of(record: Record) -> int:
    """Return the size of a record in an event; raises TooLargeError if it does not fit."""
    # Requests are ASCII, and the blob is JSON within JSON.
    size = len(dumps(encode_record(record).decode()))
    if size > MOST_EVENT or len(turns_of(record)) > MOST_TURNS:
        raise TooLargeError(
            f"{record.kind} {record.key!r} takes about {size:,} bytes, and AgentCore stores at most {MOST_EVENT:,} "
            "in one event"
        )
    return size


def encode_event(event: SessionEvent, new: list[Record], moved: list[Record]) -> list[dict[str, Any]]:
    """Return the payload of an event; the text of a moved record is not said again."""
    turns = []
    for record in new:
        own = turns_of(record)
        turns += own
        event.new.append((record.kind, len(own), Raw(encode_record(replace(record, text=None) if own else record))))
    event.moved = [(record.kind, Raw(encode_record(record))) for record in moved]
    return [*turns, {"blob": json.encode(event).decode()}]


def decode_event(item: dict[str, Any], url: str) -> StoredEvent | None:
    """Return an event; None if it is not from Mnemic. Raises NewerSchemaError or UnreadableStoreError."""
    parts = item.get("payload") or ()
    blob = next((part["blob"] for part in parts if str(part.get("blob")).startswith('{"mnemic":')), None)
    if blob is None:
        return None
    where = f"{url}: event {item['eventId']} of session {item['sessionId']!r}"
    try:
        if int(_FORMAT.findall(blob)[0]) != FORMAT:
            raise NewerSchemaError(f"{where} was written by another version of Mnemic")
        event = _decode(blob)
        texts = iter([part["conversational"]["content"]["text"] for part in parts if "conversational" in part])
        scope, new = known_scope(event.scope), []
        for kind, turns, raw in event.new:
            record = decode_record(scope, kind, bytes(raw))
            new.append(replace(record, text="".join(next(texts) for _ in range(turns))) if turns else record)
        moved = [decode_record(scope, kind, bytes(raw)) for kind, raw in event.moved]
    except (DecodeError, ValueError, IndexError, TypeError, RuntimeError) as error:
        raise UnreadableStoreError(f"{where} is damaged: {error}") from None
    return StoredEvent(item["eventId"], event, new, moved)


_FORMAT = re.compile(r'^\{"mnemic":(\d+)')
_decode = json.Decoder(SessionEvent).decode


# memory records: the text, and everything else as base64 in the metadata


def encode_memory(record: Record) -> dict[str, Any]:
    """Return a memory record; raises TooLargeError."""
    text = record.text or EMPTY
    values = Raw(encode_record(record if text == EMPTY else replace(record, text=None)))
    packed = b64encode(json.encode((record.scope.path, record.kind, values))).decode()
    lists = [packed[at : at + 5 * 256] for at in range(0, len(packed), 5 * 256)]
    if len(text) > MOST_RECORD_TEXT or len(lists) > 19:
        raise TooLargeError(
            f"{record.kind} {record.key!r} is too large: a memory record of AgentCore has at most "
            f"{MOST_RECORD_TEXT:,} characters, and 18,000 bytes of other values"
        )
    metadata = {f"mnemic{n}": {"stringListValue": _pieces(part)} for n, part in enumerate(lists)}
    return {"namespaces": [namespace_of(record.scope.path)], "content": {"text": text}, "metadata": metadata}


def decode_memory(item: dict[str, Any], url: str) -> tuple[Record, str] | None:
    """Return the record and the id of a memory record; None if it is not from Mnemic."""
    metadata = item.get("metadata") or {}
    if "mnemic0" not in metadata:
        return None
    try:
        count = sum(name.startswith("mnemic") for name in metadata)
        packed = "".join(piece for n in range(count) for piece in metadata[f"mnemic{n}"]["stringListValue"])
        path, kind, raw = json.decode(b64decode(packed), type=tuple[str, str, Raw])
        record = decode_record(known_scope(path), kind, bytes(raw))
    except (DecodeError, ValueError, KeyError, TypeError) as error:
        raise UnreadableStoreError(f"{url}: memory record {item['memoryRecordId']} is damaged: {error}") from None
    text = item["content"]["text"]
    return record if text == EMPTY else replace(record, text=text), item["memoryRecordId"]


def _pieces(text: str) -> list[str]:
    return [text[at : at + 256] for at in range(0, len(text), 256)]
