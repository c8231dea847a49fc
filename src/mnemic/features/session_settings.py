"""Session settings, stored with the session: limits, overflow policy, and retention.

They are in the head of the session's stream. Each write expects the settings that its handle has cached and fails
if they have changed, so every handle obeys the newest without reading them first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

from msgspec import UNSET, MsgspecError, UnsetType, json
from msgspec.structs import asdict, replace

from ..checks import check_count, check_number, check_ttl, shown
from ..errors import InvalidValueError, UnreadableStoreError
from ..messages import Message
from ..records import ARCHIVED, MESSAGE, SUMMARY, ScopePath, Value
from ..store.protocol import Store
from ..store.query import Expect, Op, Touch
from .summary import Summarize
from .turns import Turn

Retention: TypeAlias = Literal["single_run", "session", "persistent"]
"""When a session is cleared: around each run, at the end of its `with`, or never."""
RETENTIONS: tuple[Retention, ...] = get_args(Retention)
Handler: TypeAlias = Callable[[list[Message]], Awaitable[Any] | Any]
Overflow: TypeAlias = Literal["drop", "archive"] | Summarize | Handler
"""Overflow policy: "drop", "archive", `Summarize` (archive and summarize), or a function that receives the
messages.
"""


class SessionSettings(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Limits, overflow policy and retention of a session.

    A function or a model cannot be stored: `overflow` is then "function" or "summarize", and a handle without one
    archives instead.
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
            raise InvalidValueError(f"retention must be one of {', '.join(RETENTIONS)}: {shown(self.retention)}")
        if self.ttl is not None:
            check_ttl(self.ttl)


DEFAULT = SessionSettings()
"""Settings of a session without any."""


NOTHING_GIVEN = (UNSET,) * len(SessionSettings.__struct_fields__)


class GivenSettings:
    """Settings given by a caller, including a function or model that cannot be stored."""

    def __init__(
        self,
        max_messages: int | None | UnsetType = UNSET,
        max_tokens: int | None | UnsetType = UNSET,
        overflow: Overflow | UnsetType = UNSET,
        keep: float | UnsetType = UNSET,
        retention: Retention | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
    ) -> None:
        """Raise InvalidValueError for an invalid value."""
        self.handler: Summarize | Handler | None = None
        self.changes: dict[str, Any] = {}
        if (max_messages, max_tokens, overflow, keep, retention, ttl) == NOTHING_GIVEN:
            return  # a fast path: most handles are opened without settings
        stored: Any = overflow
        if isinstance(overflow, Summarize):
            self.handler, stored = overflow, "summarize"
        elif callable(overflow):
            self.handler, stored = overflow, "function"
        elif overflow is not UNSET and overflow not in ("drop", "archive"):
            raise InvalidValueError(f"overflow is 'drop', 'archive', a function or Summarize(…): {shown(overflow)}")
        values = (max_messages, max_tokens, stored, keep, retention, ttl)
        named = zip(SessionSettings.__struct_fields__, values, strict=True)
        self.changes = {name: value for name, value in named if value is not UNSET}
        self.apply_to(DEFAULT)

    def apply_to(self, settings: SessionSettings) -> SessionSettings:
        """Return settings with the given ones replaced; raises InvalidValueError."""
        return replace(settings, **self.changes) if self.changes else settings


class SettingsView:
    """Settings for a write: those that are stored, those that it stores, and the operations that do so."""

    def __init__(
        self, scope: ScopePath, stored: str | None, before: SessionSettings, settings: SessionSettings
    ) -> None:
        self.stored = stored
        self.before = before
        self.settings = settings
        self.limited: bool = settings.max_messages is not None or settings.max_tokens is not None
        self.confirmed = False
        """Whether the store has accepted these settings from this handle."""
        self.written: str | None = stored if settings == before else _encode(settings)
        """The text stored after the write."""
        ops: list[Op] = [Expect(scope, MESSAGE, settings=stored)]
        if self.written != stored:
            ops.append(Touch(scope, MESSAGE, settings.ttl, self.written))
        if self.limited and (settings.ttl is not None or before.ttl is not None):
            # The archive lives as long as the messages.
            ops += [Touch(scope, kind, settings.ttl) for kind in KINDS_BESIDE.get(settings.overflow, ())]
        self.ops: tuple[Op, ...] = tuple(ops)


KINDS_BESIDE = {"archive": (ARCHIVED,), "summarize": (ARCHIVED, SUMMARY), "function": (ARCHIVED,)}
"""Kinds kept beside the messages of a limited session, by overflow policy."""


class KnownSession:
    """Knowledge of this process about a session, for all its handles; every write checks that it still holds."""

    __slots__ = ("candidates", "last_user", "stored", "totals")

    def __init__(self) -> None:
        self.stored: str | None | UnsetType = UNSET
        """The stored settings, as they were last seen."""
        self.candidates: list[Turn] = []
        """The next turns to evict, oldest first, while `last_user` exists; others may have removed some."""
        self.last_user: str | None = None
        """The key of the user's last message, as last looked up; it is never evicted."""
        self.totals: tuple[int, int] = (0, 0)
        """Number of messages and tokens after the last write that reported them."""


MAX_KNOWN = 256
"""How many sessions of a store are known at a time."""
_known: WeakKeyDictionary[Store, dict[ScopePath, KnownSession]] = WeakKeyDictionary()


def known_session(store: Store, scope: ScopePath) -> KnownSession:
    """Return the knowledge about a session: with a new handle for each message, it is not read each time."""
    sessions = _known.setdefault(store, {})
    # Without a lock: two threads at once may each learn it.
    found = sessions.pop(scope, None)
    sessions[scope] = found = found or KnownSession()
    if len(sessions) > MAX_KNOWN:
        sessions.pop(next(iter(list(sessions))), None)
    return found


def forget_known(scope: ScopePath) -> None:
    """Forget what is known about the sessions of a scope and below, which has eviction candidates with their texts."""
    for sessions in list(_known.values()):
        for known in [known for known in list(sessions) if scope.contains(known)]:
            sessions.pop(known, None)


class SettingsCache:
    """The settings that one handle of a session knows.

    Given settings are stored with its first write, and again if the session was recreated; otherwise it obeys the
    stored ones.
    """

    def __init__(self, scope: ScopePath, given: GivenSettings, known: KnownSession | None = None) -> None:
        self._scope = scope
        self._given = given
        self.known: KnownSession = known or KnownSession()
        self._given_stored = False
        self.certain: bool = False
        """Whether the store has confirmed the cached settings."""
        stored = self.known.stored
        if stored is UNSET:
            # Most often a session is opened with the settings that it has; if not, the first write detects it.
            settings = before = given.apply_to(DEFAULT)
            stored = _encode(settings) if settings != DEFAULT else None
        else:
            before = session_settings(stored)
            settings = given.apply_to(before)
        self.view: SettingsView = SettingsView(scope, stored, before, settings)

    def learn(self, stored: str | None) -> None:
        settings = before = session_settings(stored)
        self.known.stored = stored
        if stored is None or not self._given_stored:
            settings = self._given.apply_to(before)
        self.view = SettingsView(self._scope, stored, before, settings)
        self.certain = True

    def confirm(self, view: SettingsView) -> None:
        """Record that a write succeeded with this view."""
        self.known.stored = view.written
        if self.view is view:
            if view.before is not view.settings:
                self.view = SettingsView(self._scope, view.written, view.settings, view.settings)
            self.view.confirmed = True
        self._given_stored = self.certain = True

    def change(self, given: GivenSettings) -> SettingsView:
        """Return a view that changes settings; they count as given to this handle."""
        if "overflow" in given.changes:
            self._given.handler = given.handler
        self._given.changes |= given.changes
        view = self.view
        self.view = SettingsView(self._scope, view.stored, view.before, given.apply_to(view.settings))
        return self.view

    def all_given(self) -> GivenSettings:
        """Return all settings, to pass to another session."""
        given = GivenSettings()
        given.changes = asdict(self.view.settings)
        given.handler = self._given.handler
        return given

    @property
    def overflow(self) -> Overflow:
        """The overflow policy of this handle; it archives if it lacks the function or model."""
        handler, stored = self._given.handler, self.view.settings.overflow
        if handler is not None and stored == ("summarize" if isinstance(handler, Summarize) else "function"):
            return handler
        return "drop" if stored == "drop" else "archive"


_decoder = json.Decoder(SessionSettings)


def _encode(settings: SessionSettings) -> str:
    return json.encode(settings).decode()


def session_settings(text: str | None) -> SessionSettings:
    """Return the stored settings of a session; raises UnreadableStoreError."""
    if text is None:
        return DEFAULT
    try:
        return _decoder.decode(text)
    except MsgspecError as error:
        raise UnreadableStoreError(f"a session has settings that cannot be read: {shown(text)}") from error
