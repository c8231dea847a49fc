"""Handling of duplicate memories. No I/O."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from msgspec.structs import replace

from ..checks import shown
from ..errors import InvalidValueError
from ..records import Record

Duplicates: TypeAlias = Literal["keep", "merge", "skip", "refuse"]
"""Policy for a text that is already remembered."""
POLICIES: tuple[Duplicates, ...] = get_args(Duplicates)


def check_policy(value: str) -> Duplicates:
    """Return a valid policy; raises InvalidValueError for an unknown one."""
    for policy in POLICIES:
        if value == policy:
            return policy
    raise InvalidValueError(f"duplicates must be one of {', '.join(POLICIES)}: {shown(value)}")


def merged(old: Record, new: Record) -> Record:
    """Merge two records with the same content: the new text under the old id, without loss.

    The old text and source are kept in its data; metadata is merged, new values win; importance is the maximum.
    """
    data: Any = old.data if isinstance(old.data, dict) else {}
    said = list(data.get("merged", []))
    if old.text != new.text or old.labels != new.labels:
        said.append({"text": old.text, **old.labels})
    return replace(
        old,
        text=new.text,
        data={**data, "merged": said} if said else old.data,
        meta={**old.meta, **new.meta},
        labels={**old.labels, **new.labels},
        importance=max((i for i in (old.importance, new.importance) if i is not None), default=None),
        pinned=old.pinned or new.pinned,
        expires=None if old.expires is None or new.expires is None else max(old.expires, new.expires),
        valid_from=new.valid_from if old.valid_from is None else old.valid_from,
        valid_to=new.valid_to,
    )
