"""Checks that every store applies to a write, with the same error messages."""

from __future__ import annotations

from msgspec import UNSET

from ..errors import ConflictError, LimitError, SettingsChangedError
from ..records import Ref
from .query import Expect, Limit


def check_version(ref: Ref, expected: int | None, current: int) -> None:
    """Raise ConflictError unless the record is at the expected version; 0 means absent, None means any."""
    if expected is None or expected == current:
        return
    state = f"is at version {current}" if current else "is not there"
    wanted = f"version {expected}" if expected else "it to be new"
    raise ConflictError(f"{_named(ref)} {state}; the writer expected {wanted}", key=ref.key, current=current)


def check_expected(op: Expect, current: int, settings: str | None) -> None:
    """Raise ConflictError unless the stream or record is at the version that `op` expects.

    Raises SettingsChangedError if the stream's settings differ from the expected ones.
    """
    if op.settings is not UNSET and op.settings != settings:
        raise SettingsChangedError(
            f"the {op.kind} stream of scope {op.scope.path!r} has the settings {settings!r}; "
            f"the writer expected {op.settings!r}",
            settings=settings,
        )
    if op.key is not None:
        ref = Ref(op.scope, op.kind, op.key)
        if op.version is None and not current:
            raise ConflictError(f"{_named(ref)} is not there", key=op.key)
        check_version(ref, op.version, current)
    elif op.version is not None and op.version != current:
        raise ConflictError(
            f"the {op.kind} stream of scope {op.scope.path!r} is at version {current}; "
            f"the writer expected {op.version}",
            current=current,
        )


def over_limit(op: Limit, count: int, weight: int) -> bool:
    """Return whether this count and weight exceed the limit."""
    return (op.max_count is not None and count > op.max_count) or (op.max_weight is not None and weight > op.max_weight)


def check_limit(op: Limit, count: int, weight: int) -> None:
    """Raise LimitError if the limit is strict and this count or weight exceeds it."""
    if op.strict and over_limit(op, count, weight):
        raise LimitError(
            f"the {op.kind} stream of scope {op.scope.path!r} would hold {count:,} records of weight "
            f"{weight:,}; its limits are {_shown(op.max_count)} records and weight {_shown(op.max_weight)}",
            count=count,
            weight=weight,
        )


def _named(ref: Ref) -> str:
    return f"{ref.kind} {ref.key!r} in scope {ref.scope.path!r}"


def _shown(limit: int | None) -> str:
    return "any number of" if limit is None else f"{limit:,}"
