"""mem0's Python API: `Memory` and `AsyncMemory` with the calls, results and errors of mem0 2.2, which is not needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import date, datetime
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from msgspec import UNSET
from typing_extensions import Unpack

from ..agents.model_requests import EXTRACT, Asked, ExtractedFacts, ask_for, asked, numbered
from ..checks import shown, to_segment
from ..errors import InvalidValueError, NotFoundError
from ..event_loop import Inline
from ..mem0 import memories as operations
from ..mem0.memories import Memories, Text
from ..memory import OpenOptions
from ..memory_access import AnyMemory, ClosesMemory, MemoryAccess
from ..messages import Message
from ..records import ScopePath
from ..transfer.items import time_of
from ..transfer.mem0 import expiry_of
from .mem0_config import ask_model, chat_model, configured_model, default_url, mem0_error, store_of, value_of

log: logging.Logger = logging.getLogger("mnemic.adapters.mem0")

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
Row: TypeAlias = dict[str, Any]

IDS = ("user_id", "agent_id", "run_id")
PROMOTED = (*IDS, "actor_id", "role", "attributed_to", "expiration_date")
"""Fields of a result beside its metadata, if a memory has them."""
PROCEDURAL = "procedural_memory"
PROCEDURE = """\
Write down what the agent did in the conversation, so that it could continue, or do the same again: the goal, each \
step in order with its exact result, what failed and why, and what is left to do. Keep names, numbers and code \
as they are. Answer with that alone."""


class _Opened(ClosesMemory):
    """The memory of a configuration, and its model."""

    def __init__(
        self, config: Any = None, *, memory: AnyMemory | None = None, model: Any = None, **options: Unpack[OpenOptions]
    ) -> None:
        """Take mem0's configuration, as MemoryConfig or dict, or instead of it a memory and a model for `infer`.

        `options` are those of `mnemic.open`, for a URL. Raises InvalidValueError for something else, ImportError if the
        configured LLM needs mem0ai.
        """
        self.config: Any = config
        self.custom_instructions: str | None = value_of(config, "custom_instructions")
        store = value_of(config, "vector_store")
        collection = value_of(store, "config", "collection_name")
        if memory is None and value_of(store, "provider") == "mnemic":
            memory, options = store_of(value_of(store, "config"), options)
        elif memory is None:
            if isinstance(config, Mapping) and (ignored := {"vector_store", "embedder", "graph_store"} & config.keys()):
                log.warning("%s of the configuration are not used: Mnemic stores and searches", ", ".join(ignored))
            memory = default_url(config)
        name = None if collection in (None, "mem0") else to_segment(collection, "collection_name")
        self._memory = MemoryAccess(memory, name, options)
        model = configured_model(config) if model is None else model
        self._model: Asked | None = None if model is None else asked(model)
        self._places: dict[str, ScopePath] = {}

    @classmethod
    def from_config(cls, config_dict: Row) -> Self:
        """Return the memory of a configuration: mem0's, or a `vector_store` with the provider "mnemic" and a `url`."""
        if not isinstance(config_dict, Mapping):
            raise InvalidValueError(f"a configuration is a dict: {shown(config_dict)}")
        return cls(config_dict)

    async def _run(self, work: Callable[[Memories], Coroutine[Any, Any, Result]]) -> Result:
        raise NotImplementedError

    async def _change(self, work: Callable[[Memories], Coroutine[Any, Any, object]]) -> None:
        try:
            await self._run(work)
        except NotFoundError as error:
            raise InvalidValueError(str(error)) from None  # mem0 raises ValueError

    async def _learned(self, model: Asked, texts: list[Text], prompt: str | None) -> list[Text]:
        """Return the facts that a model finds in texts."""
        task = "\n\n".join(filter(None, (EXTRACT, prompt or self.custom_instructions)))
        lines = [f"{one.actor or one.role}: {one.text}" for one in texts]
        found = await ask_for(ExtractedFacts, partial(ask_model, model), task, numbered(lines))
        sources = {fact.text: texts[fact.message - 1] for fact in found.facts if 0 < fact.message <= len(texts)}
        return [Text(text, source.role, source.actor) for text, source in sources.items() if text.strip()]


class AsyncMemory(_Opened):
    """The `AsyncMemory` of mem0, over the memories of scopes."""

    async def _run(self, work: Callable[[Memories], Coroutine[Any, Any, Result]]) -> Result:
        return await self._memory.call(lambda scope: work(Memories(scope, self._places)))

    async def add(
        self,
        messages: str | Row | Sequence[Row],
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        metadata: Row | None = None,
        timestamp: Any = None,
        expiration_date: Any = None,
        infer: bool = True,
        memory_type: str | None = None,
        prompt: str | None = None,
        llm: Any = None,
    ) -> Row:
        """Add what a model finds in messages, or with `infer=False`, or without a model, the messages themselves.

        All are added or none. Unless `infer` is false, a text that is there already is not added again. `timestamp`,
        a time, is when it was said; `llm`, a chat model of LangChain, writes a procedural memory. Raises mem0's errors.
        """
        ids = _ids({"user_id": user_id, "agent_id": agent_id, "run_id": run_id})
        if not ids:
            raise mem0_error("ValidationError", f"add needs one of {', '.join(IDS)}", "VALIDATION_001")
        if memory_type not in (None, PROCEDURAL):
            message = f"memory_type must be {PROCEDURAL!r} or None: {shown(memory_type)}"
            raise mem0_error("ValidationError", message, "VALIDATION_002")
        meta = _without_ids(metadata or {})
        named = "metadata.created_at" if "created_at" in meta else "timestamp"
        created, expires = _time(meta.pop("created_at", timestamp), named), expiry_of(_date(expiration_date))
        texts = _texts(messages)
        if procedure := agent_id is not None and memory_type == PROCEDURAL:
            model = self._model if llm is None else asked(chat_model(llm))
            if model is None:
                raise InvalidValueError(
                    f"{PROCEDURAL} needs a model: give one as `model`, or as `llm` in a configuration"
                )
            said = [Message("user", f"{one.actor or one.role}: {one.text}") for one in texts]
            texts = [Text(await ask_model(model, [Message("system", prompt or PROCEDURE), *said]))]
            meta["memory_type"] = PROCEDURAL
        elif infer and self._model is not None and texts:
            texts = await self._learned(self._model, texts, prompt)
        events = await self._run(
            lambda memories: memories.add(
                texts, ids, metadata=meta, created=created, expires=expires, distinct=infer and not procedure
            )
        )
        added = [event for event in events if event.event == "ADD"]
        names = ("id", "memory", "event") if infer else ("id", "memory", "event", "actor_id", "role")
        return {"results": [{name: getattr(event, name) for name in names} for event in added]}

    async def search(
        self,
        /,
        query: str,
        *,
        top_k: int = 20,
        filters: Row | None = None,
        threshold: float | None = 0.1,
        rerank: bool = False,
        explain: bool = False,
        reference_date: Any = None,
        show_expired: bool = False,
        **kwargs: Any,
    ) -> Row:
        """Return the memories that pass filters and answer a question, best first, with a score from `threshold` to 1.

        Filters name a user, agent or run. What has expired is deleted, so that `show_expired` shows no more; ranking
        uses all signals of recall, so that `rerank` changes nothing. Raises ValueError.
        """
        if reference_date is not None:
            raise InvalidValueError("reference_date is not supported: filter by created_at")
        wanted = _wanted(filters, kwargs, top_k)
        if not isinstance(query, str) or not query.strip():
            raise InvalidValueError(f"query must be a text that is not empty: {shown(query)}")
        if threshold is not None and (not isinstance(threshold, int | float) or not 0 <= threshold <= 1):
            raise InvalidValueError(f"threshold must be a number from 0 to 1: {shown(threshold)}")

        async def search(memories: Memories) -> list[operations.Mem0Memory]:
            asked = memories.filters(wanted)
            return await memories.search(query.strip(), asked, top_k, min_score=threshold or None, explain=explain)

        found = await self._run(search)
        return {"results": [_row(one, score=one.score, explain=explain) for one in found]}

    async def get_all(
        self, /, *, filters: Row | None = None, top_k: int = 20, show_expired: bool = False, **kwargs: Any
    ) -> Row:
        """Return the memories that pass filters, which name a user, agent or run: of each user, the newest first.

        Raises ValueError.
        """
        wanted = _wanted(filters, kwargs, top_k)
        found = await self._run(lambda memories: memories.first(memories.filters(wanted), top_k))
        return {"results": [_row(one) for one in found]}

    async def get(self, memory_id: str) -> Row | None:
        """Return a memory; None if there is none with this id."""
        try:
            return _row(await self._run(lambda memories: memories.get(memory_id)), score=None)
        except NotFoundError:
            return None

    async def update(
        self,
        memory_id: str,
        text: str | None = None,
        metadata: Row | None = None,
        expiration_date: Any = UNSET,
        data: str | None = None,
    ) -> Row:
        """Change a memory; metadata that is not given stays, `expiration_date=None` removes it, `data` is `text`.

        Raises ValueError.
        """
        changes: Row = {"text": data if text is None else text}
        if metadata is not None:
            changes["metadata"] = _without_ids(metadata)
        if expiration_date is not UNSET:
            changes["expiration_date"] = _date(expiration_date)
        await self._change(lambda memories: memories.update(memory_id, changes, merge=True))
        return {"message": "Memory updated successfully!"}

    async def delete(self, memory_id: str) -> Row:
        """Delete a memory; raises ValueError."""
        await self._change(lambda memories: memories.delete(memory_id))
        return {"message": "Memory deleted successfully!"}

    async def delete_all(
        self, user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> Row:
        """Delete the memories of a user, agent or run with their history; raises ValueError."""
        if not (ids := _ids({"user_id": user_id, "agent_id": agent_id, "run_id": run_id})):
            raise InvalidValueError(f"delete_all needs one of {', '.join(IDS)}; reset deletes all memories")
        await self._run(lambda memories: memories.delete_all(memories.filters(ids)))
        return {"message": "Memories deleted successfully!"}

    async def history(self, memory_id: str) -> list[Row]:
        """Return the events of a memory, oldest first; a deleted one has no texts. Empty for an unknown id."""
        try:
            found = await self._run(lambda memories: memories.history(memory_id))
        except NotFoundError:
            return []
        names = ("id", "memory_id", "old_memory", "new_memory", "event", "is_deleted", "actor_id", "role")
        return [
            {name: getattr(one, name) for name in names}
            | {"created_at": one.created_at.isoformat(), "updated_at": one.updated_at.isoformat()}
            for one in found
        ]

    async def reset(self) -> None:
        """Delete all memories, with their history."""
        await self._run(lambda memories: memories.reset())


def _sync(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Return a method of AsyncMemory as one of Memory, whose calls never wait for an event loop."""

    @wraps(method)
    def run(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        return Inline().run(method(self, *arguments, **named))

    return run


class Memory(_Opened):
    """The `Memory` of mem0, over the memories of scopes."""

    add = _sync(AsyncMemory.add)
    search = _sync(AsyncMemory.search)
    get_all = _sync(AsyncMemory.get_all)
    get = _sync(AsyncMemory.get)
    update = _sync(AsyncMemory.update)
    delete = _sync(AsyncMemory.delete)
    delete_all = _sync(AsyncMemory.delete_all)
    history = _sync(AsyncMemory.history)
    reset = _sync(AsyncMemory.reset)

    async def _run(self, work: Callable[[Memories], Coroutine[Any, Any, Result]]) -> Result:
        return self._memory.call_sync(lambda scope: work(Memories(scope, self._places)))


def _ids(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids that are given, without space around them; raises InvalidValueError."""
    found = {name: str(id).strip() for name in IDS if (id := given.get(name)) is not None}
    for name, id in found.items():
        if not id or any(character.isspace() for character in id):
            raise InvalidValueError(f"{name} must be an id without spaces: {shown(given[name])}")
    return found


def _without_ids(metadata: Row) -> Row:
    """Return metadata without ids, which only arguments can set."""
    if ignored := [name for name in (*IDS, "actor_id") if name in metadata]:
        log.warning("ids cannot be set through metadata, and are ignored: %s", ", ".join(ignored))
    return {name: value for name, value in metadata.items() if name not in ignored}


def _time(value: Any, name: str) -> datetime | None:
    return time_of(value.isoformat() if isinstance(value, datetime) else value, name)


def _date(value: Any) -> str | None:
    """Return a day such as "2030-12-31"; raises InvalidValueError."""
    if value is None or isinstance(value, date):  # a datetime is a date
        return None if value is None else f"{value:%Y-%m-%d}"
    try:
        return date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise InvalidValueError(f"expiration_date must be a day such as 2030-12-31: {shown(value)}") from None


def _texts(messages: Any) -> list[Text]:
    """Return the texts of messages but those of the system; raises mem0's ValidationError."""
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    several = [given] if isinstance(given, Mapping) else given
    if not isinstance(several, list) or not all(isinstance(one, Mapping) for one in several):
        message = f"messages must be a text, a dict or a list of dicts: {shown(messages)}"
        raise mem0_error("ValidationError", message, "VALIDATION_003")
    found = []
    for one in several:
        content = one.get("content")
        if isinstance(content, list):
            content = " ".join(
                part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text"
            )
        if not isinstance(content, str) or not content.strip() or one.get("role") is None:
            log.warning("a message without a role or a text is not added")
        elif one["role"] != "system":
            found.append(Text(content, str(one["role"]), one.get("name") or None))
    return found


def _wanted(filters: Row | None, others: Row, top_k: int) -> Row:
    """Return filters with checked ids; raises InvalidValueError."""
    if wrong := [name for name in IDS if name in others]:
        raise InvalidValueError(f"{wrong[0]} belongs in filters: filters={{{wrong[0]!r}: …}}")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0:
        raise InvalidValueError(f"top_k must be an integer that is not negative: {shown(top_k)}")
    if not isinstance(filters or {}, Mapping):
        raise InvalidValueError(f"filters must be a dict such as {{'user_id': 'alice'}}: {shown(filters)}")
    if not (ids := _ids(filters or {})):
        raise InvalidValueError(f"filters must have one of {', '.join(IDS)}: {shown(filters)}")
    return {**(filters or {}), **ids}


def _row(memory: operations.Mem0Memory, *, explain: bool = False, **score: Any) -> Row:
    """Return a memory as mem0 does."""
    metadata: Row = dict(memory.metadata or {})
    if memory.categories:
        metadata["categories"] = memory.categories
    if memory.app_id:
        metadata["app_id"] = memory.app_id
    promoted = {name: getattr(memory, name, None) for name in PROMOTED} | {
        "attributed_to": metadata.pop("attributed_to", None)
    }
    row = {"id": memory.id, "memory": memory.memory, "hash": memory.hash, "metadata": metadata or None, **score}
    for name in ("created_at", "updated_at"):
        row[name] = getattr(memory, name).isoformat()
    if explain:
        row["score_details"] = memory.score_breakdown
    return row | {name: value for name, value in promoted.items() if value is not None}
