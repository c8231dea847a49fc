"""Legal holds: sets and releases them, and suspends and restores what would expire meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from msgspec import convert
from msgspec.structs import replace

from ..checks import check_name, check_text, check_time, new_id, shown
from ..errors import AccessDeniedError, InvalidValueError, NotFoundError
from ..layers.audit import actor_of
from ..layers.history import HistoryLayer
from ..layers.hold import TECHNICAL, Hold, HoldLayer, hold_ref, to_record
from ..layers.layer import layers_of
from ..layers.redact import RedactLayer
from ..layers.restricted import RestrictedLayer, require, unrestricted, visible_root
from ..layers.versions import EXPIRY
from ..records import ARCHIVED, ERASURE_KIND, MESSAGE, SUMMARY, VERSION, ScopePath, Stream
from ..store.protocol import Store, all_streams, scan_all
from ..store.query import Delete, Derive, Op, Put, Scan, StreamScan, Touch, Write
from ..store.retry import write_each
from .settings import session_settings

PAGE = 200
"""How many records are read and changed at once."""
OF_MESSAGES = (MESSAGE, ARCHIVED, SUMMARY)
"""Kinds that live as long as their session's settings say."""


@runtime_checkable
class Holding(Protocol):
    """A back-end that keeps holds by itself: a server."""

    async def set_hold(self, scope: ScopePath, reason: str, until: datetime | None) -> Any:
        """Set a hold; return it as JSON."""
        ...

    async def holds(self, scope: ScopePath) -> Any:
        """Return holds as JSON."""
        ...

    async def release_hold(self, scope: ScopePath, id: str) -> Any:
        """Release a hold; return it as JSON."""
        ...


async def set_hold(store: Store, scope: ScopePath, reason: str, until: datetime | None) -> Hold:
    """Put a scope and everything below it under a hold; return it when every process knows of it."""
    layer = _keeper(store, scope)
    until = None if until is None else check_time(until, "until")
    if isinstance(layer, Holding):
        return _from_json(await layer.set_hold(scope, reason, until))
    hold = Hold(
        id=new_id(),
        scope=scope,
        reason=check_text(reason, "reason").strip(),
        created=store.clock(),
        until=until,
        actor=actor_of(store).get("actor"),
    )
    if not hold.reason:
        raise InvalidValueError("a hold needs a reason")
    if hold.until is not None and hold.until <= hold.created:
        raise InvalidValueError(f"a hold ends later than now: {hold.until}")
    async for mark in scan_all(layer, Scan(scope=scope, kinds=(ERASURE_KIND,), below=True)):
        raise InvalidValueError(f"scope {shown(mark.scope.path)} is being erased: finish that before holding it")
    await unrestricted(store).write(Write((Put(to_record(hold), 0),)))
    await layer.known_everywhere()
    await _suspend(_base(layer), scope)
    return hold


async def list_holds(store: Store, scope: ScopePath) -> list[Hold]:
    """Return the holds that are in force on a scope, above or below it, oldest first.

    Of one on a scope that a restricted memory does not see, only its times are told.
    """
    layer, root = _keeper(store, scope), visible_root(store)
    if isinstance(layer, Holding):
        return [_from_json(one).seen_from(root) for one in await layer.holds(scope)]
    holds = [one.seen_from(root) for one in await layer.active(fresh=True) if one.touches(scope)]
    return sorted(holds, key=lambda one: one.created)


async def release_hold(store: Store, scope: ScopePath, id: str) -> Hold:
    """End a hold on a scope or below it; return it. What it had suspended expires again.

    Raises NotFoundError if there is none.
    """
    layer = _keeper(store, scope)
    if isinstance(layer, Holding):
        return _from_json(await layer.release_hold(scope, check_name(id, "id")))
    found = [hold for hold in await layer.stored() if hold.id == check_name(id, "id") and scope.holds(hold.scope)]
    if not found:
        raise NotFoundError(f"there is no hold {shown(id)} on {shown(scope.path)}")
    await unrestricted(store).write(Write((Delete(hold_ref(id)),)))
    await restore(layer, found[0].scope)
    return found[0]


async def release_ended(store: Store) -> int:
    """Remove holds whose time has come, and restore what they had suspended; return how many."""
    layer = next((one for one in layers_of(store) if isinstance(one, HoldLayer)), None)
    if layer is None or isinstance(store, RestrictedLayer):
        return 0
    now = store.clock()
    ended = [hold for hold in await layer.stored() if hold.until is not None and hold.until <= now]
    for hold in ended:
        await store.write(Write((Delete(hold_ref(hold.id)),)))
        await restore(layer, hold.scope)
    return len(ended)


def _keeper(store: Store, scope: ScopePath) -> HoldLayer | Holding:
    """Find the keeper of the holds; raises AccessDeniedError if a restricted memory may not administer the scope."""
    if isinstance(store, RestrictedLayer):
        require(store, "admin")
        if not store.scope.holds(scope):
            raise AccessDeniedError(f"scope {shown(scope.path)} is not within {shown(store.scope.path)}")
    for layer in layers_of(store):
        if isinstance(layer, HoldLayer | Holding):
            return layer
    raise InvalidValueError("this memory has no layer for holds")


def _from_json(value: Any) -> Hold:
    return convert({**value, "scope": {"path": value["scope"]}}, Hold)


def _base(layer: HoldLayer) -> Store:
    """Return the store in which expiries are changed: below the layers that keep versions of that, or redact it."""
    return next(one for one in layers_of(layer._below) if not isinstance(one, HistoryLayer | RedactLayer))


async def _suspend(below: Store, scope: ScopePath) -> None:
    """Let nothing in a scope expire; the expiry of each record is kept beside it."""
    for stream in await _streams(below, scope):
        if stream.ttl is not None:
            await below.write(Write((replace(Touch.of(stream), ttl=None),)))
        writes: list[tuple[Op, ...]] = []
        async for record in scan_all(below, Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE)):
            if record.expires is not None:
                kept = Derive(record.ref, EXPIRY, record.expires.isoformat().encode())
                writes.append((Put(replace(record, expires=None), record.version, record.updated), kept))
        await write_each(below, writes)


async def restore(layer: HoldLayer, scope: ScopePath) -> None:
    """Let records and sessions expire again that no other hold covers."""
    others = await layer.active(fresh=True)
    below = _base(layer)
    for stream in await _streams(below, scope):
        if any(hold.covers(stream.scope) for hold in others):
            continue
        if (ttl := await _ttl(below, stream)) is not None:
            await below.write(Write((replace(Touch.of(stream), ttl=ttl),)))
        writes: list[tuple[Op, ...]] = []
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE, derived=(EXPIRY,))
        async for record in scan_all(below, scan):
            if (kept := record.derived.get(EXPIRY)) is not None:
                expires = datetime.fromisoformat(kept.decode())
                put = Put(replace(record, expires=expires, derived={}), record.version, record.updated)
                writes.append((put, Derive(record.ref, EXPIRY, None)))
        await write_each(below, writes)


async def _ttl(below: Store, stream: Stream) -> timedelta | None:
    """Return the time to live that the settings of a session give to a stream."""
    if stream.kind not in OF_MESSAGES:
        return None
    page = await below.streams(StreamScan(scope=stream.scope, kinds=(MESSAGE,), below=False, empty=True))
    return session_settings(page.items[0].settings).ttl if page.items else None


async def _streams(below: Store, scope: ScopePath) -> list[Stream]:
    scans = [StreamScan(scope=scope, kinds=kinds) for kinds in ((), (VERSION,))]
    return [one for scan in scans async for one in all_streams(below, scan) if one.kind not in TECHNICAL]
