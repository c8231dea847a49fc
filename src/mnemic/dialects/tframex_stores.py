"""TFrameX messages, and its stores over a session at a URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from urllib.parse import urlencode

from msgspec.structs import asdict, force_setattr

import mnemic
from mnemic import AsyncScope, AsyncSession

from ..checks import check_count, check_time, shown
from ..features.turns import messages_that_fit
from ..memory import OpenOptions
from ..message_list import MessageList
from ..tokens import encoding


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


class BaseMemoryStore:
    """Interface of a message store; your own needs `add_message`, `get_history` and `clear`."""

    session_id: str = "default"

    async def add_message(self, message: Message) -> None:
        raise self._missing("add_message")

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None
    ) -> list[Message]:
        raise self._missing("get_history")

    async def clear(self) -> None:
        raise self._missing("clear")

    async def get_context_window(self, max_tokens: int = 4000) -> list[Message]:
        """Return the newest messages that fit; messages that are too long by themselves are skipped."""
        check_count(max_tokens, "max_tokens", least=1)
        return messages_that_fit(await self.get_history(), max_tokens, encoding())

    def _missing(self, method: str) -> NotImplementedError:
        name = type(self).__name__
        return NotImplementedError(
            f"{name} must define {method}: BaseMemoryStore keeps nothing itself, InMemoryMemoryStore does"
        )


class UrlMemoryStore(BaseMemoryStore):
    """Messages of one session at any Mnemic URL; `options` are those of `mnemic.open` and of a session."""

    def __init__(self, url: str = "memory://", session_id: str = "default", **options: Any) -> None:
        self.url: str = url
        self.session_id: str = session_id
        self._opening, limits = _split(options)
        # A limit of these stores defines how much they retain.
        self._limits: dict[str, Any] = {"overflow": "drop", **limits}
        self._scope: AsyncScope | None = None
        self._memory: mnemic.AsyncMemory | None = None
        # In-process data works on any event loop, and before there is one.
        if url == "memory://":
            self._sync = mnemic.open(url, **self._opening).scope("tframex")
            self._scope = self._sync._async

    async def initialize(self) -> None:
        if self._scope is None:
            memory = await mnemic.open_async(self.url, **self._opening)
            if self._memory is not None:
                await memory.close()  # another task was faster
                return
            self._memory = memory
            self._scope = memory.scope("tframex")

    async def session(self) -> AsyncSession:
        await self.initialize()
        assert self._scope is not None
        return self._scope.session(self.session_id, **self._limits)

    async def add_message(self, message: Message) -> None:
        await (await self.session()).add(to_core(message))

    async def get_history(
        self, limit: int | None = None, offset: int = 0, roles: list[Any] | None = None
    ) -> list[Message]:
        found = await (await self.session()).messages(limit, offset, roles=roles)
        return [from_core(message) for message in found]

    async def clear(self) -> None:
        await (await self.session()).clear()

    async def get_context_window(self, max_tokens: int = 4000) -> list[Message]:
        found = await (await self.session()).window(max_tokens, partial=True)
        return [from_core(message) for message in found]

    async def close(self) -> None:
        if self._memory is not None:
            await self._memory.close()


def _split(options: dict[str, Any]) -> tuple[OpenOptions, dict[str, Any]]:
    """Return the options of `mnemic.open`, and the others."""
    opening = {name: value for name, value in options.items() if name in OpenOptions.__annotations__}
    return cast("OpenOptions", opening), {name: value for name, value in options.items() if name not in opening}


class InMemoryMemoryStore(UrlMemoryStore):
    """Messages in this process; past a limit the oldest are dropped."""

    def __init__(
        self,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        eviction_strategy: str = "fifo",
        **options: Any,
    ) -> None:
        if eviction_strategy not in ("fifo", "archive"):
            raise mnemic.InvalidValueError(f"eviction_strategy is fifo or archive, not {shown(eviction_strategy)}")
        overflow = {"overflow": "archive" if eviction_strategy == "archive" else "drop"}
        super().__init__(max_messages=max_messages, max_tokens=max_tokens, **(overflow | options))

    @property
    def messages(self) -> MessageList[Message]:
        return MessageList(lambda: self._sync.session(self.session_id, **self._limits), _encode, from_core)

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        self.messages.replace(messages)


def _encode(message: Message, known: Mapping[str, mnemic.Message]) -> mnemic.Message:
    return to_core(message)


class PostgresMemoryStore(UrlMemoryStore):
    """Messages in PostgreSQL."""

    def __init__(self, connection_string: str, session_id: str = "default", **options: Any) -> None:
        super().__init__(connection_string, session_id, **options)


class RedisMemoryStore(UrlMemoryStore):
    """Messages on Redis or Valkey: append, limit and expiry are atomic."""

    def __init__(
        self,
        redis_url: str,
        ttl_hours: float = 24,
        max_messages: int = 1000,
        session_id: str = "default",
        **options: Any,
    ) -> None:
        ttl = timedelta(hours=ttl_hours)
        super().__init__(redis_url, session_id, ttl=ttl, max_messages=max_messages, overflow="drop", **options)


class S3MemoryStore(UrlMemoryStore):
    """Messages in a bucket; `options` are those of an s3:// URL, such as the region, and of `mnemic.open`."""

    def __init__(self, bucket_name: str, session_id: str = "default", prefix: str = "memory", **options: Any) -> None:
        opening, of_url = _split(options)
        query = urlencode(of_url)
        url = f"s3://{bucket_name}/{prefix}" + (f"?{query}" if query else "")
        super().__init__(url, session_id, **opening)
