"""Sessions and long-term memory of Google's Agent Development Kit (ADK)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Unpack

from ..checks import check_json, from_segment, new_id, shown, to_segment
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..features.hits import Hit
from ..features.memory_items import MemoryItem
from ..features.state import StateItem
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, MemoryAccess
from ..messages import Message
from ..scope import AsyncScope
from .foreign import blocks_of, form_json, keep, message_of, original, printable_name, require, take_original

require("google-adk", "2.13", "2.14", "google-adk")

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.memory import BaseMemoryService
from google.adk.memory.base_memory_service import SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

__all__ = ["MnemicMemoryService", "MnemicSessionService"]

FRAMEWORK = "google_adk"
SESSION, STATE, ADDED = f"{FRAMEWORK}/session/", f"{FRAMEWORK}/state", f"{FRAMEWORK}/memory/"
"""Keys of state: sessions of a user; state of an app or a user; ids of the events of a session that became memories."""

REPEATED = 50
"""Among how many of the newest events a repeated one is looked for."""
_EVENTS: TypeAdapter[list[Event]] = TypeAdapter(list[Event])


class MnemicSessionService(BaseSessionService):
    """ADK's sessions: those of a user are sessions of the scope `app/user`."""

    def __init__(self, memory: AnyMemory = OWN, **options: Unpack[OpenOptions]) -> None:
        """Use a memory, a scope or a URL, which is opened with `options` on first use."""
        self._memory = MemoryAccess(memory, options=options)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session; raises AlreadyExistsError if there is one with this id."""
        id = (session_id or "").strip() or new_id()
        delta = _json_state(state or {})
        return await self._memory.call(lambda scope: _Stored(scope, app_name, user_id, id).create(delta))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        id, config = (session_id or "").strip(), config or GetSessionConfig()
        return await self._memory.call(lambda scope: _Stored(scope, app_name, user_id, id).get(config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        found = await self._memory.call(lambda scope: _list(scope, app_name, user_id))
        return ListSessionsResponse(sessions=sorted(found, key=lambda one: (one.last_update_time, one.user_id, one.id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        id = (session_id or "").strip()
        await self._memory.call(lambda scope: _Stored(scope, app_name, user_id, id).delete())

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        item = await self._memory.call(lambda scope: _user(scope, app_name, user_id).state.get(STATE))
        return {} if item is None else dict(item.value)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and its changes of state, also if others have added to the session meanwhile.

        An event that is stored already is not added again. Raises SessionNotFoundError if there is no such session,
        ConflictError if a different event has the same id.
        """
        if event.partial:
            return event
        message, delta = _to_message(event), _json_state(event.actions.state_delta)
        known = any(one.id == event.id and one == event for one in session.events[-REPEATED:])
        if await self._memory.call(
            lambda scope: _Stored(scope, session.app_name, session.user_id, session.id).append(message, delta, known)
        ):
            await super().append_event(session, event)
            session.last_update_time = event.timestamp
        return event

    async def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()


class MnemicMemoryService(BaseMemoryService):
    """ADK's long-term memory: events with text become memories of the scope `app/user`."""

    def __init__(
        self,
        memory: AnyMemory = OWN,
        *,
        k: int = 10,
        min_score: float | None = 0.1,
        kinds: Sequence[str] | str | None = ("memory", "note", "fact"),
        **options: Unpack[OpenOptions],
    ) -> None:
        """Use a memory, a scope or a URL, which is opened with `options` on first use.

        A search returns up to `k` hits of these `kinds` with at least `min_score`, as `recall` does.
        """
        self._memory = MemoryAccess(memory, options=options)
        self._k, self._min_score, self._kinds = k, min_score, kinds

    async def add_session_to_memory(self, session: Session) -> None:
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember the events that have text; each only once, so that a deleted one stays deleted."""
        source = to_segment(session_id or "", "session_id")
        entries = [
            MemoryEntry(content=one.content, author=one.author, id=one.id, timestamp=_time(one.timestamp).isoformat())
            for one in events
            if one.content is not None
        ]
        items = [item for entry in entries if (item := _to_memory(entry, custom_metadata, source)) is not None]
        await self._memory.call(lambda scope: _remember(_user(scope, app_name, user_id), ADDED + source, items))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember entries; one with an id replaces the one that has it. Raises InvalidValueError without text."""
        items = [_to_memory(entry, custom_metadata) for entry in memories]
        if None in items:
            raise InvalidValueError(f"a memory needs text: {shown(memories[items.index(None)])}")
        given = [item for item in items if item is not None]
        await self._memory.call(lambda scope: _user(scope, app_name, user_id).remember_many(given))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        hits = await self._memory.call(
            lambda scope: _user(scope, app_name, user_id).recall(
                query, self._k, kinds=self._kinds, min_score=self._min_score
            )
        )
        return SearchMemoryResponse.model_validate_json(form_json({"memories": [_entry_form(hit) for hit in hits]}))

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget an entry by its id, for good: adding its session again does not bring it back."""
        if memory_id:
            await self._memory.call(lambda scope: _user(scope, app_name, user_id).forget(memory_id))

    async def close(self) -> None:
        """Close the memory, if it was given as a URL."""
        await self._memory.close()


class _Stored:
    """A session in the store: its events are messages, its own state is a state of the user's scope."""

    def __init__(self, scope: AsyncScope, app_name: str, user_id: str, id: str) -> None:
        self._ids: dict[str, Any] = {"app_name": app_name, "user_id": user_id, "id": id}
        self._app = scope.scope(to_segment(app_name, "app_name"))
        self._user = self._app.scope(to_segment(user_id, "user_id"))
        self._chat = self._user.session(to_segment(id, "session_id"))
        self._key = SESSION + self._chat.name

    async def create(self, delta: dict[str, Any]) -> Session:
        exists = AlreadyExistsError(f"Session with id {self._ids['id']} already exists.")
        if await self._chat.info() is not None:
            raise exists
        try:
            own = await self._user.state.set(self._key, _by_prefix(delta)[""], if_version=0)
        except ConflictError:
            raise exists from None
        await self._change(delta, State.APP_PREFIX, State.USER_PREFIX)
        return self.session(own, await self._app.state.get(STATE), await self._user.state.get(STATE))

    async def get(self, config: GetSessionConfig) -> Session | None:
        kept = await self._user.state.get_many([self._key, STATE])
        own, info = kept.get(self._key), await self._chat.info()
        if own is None and info is None:
            return None
        limit, after = config.num_recent_events, config.after_timestamp
        since = None if after is None else _time(after)
        messages = [] if limit == 0 else await self._chat.messages(limit, since=since)
        updated = None if info is None else info.last_activity
        found = self.session(own, await self._app.state.get(STATE), kept.get(STATE), updated)
        found.events = [event for event in _to_events(messages) if after is None or event.timestamp >= after]
        return found

    async def append(self, message: Message, delta: dict[str, Any], known: bool) -> bool:
        """Add a message with its changes of state, unless it is `known` to be stored; return whether it is new."""
        if await self._user.state.get(self._key) is None and await self._chat.info() is None:
            raise SessionNotFoundError(f"Session {self._ids['id']} not found.")
        if known:
            return False
        if delta:
            try:
                if await self._chat.get(message.id) == message:
                    return False
            except NotFoundError:
                # State comes first: an event that is stored has changed it.
                await self._change(delta, State.APP_PREFIX, State.USER_PREFIX, "")
        await self._chat.add_many([message], open_images=False)
        return True

    async def delete(self) -> None:
        await self._user.sessions.delete(self._chat.name)
        await self._user.state.delete(self._key)

    async def _change(self, delta: dict[str, Any], *prefixes: str) -> None:
        """Change the state of the app, of the user and, without a prefix, of the session itself."""
        places = {State.APP_PREFIX: (self._app, STATE), State.USER_PREFIX: (self._user, STATE)}
        for prefix, changes in _by_prefix(delta).items():
            if changes and prefix in prefixes:
                scope, key = places.get(prefix, (self._user, self._key))
                await scope.state.update(key, lambda old, new=changes: {**(old or {}), **new})  # type: ignore[misc]

    def session(
        self, own: StateItem | None, app: StateItem | None, user: StateItem | None, updated: datetime | None = None
    ) -> Session:
        """Return the session without events; it was last updated when it was created, if no time is given."""
        items = (("", own), (State.APP_PREFIX, app), (State.USER_PREFIX, user))
        state = {prefix + key: value for prefix, item in items if item for key, value in item.value.items()}
        time = updated or (own and own.created)
        return Session(**self._ids, state=state, last_update_time=time.timestamp() if time else 0.0)


def _lasting(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(State.TEMP_PREFIX)}


def _json_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that is stored, as JSON; raises InvalidValueError, with its key, for a value that has none."""
    found: dict[str, Any] = {}
    for key, value in _lasting(state).items():
        try:
            form = to_jsonable_python(value)
        except ValueError as error:
            raise InvalidValueError(f"state.{key} cannot be kept as JSON: {error}") from None
        found[key] = check_json(form, f"state.{key}")[0]
    return found


def _by_prefix(delta: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return changes of state without their prefixes, by prefix: app, user, and none for the session."""
    found: dict[str, dict[str, Any]] = {State.APP_PREFIX: {}, State.USER_PREFIX: {}, "": {}}
    for key, value in delta.items():
        prefix = next(prefix for prefix in found if key.startswith(prefix))
        found[prefix][key.removeprefix(prefix)] = value
    return found


def _user(scope: AsyncScope, app_name: str, user_id: str) -> AsyncScope:
    return scope.scope(to_segment(app_name, "app_name"), to_segment(user_id, "user_id"))


async def _list(scope: AsyncScope, app_name: str, user_id: str | None) -> list[Session]:
    app = scope.scope(to_segment(app_name, "app_name"))
    top = app if user_id is None else _user(scope, app_name, user_id)
    times = {info.scope: info.last_activity for info in await top.sessions.list()}
    items = await top.state.list(SESSION, below=user_id is None)
    owns = {item.scope / item.key.removeprefix(SESSION): item for item in items}
    users = {item.scope: item for item in await top.state.list(STATE, below=user_id is None)}
    shared, found = await app.state.get(STATE), []
    for path in times | owns:
        if path.parent.parent == app.path:
            stored = _Stored(scope, app_name, from_segment(path.parent.name), from_segment(path.name))
            found.append(stored.session(owns.get(path), shared, users.get(path.parent), times.get(path)))
    return found


async def _remember(user: AsyncScope, key: str, items: list[MemoryItem]) -> None:
    known = await user.state.get(key)
    seen = [] if known is None else known.value
    if new := {item.id: item for item in items if item.id not in seen}:
        await user.remember_many(new.values())
        await user.state.update(key, lambda old: [*(old or []), *(new.keys() - set(old or []))])


def _time(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)


def _to_message(event: Event) -> Message:
    """Return an event as a message, without its temporary state."""
    delta = event.actions.state_delta
    if len(kept := _lasting(delta)) < len(delta):
        event = event.model_copy(update={"actions": event.actions.model_copy(update={"state_delta": kept})})
    form = event.model_dump(mode="json", exclude_defaults=True)
    parts = (form.get("content") or {}).get("parts") or []
    calls, answers = ([part[name] for part in parts if name in part] for name in ("function_call", "function_response"))
    message = message_of(
        "user" if event.author == "user" else "assistant",
        _text(parts),
        [(call.get("id"), call.get("name"), call.get("args", {})) for call in calls],
        [(answer.get("id") or answer.get("name"), answer.get("response")) for answer in answers],
        id=event.id,
        name=None if answers or event.author in ("user", "") else printable_name(event.author),
        timestamp=_time(event.timestamp),
    )
    return keep(FRAMEWORK, message, form)


def _text(parts: list[dict[str, Any]]) -> str | None:
    """Return the text of a content, without the model's thoughts."""
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought")) or None


def _to_events(messages: list[Message]) -> list[Event]:
    """Return the events that were stored as these messages; one for a message that came another way, too."""
    return _EVENTS.validate_json(form_json([take_original(FRAMEWORK, one) or _event_form(one) for one in messages]))


def _event_form(message: Message) -> dict[str, Any]:
    parts = blocks_of(
        message,
        text=lambda text: {"text": text},
        image=lambda kind, data: {"inline_data": {"mime_type": kind, "data": data}},
        call=lambda call, given: {"function_call": {"id": call.id, "name": call.name, "args": given}},
        result=_result,
    )
    return {
        "content": {"role": "model" if message.role == "assistant" else "user", "parts": parts},
        "author": "user" if message.role == "user" else message.name or message.role,
        "id": message.id,
        "timestamp": message.timestamp.timestamp(),
    }


def _result(part: Message) -> dict[str, Any]:
    response = part.content if isinstance(part.content, dict) else {"result": part.text}
    return {"function_response": {"id": part.tool_call_id, "name": part.name or "tool", "response": response}}


def _to_memory(
    entry: MemoryEntry, metadata: Mapping[str, object] | None, source: str | None = None
) -> MemoryItem | None:
    """Return an entry as a memory; None if it has no text."""
    form = entry.model_dump(mode="json", exclude_defaults=True, exclude={"custom_metadata", "id"})
    text = _text(form["content"].get("parts") or [])
    if text is None:
        return None
    kept = keep(FRAMEWORK, Message("user", text, metadata={**(metadata or {}), **entry.custom_metadata}), form)
    created = None
    with suppress(ValueError):
        created = datetime.fromisoformat(entry.timestamp).astimezone(UTC) if entry.timestamp else None
    return MemoryItem(kept.text or "", entry.id or "", metadata=kept.metadata, source=source, created=created)


def _entry_form(hit: Hit) -> dict[str, Any]:
    """Return a hit as the form of an entry; one that ADK did not store is a text of the user's."""
    message = hit.message or Message("user", hit.text, metadata=hit.metadata)
    form = original(FRAMEWORK, message) or {"content": {"role": "user", "parts": [{"text": hit.text}]}}
    said = form.get("timestamp")
    return {
        "content": form["content"],
        "author": form.get("author"),
        "id": hit.id,
        "timestamp": said if isinstance(said, str) else hit.created.isoformat() if hit.created else None,
        "custom_metadata": {name: value for name, value in hit.metadata.items() if name != FRAMEWORK},
    }
