"""LangGraph's checkpoints in Mnemic: a `BaseCheckpointSaver`."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice
from operator import itemgetter
from secrets import token_hex
from typing import Any, Unpack
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from ..checks import JSON, MAX_SIZE, check_choice, check_several, from_segment, shown, to_segment
from ..errors import InvalidValueError
from ..features.state import AsyncState
from ..memory import OpenOptions
from ..memory_access import OWN, AnyMemory, ClosesMemory, MemoryAccess, sync_and_async
from ..scope import AsyncScope
from ..store.retry import retry_conflicts

PREFIX = "langgraph/"
CHECKPOINT, LATEST, CHANNEL, WRITE = (f"{PREFIX}{kind}" for kind in ("checkpoint", "latest", "channel", "write"))
"""Keys in the state of a thread: CHECKPOINT/namespace/id, LATEST/namespace for the id of the newest checkpoint,
CHANNEL/namespace/channel/version, and WRITE/namespace/id/task/index. What is too long for one value continues under the
same key and /1, /2 …"""
PART = MAX_SIZE - 10_000
"""Maximum number of characters in one value."""
LONG = 100
"""Names with more characters are shortened in keys."""
DELETED, COPIED = 500, 50
"""How many values one write deletes, and copies."""

Row = dict[str, Any]
"""A stored checkpoint without the values of its channels."""
Place = tuple[str, str]
"""A namespace and the id of a checkpoint, as in keys."""
Rows = dict[Place, Row]
"""The checkpoints of a thread."""
Chosen = Callable[[Rows, Container[str]], Callable[[Place], bool]]
"""A function of the checkpoints and keys of a thread that returns which of the checkpoints to delete."""


class MnemicSaver(ClosesMemory, BaseCheckpointSaver[str]):
    """LangGraph's checkpoints, in the state of a scope for each thread, which recall does not search.

    The scope has the name of the thread. Each version of a channel is stored once, not with every checkpoint.
    """

    def __init__(
        self, memory: AnyMemory = OWN, *, serde: SerializerProtocol | None = None, **options: Unpack[OpenOptions]
    ) -> None:
        """Keep threads below a scope, or in a memory, given as such or as a URL that is opened on first use.

        `serde` is LangGraph's serializer, by default its own; `options` are those of `mnemic.open`.
        """
        super().__init__(serde=serde)
        self._memory = MemoryAccess(memory, options=options)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version after the current one; of two branches of a thread, each gets its own."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{token_hex(8)}"

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all, newest first; a `filter` compares metadata."""
        places = self._memory.call_sync(lambda scope: _find(scope, config, before))
        read = (self._memory.call_sync(partial(self._read, thread, key, filter)) for thread, key in places)
        return islice((one for one in read if one is not None), None if limit is None else max(limit, 0))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        left = sys.maxsize if limit is None else limit
        for thread, key in await self._memory.call(lambda scope: _find(scope, config, before)):
            if left <= 0:
                break
            if found := await self._memory.call(partial(self._read, thread, key, filter)):
                yield found
                left -= 1

    async def _get_tuple(self, scope: AsyncScope, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its thread and namespace; or None."""
        thread, namespace, id = _thread(config), _namespace(config), get_checkpoint_id(config)
        if not id:
            latest = await _state(scope, thread).get(_key(LATEST, namespace))
            id = None if latest is None else latest.value
        return None if id is None else await self._read(thread, _key(CHECKPOINT, namespace, id), None, scope)

    async def _read(
        self, thread: str, key: str, filter: Mapping[str, Any] | None, scope: AsyncScope
    ) -> CheckpointTuple | None:
        """Return a stored checkpoint with the values of its channels and its pending writes, if its metadata match."""
        state = _state(scope, thread)
        if (item := await state.get(key)) is None:
            return None
        namespace, id, parent = item.value["namespace"], item.value["id"], item.value["parent"]
        checkpoint, metadata = self._loads(item.value)
        if any(metadata.get(name) != value for name, value in (filter or {}).items()):
            return None
        keys = self._channels(item.value)
        stored = {key: item.value for key, item in (await state.get_many([*keys.values()])).items()}
        if more := [f"{key}/{n}" for key, first in stored.items() for n in range(1, first["parts"])]:
            stored |= {key: item.value for key, item in (await state.get_many(more)).items()}
        values = {name: self._unpack(key, stored) for name, key in keys.items() if key in stored}
        written = {item.key: item.value for item in await state.list(f"{_key(WRITE, namespace, id)}/")}
        pending = [(key, write) for key, write in written.items() if isinstance(write, dict)]
        pending.sort(key=lambda one: writes_sort_key(one[1]["path"], one[1]["task"], one[1]["index"]))
        return CheckpointTuple(
            _config(thread, namespace, id),
            {**checkpoint, "channel_values": values},
            metadata,
            _config(thread, namespace, parent) if parent else None,
            [(write["task"], write["channel"], self._unpack(key, written)) for key, write in pending],
        )

    async def _put(
        self,
        scope: AsyncScope,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the values of its new channel versions, all or none; return its config."""
        thread, namespace, id = _thread(config), _namespace(config), checkpoint["id"]
        values = checkpoint["channel_values"]
        stored: dict[str, JSON] = {}
        for name, version in new_versions.items():
            if name in values:
                stored |= self._pack(_key(CHANNEL, namespace, name, version), values[name])
        described = get_checkpoint_metadata(config, metadata)
        kept = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        type, data = self.serde.dumps_typed([kept, described])
        stored[_key(CHECKPOINT, namespace, id)] = {
            "id": id,
            "namespace": namespace,
            "parent": get_checkpoint_id(config),
            "run": described.get("run_id"),
            "type": type,
            "data": b64encode(data).decode(),
        }
        state, newest = _state(scope, thread), _key(LATEST, namespace)

        async def write() -> None:
            latest = await state.get(newest)
            if latest is not None and latest.value >= id:
                await state.set_many(stored)
            else:  # unless another writer was faster
                seen = 0 if latest is None else latest.version
                await state.set_many({**stored, newest: id}, if_versions={newest: seen})

        await retry_conflicts(write, f"storing a checkpoint of the thread {thread!r}")
        return _config(thread, namespace, id)

    async def _put_writes(
        self,
        scope: AsyncScope,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written after a checkpoint; what the task has already stored there stays."""
        state, namespace, id = _state(scope, _thread(config)), _namespace(config), get_checkpoint_id(config)
        if not id:
            raise InvalidValueError(f"a config needs a checkpoint_id for writes: {shown(config)}")
        packed: dict[str, dict[str, JSON]] = {}
        once = []
        for n, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, n)
            key = _key(WRITE, namespace, id, task_id, index)
            packed[key] = self._pack(key, value, task=task_id, channel=channel, index=index, path=task_path)
            once += [key] if index >= 0 else []
        there = await state.get_many(once) if once else {}
        new = [values for key, values in packed.items() if key not in there]
        await state.set_many({key: value for values in new for key, value in values.items()})

    async def _delete_thread(self, scope: AsyncScope, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        await self._delete(scope, thread_id, lambda rows, keys: lambda place: True)

    async def _copy_thread(self, scope: AsyncScope, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another."""
        old, new = _state(scope, source_thread_id), _state(scope, target_thread_id)
        newest, keys = await old.list(f"{LATEST}/"), await old.keys(PREFIX)
        copied = [key for key in keys if not key.startswith(f"{LATEST}/")]
        for start in range(0, len(copied), COPIED):
            items = await old.get_many(copied[start : start + COPIED])
            await new.set_many({key: item.value for key, item in items.items()})
        for item in newest:  # last, and unless the other thread has a newer one
            await new.update(item.key, partial(_newer, item.value))

    async def _prune(self, scope: AsyncScope, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete the checkpoints of threads but the newest of each namespace; with the strategy "delete", all.

        Those from which a delta channel of the newest is made, back to its last snapshot, are kept too.
        """
        check_choice(strategy, "strategy", ("keep_latest", "delete"))
        for thread in check_several(thread_ids, "thread_ids"):
            if strategy == "delete":
                await self._delete_thread(scope, thread)
            else:
                await self._delete(scope, thread, self._superseded)

    async def _delete_for_runs(self, scope: AsyncScope, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, in all threads, with their writes."""
        runs = set(check_several(run_ids, "run_ids"))
        for thread in await _threads(scope):
            if any(row["run"] in runs for row in (await _rows(_state(scope, thread))).values()):
                await self._delete(
                    scope, thread, lambda rows, keys: lambda place: place in rows and rows[place]["run"] in runs
                )

    async def _delete(self, scope: AsyncScope, thread: str, chosen: Chosen) -> None:
        """Delete checkpoints of a thread, their writes, and channel versions of no other checkpoint."""
        await retry_conflicts(
            lambda: self._delete_once(_state(scope, thread), chosen), f"deleting in the thread {thread!r}"
        )

    async def _delete_once(self, state: AsyncState, chosen: Chosen) -> None:
        """Delete as `_delete` does; raises ConflictError if a newer checkpoint was stored meanwhile."""
        newest = {item.key: item.version for item in await state.list(f"{LATEST}/")}
        keys = await state.keys(PREFIX)  # before the checkpoints: what is written from now on stays
        rows = await _rows(state)
        is_deleted = chosen(rows, set(keys))
        kept = sorted((row for place, row in rows.items() if not is_deleted(place)), key=itemgetter("id"))
        latest = {_key(LATEST, row["namespace"]): row["id"] for row in kept}
        used = latest.keys() | {key for row in kept for key in self._channels(row).values()}

        def is_unused(key: str) -> bool:
            root, kind, *names = key.split("/")
            is_named = kind in ("checkpoint", "write")
            return is_deleted((names[0], names[1])) if is_named else "/".join([root, kind, *names[:3]]) not in used

        # The first write has the newest, and fails if another has written one since.
        deleted = sorted(filter(is_unused, keys), key=lambda key: key not in newest)
        if deleted:
            versions = dict.fromkeys([*latest, *keys], 0) | newest
            seen = {key: version for key, version in versions.items() if key.startswith(f"{LATEST}/")}
            await state.set_many(latest, delete=deleted[:DELETED], if_versions=seen)
        for start in range(DELETED, len(deleted), DELETED):
            await state.set_many({}, delete=deleted[start : start + DELETED])

    get_tuple, aget_tuple = sync_and_async(_get_tuple)
    put, aput = sync_and_async(_put)
    put_writes, aput_writes = sync_and_async(_put_writes)
    delete_thread, adelete_thread = sync_and_async(_delete_thread)
    copy_thread, acopy_thread = sync_and_async(_copy_thread)
    prune, aprune = sync_and_async(_prune)
    delete_for_runs, adelete_for_runs = sync_and_async(_delete_for_runs)

    def _superseded(self, rows: Rows, keys: Container[str]) -> Callable[[Place], bool]:
        """Choose all but the newest checkpoint of each namespace and those of which its delta channels are made.

        Writes of a later checkpoint, which is not stored yet, are not chosen.
        """
        newest = {row["namespace"]: row for row in sorted(rows.values(), key=itemgetter("id"))}
        last = {_part(namespace): _part(row["id"]) for namespace, row in newest.items()}
        kept: set[Place] = set()
        for place in last.items():
            deltas = set(self._loads(rows[place])[1].get("counters_since_delta_snapshot") or ())
            while place in rows.keys() - kept:
                kept.add(place)
                stored = {name for name, key in self._channels(rows[place]).items() if key in keys}
                if deltas := deltas - stored:
                    place = (place[0], _part(rows[place]["parent"] or ""))
        return lambda place: place not in kept and place[1] <= last.get(place[0], "")

    def _channels(self, row: Row) -> dict[str, str]:
        """Return the keys of the channels of a checkpoint, by their names."""
        versions = self._loads(row)[0]["channel_versions"]
        return {name: _key(CHANNEL, row["namespace"], name, version) for name, version in versions.items()}

    def _pack(self, key: str, value: Any, **fields: JSON) -> dict[str, JSON]:
        """Return a value in JSON, by key: more than one if it is long."""
        type, data = self.serde.dumps_typed(value)
        text = b64encode(data).decode()
        first, *more = [text[at : at + PART] for at in range(0, len(text), PART)] or [""]
        stored = {key: {**fields, "type": type, "data": first, "parts": 1 + len(more)}}
        return stored | {f"{key}/{n}": part for n, part in enumerate(more, 1)}

    def _unpack(self, key: str, stored: Mapping[str, JSON]) -> Any:
        first = stored[key]
        text = "".join([first["data"], *(stored[f"{key}/{n}"] for n in range(1, first["parts"]))])
        return self.serde.loads_typed((first["type"], b64decode(text)))

    def _loads(self, row: Row) -> tuple[Checkpoint, CheckpointMetadata]:
        checkpoint, metadata = self.serde.loads_typed((row["type"], b64decode(row["data"])))
        return checkpoint, metadata


async def _find(
    scope: AsyncScope, config: RunnableConfig | None, before: RunnableConfig | None
) -> list[tuple[str, str]]:
    """Return the threads and keys of checkpoints, newest first in each thread."""
    namespace = config["configurable"].get("checkpoint_ns") if config else None
    prefix = CHECKPOINT if namespace is None else _key(CHECKPOINT, namespace)
    only, end = (_part(get_checkpoint_id(one) or "") if one else "%" for one in (config, before))
    found: list[tuple[str, str]] = []
    for thread in [_thread(config)] if config else await _threads(scope):
        by_id = sorted((key.rpartition("/")[2], key) for key in await _state(scope, thread).keys(f"{prefix}/"))
        found += [(thread, key) for id, key in by_id[::-1] if only in ("%", id) and (end == "%" or id < end)]
    return found


def _newer(id: str, other: str | None) -> str:
    return id if other is None else max(id, other)


async def _rows(state: AsyncState) -> Rows:
    """Return the checkpoints of a thread."""
    found = [item.value for item in await state.list(f"{CHECKPOINT}/")]
    return {(_part(row["namespace"]), _part(row["id"])): row for row in found}


async def _threads(scope: AsyncScope) -> Sequence[str]:
    depth = len(scope.path.segments) + 1
    latest = await scope.state.list(f"{LATEST}/", below=True)
    paths = dict.fromkeys(item.scope for item in latest if len(item.scope.segments) == depth)
    return [from_segment(path.name) for path in paths]


def _state(scope: AsyncScope, thread: str) -> AsyncState:
    return scope.scope(to_segment(str(thread), "thread_id")).state


def _thread(config: RunnableConfig) -> str:
    try:
        return str(config["configurable"]["thread_id"])
    except KeyError:
        raise InvalidValueError(f"a config needs configurable.thread_id: {shown(config)}") from None


def _namespace(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns", ""))


def _config(thread: str, namespace: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _key(kind: str, *names: object) -> str:
    """Return a key of these names, which have no '/' in it; a long one is shortened to a digest."""
    return "/".join([kind, *map(_part, names)])


def _part(name: object) -> str:
    part = quote(str(name), safe=":|,@ ") or "%"
    return part if len(part) <= LONG else f"{part[:40]}%{sha256(part.encode()).hexdigest()[:40]}"
