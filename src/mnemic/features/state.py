"""State: named JSON values of an application, which recall does not search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import json
from msgspec.structs import replace

from ..checks import JSON, check_count, check_json, check_name, check_names, check_ttl, shown
from ..errors import InvalidValueError
from ..records import STATE, Record, Ref, ScopePath, Value
from ..store.matching import conditions, prefixed
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Delete, Op, Purge, Put, Scan, Write, stored_record
from ..store.retry import retry_conflicts
from ..telemetry.calls import observed


class StateItem(Value, frozen=True, kw_only=True):
    """A value under a key, and its version."""

    key: str
    value: JSON
    metadata: dict[str, Any]
    version: int
    created: datetime
    updated: datetime
    scope: ScopePath


@observed
class AsyncState:
    """The state that an application keeps in one scope: checkpoints, cursors, settings; any JSON value under a key.

    Values are found by key, prefix or metadata alone: recall and the context do not see them, and redaction does not
    change them, since they may be serialized data.
    """

    scope: ScopePath

    def __init__(self, store: Store, scope: ScopePath) -> None:
        self.scope = scope
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def get(self, key: str) -> StateItem | None:
        """Return the value under a key of this scope with its version, or None."""
        (record,) = await self._store.read([self._ref(key)])
        return None if record is None else _to_item(record)

    async def get_many(self, keys: Sequence[str]) -> dict[str, StateItem]:
        """Return the values of those of these keys that exist in this scope."""
        records = await self._store.read([self._ref(key) for key in check_names(keys, "keys")])
        return {record.key: _to_item(record) for record in records if record is not None}

    async def set(
        self,
        key: str,
        value: JSON,
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | None = None,
        if_version: int | None = None,
    ) -> StateItem:
        """Set the value under a key of this scope, with its metadata; with `ttl` it expires.

        With `if_version`, the key must have that version, 0 for none; otherwise ConflictError is raised, whose
        `current` is the stored version. Raises InvalidValueError if the value is not JSON.
        """
        put = self._put(key, value, metadata, ttl, if_version)
        (outcome,) = await self._store.write(Write((put,)))
        return _to_item(stored_record(put.record, outcome))

    async def set_many(
        self,
        values: Mapping[str, JSON],
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | None = None,
        delete: Sequence[str] = (),
        if_versions: Mapping[str, int] | None = None,
    ) -> None:
        """Set the values under these keys of this scope, and delete others, all or none; `metadata` is for each value.

        With `if_versions`, these of the keys must have these versions, as with `if_version` of `set`; otherwise
        ConflictError is raised. Raises InvalidValueError if a value is not JSON.
        """
        if not isinstance(values, Mapping):
            raise InvalidValueError(f"set_many takes a dict of keys and values, not {shown(values)}")
        versions = {key: check_count(version, "if_versions") for key, version in (if_versions or {}).items()}
        ops: list[Op] = [Delete(self._ref(key), versions.get(key)) for key in check_names(delete, "delete")]
        ops += [self._put(key, value, metadata, ttl, versions.get(key)) for key, value in values.items()]
        if ops:
            await self._store.write(Write(tuple(ops)))

    async def update(self, key: str, change: Callable[[JSON], JSON]) -> StateItem:
        """Replace the value under a key of this scope by a function of it, which gets None if there is none.

        On concurrent writes the function is called again with the current value; metadata and expiry stay. Raises
        InvalidValueError if the value is not JSON, ConflictError if concurrent writes win every attempt.
        """
        ref = self._ref(key)

        async def step() -> StateItem:
            (old,) = await self._store.read([ref])
            if old is None:
                put = self._put(key, change(None), None, None, 0)
            else:
                put = self._put(key, change(old.data), old.meta, None, old.version)
                put = replace(put, record=replace(put.record, expires=old.expires))
            (outcome,) = await self._store.write(Write((put,)))
            return _to_item(stored_record(put.record, outcome))

        return await retry_conflicts(step, f"changing the state {shown(key)} of {self.scope.path!r}")

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete a key of this scope; return whether it existed.

        With `if_version`, a value with another version is not deleted, and ConflictError is raised.
        """
        version = None if if_version is None else check_count(if_version, "if_version")
        (outcome,) = await self._store.write(Write((Delete(self._ref(key), version),)))
        return bool(outcome.removed)

    async def clear(self) -> None:
        """Delete all state of this scope."""
        await self._store.write(Write((Purge(self.scope, STATE),)))

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of this scope that begin with `prefix`, in order of their first writes."""
        scan = Scan(scope=self.scope, kinds=(STATE,), where=prefixed(prefix), bodies=False)
        return [record.key async for record in scan_all(self._store, scan) if record.key.startswith(prefix)]

    # Last among the public methods, because its name shadows the type in annotations.
    async def list(
        self,
        prefix: str = "",
        *,
        before: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
        reverse: bool = False,
        below: bool = False,
    ) -> list[StateItem]:
        """List the values of this scope, in order of their first writes, or with `reverse` newest first.

        Those whose key begins with `prefix`, sorts before `before`, and whose `metadata` are equal, or in a list.
        With `below`, also those of the scopes below, one scope after the other.
        """
        where = conditions(metadata) + prefixed(prefix)
        if before is not None:
            where += (Condition("key", "lt", check_name(before, "before")),)
        page = 1000 if limit is None else min(1000, check_count(limit, "limit"))
        found: list[StateItem] = []
        if limit == 0:
            return found
        scan = Scan(scope=self.scope, kinds=(STATE,), where=where, reverse=reverse, below=below, limit=page)
        async for record in scan_all(self._store, scan):
            if record.key.startswith(prefix):
                found.append(_to_item(record))
                if len(found) == limit:
                    break
        return found

    def _put(
        self,
        key: str,
        value: JSON,
        metadata: Mapping[str, Any] | None,
        ttl: timedelta | None,
        if_version: int | None = None,
    ) -> Put:
        expires = None if ttl is None else self._store.clock() + check_ttl(ttl)
        ref = self._ref(key)
        meta = {} if metadata is None else dict(metadata)
        data, _ = check_json(value, "value")
        record = Record(
            scope=ref.scope,
            kind=STATE,
            key=ref.key,
            data=data,
            meta=meta,
            weight=len(json.encode(data)),
            expires=expires,
        )
        return Put(record, if_version)

    def _ref(self, key: str) -> Ref:
        return Ref(self.scope, STATE, check_name(key, "key"))


def _to_item(record: Record) -> StateItem:
    assert record.created is not None
    assert record.updated is not None
    return StateItem(
        key=record.key,
        value=record.data,
        metadata=record.meta,
        version=record.version,
        created=record.created,
        updated=record.updated,
        scope=record.scope,
    )
