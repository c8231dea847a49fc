"""The settings of a session, stored with it: its limits, what happens past them, how long it is kept.

They lie in the head of the session's stream. Each write expects those that its handle knows and is refused if
others have changed them, so every handle obeys the newest, and none reads them before it writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from msgspec import UNSET, MsgspecError, UnsetType, json

from ..checks import check_count, check_number, check_ttl, shown
from ..errors import InvalidValueError
from ..records import Message, ScopePath, Value
from ..store.query import Expect, Op, Touch
from .kinds import ARCHIVED, MESSAGE, SUMMARY
from .summary import Summarize

Retention: TypeAlias = Literal["single_run", "session", "persistent"]
"""When a session is cleared: around each run, at the end of its `with`, or never."""
RETENTIONS: tuple[Retention, ...] = get_args(Retention)
Handler: TypeAlias = Callable[[list[Message]], Awaitable[Any] | Any]
Overflow: TypeAlias = Literal["drop", "archive"] | Summarize | Handler
"""What happens to messages past a limit: dropped, archived, archived and summarized, or given to a function."""


class SessionSettings(Value, frozen=True, kw_only=True, omit_defaults=True):
    """How much a session may hold, what happens to what overflows, and how long it is kept.

    A function and a model cannot be stored: `overflow` then says "function" or "summarize", and a handle
    that was not given one archives instead.
    """

    max_messages: int | None = None
    max_tokens: int | None = None
    overflow: Literal["drop", "archive", "function", "summarize"] = "archive"
    keep: float = 0.8
    retention: Retention = "persistent"
    ttl: timedelta | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for a limit below 1, a share outside 0 to 1, or an unknown retention."""
        if self.max_messages is not None:
            check_count(self.max_messages, "max_messages", least=1)
        if self.max_tokens is not None:
            check_count(self.max_tokens, "max_tokens", least=1)
        if not 0 < check_number(self.keep, "keep") <= 1:
            raise InvalidValueError(f"keep is a share of the limit, above 0 and up to 1: {self.keep}")
        if self.retention not in RETENTIONS:
            raise InvalidValueError(
                f"retention must be one of {', '.join(RETENTIONS)}: {shown(self.retention)}"
            )
        if self.ttl is not None:
            check_ttl(self.ttl)

    @property
    def limited(self) -> bool:
        """Whether the session is limited in messages or tokens."""
        return self.max_messages is not None or self.max_tokens is not None


DEFAULT = SessionSettings()
"""The settings of a session for which nobody has given any."""


class GivenSettings:
    """The settings that a caller names, and the function or model among them that cannot be stored."""

    def __init__(
        self,
        max_messages: int | None | UnsetType = UNSET,
        max_tokens: int | None | UnsetType = UNSET,
        overflow: Overflow | UnsetType = UNSET,
        keep: float | UnsetType = UNSET,
        retention: Retention | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
    ) -> None:
        """Raise InvalidValueError for a value that is not allowed."""
        self.handler: Summarize | Handler | None = None
        stored: Any = overflow
        if isinstance(overflow, Summarize):
            self.handler, stored = overflow, "summarize"
        elif callable(overflow):
            self.handler, stored = overflow, "function"
        elif overflow is not UNSET and overflow not in ("drop", "archive"):
            raise InvalidValueError(
                f"overflow is 'drop', 'archive', a function or Summarize(…): {shown(overflow)}"
            )
        named = {
            "max_messages": max_messages,
            "max_tokens": max_tokens,
            "overflow": stored,
            "keep": keep,
            "retention": retention,
            "ttl": ttl,
        }
        self.changes: dict[str, Any] = {name: value for name, value in named.items() if value is not UNSET}
        self.over(DEFAULT)

    def over(self, settings: SessionSettings) -> SessionSettings:
        """Return settings with those that are given in place of what they were."""
        if not self.changes:
            return settings
        return SessionSettings(
            **{name: getattr(settings, name) for name in settings.__struct_fields__} | self.changes
        )


class SettingsView:
    """Settings as writes use them: the text that is stored, what it says, and what holds from now on."""

    def __init__(
        self, home: ScopePath, stored: str | None, before: SessionSettings, settings: SessionSettings
    ) -> None:
        self.stored = stored
        self.before = before
        self.settings = settings
        self.written = stored if settings == before else encode(settings)
        """The text that is stored once the write is done."""
        ops: list[Op] = [Expect(home, MESSAGE, settings=stored)]
        if self.written != stored:
            ops.append(Touch(home, MESSAGE, settings.ttl, self.written))
        if settings.limited and (settings.ttl is not None or before.ttl is not None):
            ops += [Touch(home, kind, settings.ttl) for kind in KEPT.get(settings.overflow, ())]
        self.ops = tuple(ops)
        """What a write adds to rely on the settings, to change them, and to keep the archive alive."""


KEPT = {"archive": (ARCHIVED,), "summarize": (ARCHIVED, SUMMARY), "function": (ARCHIVED,)}
"""The kinds of what is kept beside the log of a limited session, by what happens to what overflows."""


class KnownSettings:
    """What one handle knows of its session's settings.

    Those that it was given are stored with its first write, and again if the session has begun anew;
    otherwise it obeys whatever is stored.
    """

    def __init__(self, home: ScopePath, given: GivenSettings) -> None:
        self._home = home
        self._given = given
        self._declared = False
        """Whether the session has had what was given."""
        self.certain = False
        """Whether the store has confirmed what is known."""
        # Most often a session is opened with the settings that it has; if not, the first write tells.
        settings = given.over(DEFAULT)
        stored = encode(settings) if settings != DEFAULT else None
        self.view = SettingsView(home, stored, settings, settings)

    def learn(self, stored: str | None) -> None:
        """Take what the store says that the session has."""
        settings = before = decode(stored)
        if stored is None or not self._declared:
            settings = self._given.over(before)
        self.view = SettingsView(self._home, stored, before, settings)
        self.certain = True

    def confirm(self, view: SettingsView) -> None:
        """Take note that a write was done with this view."""
        if self.view is view and view.before is not view.settings:
            self.view = SettingsView(self._home, view.written, view.settings, view.settings)
        self._declared = self.certain = True

    def change(self, given: GivenSettings) -> SettingsView:
        """Return the view with which a write changes settings; they count as given to this handle."""
        if "overflow" in given.changes:
            self._given.handler = given.handler
        self._given.changes |= given.changes
        self.view = SettingsView(
            self._home, self.view.stored, self.view.before, given.over(self.view.settings)
        )
        return self.view

    def given(self) -> GivenSettings:
        """Return all settings as they would be given to another session."""
        twin = GivenSettings()
        settings = self.view.settings
        twin.changes = {name: getattr(settings, name) for name in settings.__struct_fields__}
        twin.handler = self._given.handler
        return twin

    @property
    def overflow(self) -> Overflow:
        """What this handle does with what overflows; it archives what it cannot hand over."""
        handler, stored = self._given.handler, self.view.settings.overflow
        if handler is not None and stored == ("summarize" if isinstance(handler, Summarize) else "function"):
            return handler
        return "drop" if stored == "drop" else "archive"


_encoder = json.Encoder()
_decoder = json.Decoder(SessionSettings)


def encode(settings: SessionSettings) -> str:
    """Return settings as the text that is stored."""
    return _encoder.encode(settings).decode()


def decode(text: str | None) -> SessionSettings:
    """Return settings from what is stored; raises UnreadableStoreError if it is not ours."""
    if text is None:
        return DEFAULT
    try:
        return _decoder.decode(text)
    except MsgspecError as error:
        from ..errors import UnreadableStoreError

        raise UnreadableStoreError(f"a session has settings that cannot be read: {shown(text)}") from error
