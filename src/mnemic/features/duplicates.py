"""Texts that say the same: how alike two are, and what becomes of the second. Nothing here does I/O."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal, TypeAlias, get_args

from msgspec.structs import replace

from ..checks import shown
from ..errors import InvalidValueError
from ..records import Record

Duplicates: TypeAlias = Literal["keep", "merge", "skip", "refuse"]
"""What becomes of a text that says what is remembered already."""
POLICIES: tuple[Duplicates, ...] = get_args(Duplicates)

NEAR = 0.8
"""From which likeness on two texts say the same."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_TELLING = re.compile(r"\d|n['’]t$|^(?:no|not|never|none|nothing|nobody|without|cannot)$")


def check_policy(value: str) -> Duplicates:
    """Return a policy; raises InvalidValueError for one that is not known."""
    for policy in POLICIES:
        if value == policy:
            return policy
    raise InvalidValueError(f"duplicates must be one of {', '.join(POLICIES)}: {shown(value)}")


def likeness(one: str, other: str) -> float:
    """Return how alike two texts are, from 0 to 1, which means the same words in the same order.

    Texts that differ in a number, or of which only one denies something, are never alike, however many
    words they share.
    """
    words, others = _words(one), _words(other)
    if words == others:
        return 1.0
    if _telling(words) != _telling(others):
        return 0.0
    first, second = Counter(words), Counter(others)
    together = sum((first | second).values())
    return 0.99 * sum((first & second).values()) / together if together else 0.0


def merged(old: Record, new: Record) -> Record:
    """Return one record of two that say the same: the new wording in the old one's place, nothing lost.

    What the old one said is kept in its data; metadata is joined, the new values first; importance is
    the greater.
    """
    data: Any = old.data if isinstance(old.data, dict) else {}
    said = list(data.get("merged", []))
    if old.text != new.text:
        said.append(old.text)
    return replace(
        old,
        text=new.text,
        data={**data, "merged": said} if said else old.data,
        meta={**old.meta, **new.meta},
        labels={**old.labels, **new.labels},
        importance=max(filter(None, (old.importance, new.importance)), default=None),
        pinned=old.pinned or new.pinned,
        expires=None if old.expires is None or new.expires is None else max(old.expires, new.expires),
        valid_from=new.valid_from if old.valid_from is None else old.valid_from,
        valid_to=new.valid_to,
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def _telling(words: list[str]) -> Counter[str]:
    """Return the words that turn a text into another one."""
    return Counter(word for word in words if _TELLING.search(word))
