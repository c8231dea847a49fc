"""AgentCore ids of scopes: plain names as they are, other characters escaped, long names hashed.

The actor is the parent scope, the session the last segment. Ids have only letters, digits, '-' and '_', so `_-`
starts an escape: two hexadecimal digits of a byte, or a letter for the type.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

MOST_SESSION = 100
"""Maximum length of a session id."""
MOST_ACTOR = 255
MOST_NAMESPACE = 1024

ROOT = "0_-root"
"""Actor of scopes with one segment, and session of the root itself."""
_BARE = "0_-x"
"""Prefix of a name that does not start with a letter or a digit."""
_HASHED = "0_-h"
_HASHED_PATH = "0_-p"

_PLAIN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]|_(?!-))*")
_KEPT = re.compile(rb"[a-zA-Z0-9-]|_(?!-)")
_ESCAPE = re.compile(r"_-([0-9a-f]{2})")


class Place(NamedTuple):
    """Actor and session of a scope."""

    actor: str
    session: str


@lru_cache(maxsize=10_000)
def encode_segment(name: str) -> str:
    """Return the session id of a segment."""
    if len(name) <= MOST_SESSION and _PLAIN.fullmatch(name):
        return name
    raw = name.encode()
    text = "".join(chr(byte) if _KEPT.match(raw, at) else f"_-{byte:02x}" for at, byte in enumerate(raw))
    if not text[0].isalnum():
        text = _BARE + text
    return text if len(text) <= MOST_SESSION else _HASHED + sha256(raw).hexdigest()


def decode_segment(text: str) -> str | None:
    """Return the segment of a session id; None if it is hashed, or not from Mnemic."""
    bare = text.removeprefix(_BARE)
    try:
        name = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), bare).encode("latin-1").decode()
    except ValueError:
        return None
    return name if name and "/" not in name and encode_segment(name) == text else None


def encode_path(path: str) -> str:
    """Return a scope's path with each segment encoded."""
    return "/".join(map(encode_segment, path.split("/"))) if path else ""


def place_of(encoded: str) -> Place:
    """Return the actor and session of an encoded path."""
    above, _, last = encoded.rpartition("/")
    if len(above) > MOST_ACTOR:
        above = _HASHED_PATH + sha256(above.encode()).hexdigest()
    return Place(above or ROOT, last or ROOT)


def place(path: str) -> Place:
    """Return the actor and session of a scope."""
    return place_of(encode_path(path))


def path_of(place: Place) -> str | None:
    """Return the scope of an actor and session; None if part of it is hashed, or not from Mnemic."""
    if place == (ROOT, ROOT):
        return ""
    segments = [] if place.actor == ROOT else place.actor.split("/")
    names = [decode_segment(segment) for segment in (*segments, place.session)]
    return None if None in names else "/".join(map(str, names))


def may_hold(actor: str, encoded: str) -> bool:
    """Return whether an actor may have sessions at an encoded path, or below it."""
    above = encoded.rpartition("/")[0] or ROOT
    return not encoded or actor in (encoded, above) or actor.startswith((f"{encoded}/", _HASHED_PATH))
