"""Legal holds: sets and releases them, and changes when what is under them expires."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from msgspec import convert
from msgspec.structs import replace

from ..checks import check_name, check_text, check_time, new_id, shown
from ..errors import AccessDeniedError, ConflictError, InvalidValueError, NotFoundError
from ..layers.audit import actor_of
from ..layers.history import HistoryLayer
from ..layers.hold import TECHNICAL, Hold, HoldLayer, hold_ref, to_record
from ..layers.layer import find_layer, layers_of
from ..layers.redact import RedactLayer
from ..layers.restricted import RestrictedLayer, require, unrestricted, visible_root
from ..layers.version_records import EXPIRY, FOREVER, held_expiry
from ..records import ARCHIVED, ERASURE_KIND, MESSAGE, SUMMARY, VERSION, Record, ScopePath, Stream
from ..store.protocol import Store, all_streams, scan_pages
from ..store.query import Delete, Derive, Expect, Op, Put, Scan, StreamScan, Touch, Write
from ..store.retry import write_each
from .session_settings import session_settings

PAGE = 200
"""How many records are read and changed at once."""
OF_MESSAGES = (MESSAGE, ARCHIVED, SUMMARY)
"""Kinds that live as long as their session's settings say."""


@runtime_checkable
class HoldServer(Protocol):
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
    if isinstance(layer, HoldServer):
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
    await _refuse_erasing(layer, scope)
    await unrestricted(store).write(Write((Put(to_record(hold), 0),)))
    try:
        await _refuse_erasing(layer, scope)  # one that began meanwhile, and has not seen the hold
    except InvalidValueError:
        await unrestricted(store).write(Write((Delete(hold_ref(hold.id)),)))
        raise
    await layer.known_everywhere()
    await _apply(layer, scope, await layer.active(fresh=True))
    return hold


async def _refuse_erasing(layer: HoldLayer, scope: ScopePath) -> None:
    """Raise InvalidValueError if a scope, or one above or below it, is being erased."""
    above = [ScopePath("/".join(scope.segments[:n])) for n in range(len(scope.segments))]
    scans = [Scan(scope=one, kinds=(ERASURE_KIND,), below=one == scope) for one in (*above, scope)]
    if any([(await layer.scan(scan)).items for scan in scans]):
        raise InvalidValueError(
            f"scope {shown(scope.path)}, or one above or below it, is being erased: finish that before holding it"
        )


async def list_holds(store: Store, scope: ScopePath) -> list[Hold]:
    """Return the holds that are in force on a scope, above or below it, oldest first.

    Of one on a scope that a restricted memory does not see, only its times are told.
    """
    layer, root = _keeper(store, scope), visible_root(store)
    if isinstance(layer, HoldServer):
        return [_from_json(one).seen_from(root) for one in await layer.holds(scope)]
    holds = [one.seen_from(root) for one in await layer.active(fresh=True) if one.touches(scope)]
    return sorted(holds, key=lambda one: one.created)


async def release_hold(store: Store, scope: ScopePath, id: str) -> Hold:
    """End a hold on a scope or below it; return it. What it had suspended expires again.

    Raises NotFoundError if there is none.
    """
    layer = _keeper(store, scope)
    if isinstance(layer, HoldServer):
        return _from_json(await layer.release_hold(scope, check_name(id, "id")))
    found = [hold for hold in await layer.stored() if hold.id == check_name(id, "id") and scope.contains(hold.scope)]
    if not found:
        raise NotFoundError(f"there is no hold {shown(id)} on {shown(scope.path)}")
    # Before and after it is deleted: an interruption in between leaves nothing suspended but what is written right now.
    await _apply(layer, found[0].scope, [hold for hold in await layer.active(fresh=True) if hold.id != id])
    await unrestricted(store).write(Write((Delete(hold_ref(id)),)))
    await layer.known_everywhere()
    await _apply(layer, found[0].scope, await layer.active(fresh=True))
    return found[0]


async def release_ended(store: Store) -> int:
    """Remove holds whose time has come; return how many. What they had suspended has expired by itself."""
    layer = find_layer(store, HoldLayer)
    if layer is None or isinstance(store, RestrictedLayer):
        return 0
    now = store.clock()
    ended = [hold for hold in await layer.stored() if hold.until is not None and hold.until <= now]
    for hold in ended:
        await store.write(Write((Delete(hold_ref(hold.id)),)))
    return len(ended)


def _keeper(store: Store, scope: ScopePath) -> HoldLayer | HoldServer:
    """Find the keeper of the holds; raises AccessDeniedError if a restricted memory may not administer the scope."""
    if isinstance(store, RestrictedLayer):
        require(store, "admin")
        if not store.scope.contains(scope):
            raise AccessDeniedError(f"scope {shown(scope.path)} is not within {shown(store.scope.path)}")
    for layer in layers_of(store):
        if isinstance(layer, HoldLayer | HoldServer):
            return layer
    raise InvalidValueError("this memory has no layer for holds")


def _from_json(value: Any) -> Hold:
    return convert({**value, "scope": {"path": value["scope"]}}, Hold)


def _base(layer: HoldLayer) -> Store:
    """Return the store in which expiries are changed: below the layers that keep versions of that, or redact it."""
    return next(one for one in layers_of(layer._below) if not isinstance(one, HistoryLayer | RedactLayer))


async def _apply(layer: HoldLayer, scope: ScopePath, holds: Sequence[Hold]) -> None:
    """Let what is in a scope expire as these holds allow; the expiry of its own is kept beside each record."""
    below = _base(layer)
    for stream in await _streams(below, scope):
        held_until = max((hold.ends for hold in holds if hold.covers(stream.scope)), default=None)
        await _apply_to_stream(below, stream, held_until)
        scan = Scan(scope=stream.scope, kinds=(stream.kind,), limit=PAGE, derived=(EXPIRY,))
        async for page in scan_pages(below, scan):
            await write_each(below, [ops for record in page if (ops := _new_expiry(record, held_until))])


async def _apply_to_stream(below: Store, stream: Stream, held_until: datetime | None) -> None:
    ttl = stream.ttl or await _ttl(below, stream)
    if ttl is None:
        return
    none = replace(Touch.of(stream), ttl=None)
    ops: list[Op] = [Expect(stream.scope, stream.kind, settings=stream.settings), none]
    if held_until != FOREVER:
        ops.append(replace(none, ttl=ttl, until=held_until))
    with suppress(ConflictError):  # who changed the settings meanwhile has seen the holds
        await below.write(Write(tuple(ops)))


def _new_expiry(record: Record, held_until: datetime | None) -> tuple[Op, ...]:
    """Return the operations that change the expiry of a record; none if it stays."""
    kept = record.derived.get(EXPIRY)
    own = record.expires if kept is None else datetime.fromisoformat(kept.decode())
    if own is None:
        return ()
    expires = own if held_until is None else held_expiry(own, held_until)
    if expires == record.expires:
        return ()
    put = Put(replace(record, expires=expires, derived={}), record.version, record.updated)
    return put, Derive(record.ref, EXPIRY, None if expires == own else own.isoformat().encode())


async def _ttl(below: Store, stream: Stream) -> timedelta | None:
    """Return the time to live that the settings of a session give to a stream."""
    if stream.kind not in OF_MESSAGES:
        return None
    page = await below.streams(StreamScan(scope=stream.scope, kinds=(MESSAGE,), below=False, empty=True))
    return session_settings(page.items[0].settings).ttl if page.items else None


async def _streams(below: Store, scope: ScopePath) -> list[Stream]:
    scans = [StreamScan(scope=scope, kinds=kinds) for kinds in ((), (VERSION,))]
    return [one for scan in scans async for one in all_streams(below, scan) if one.kind not in TECHNICAL]
