"""TFrameX messages: Mnemic's, with timestamps that compare with `datetime.now()`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec.structs import asdict, force_setattr

import mnemic

from ...checks import check_time, shown


def _aware(other: Any) -> Any:
    return other.astimezone() if isinstance(other, datetime) and other.tzinfo is None else other


class LocalTime(datetime):
    """An aware datetime that can be compared with naive ones, which are local time."""

    @classmethod
    def of(cls, moment: datetime) -> LocalTime:
        """Convert a datetime; a naive one is local time. Raises InvalidValueError for anything else."""
        here = check_time(moment, "timestamp").astimezone()
        return cls.combine(here.date(), here.timetz())

    def __lt__(self, other: Any) -> bool:
        return super().__lt__(_aware(other))

    def __le__(self, other: Any) -> bool:
        return super().__le__(_aware(other))

    def __gt__(self, other: Any) -> bool:
        return super().__gt__(_aware(other))

    def __ge__(self, other: Any) -> bool:
        return super().__ge__(_aware(other))

    def __sub__(self, other: Any) -> Any:
        return super().__sub__(_aware(other))

    def __rsub__(self, other: Any) -> Any:
        return datetime.__sub__(_aware(other), self)


class Message(mnemic.Message, frozen=True):
    """One message; its `timestamp` can be compared with naive and aware datetimes."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an unknown role, or a field of the wrong type."""
        mnemic.Message.__post_init__(self)
        force_setattr(self, "timestamp", LocalTime.of(self.timestamp))


def to_core(message: mnemic.Message) -> mnemic.Message:
    """Return a Mnemic message; raises InvalidValueError for anything else."""
    if not isinstance(message, mnemic.Message):
        raise mnemic.InvalidValueError(f"a store holds messages, not {shown(message)}")
    if not isinstance(message, Message):
        return message
    moment = message.timestamp
    fields = {**asdict(message), "timestamp": datetime.combine(moment.date(), moment.timetz())}
    return mnemic.Message(**fields)


def from_core(message: mnemic.Message) -> Message:
    """Return a TFrameX message from a Mnemic message."""
    return Message(**asdict(message))
