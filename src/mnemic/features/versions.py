"""Earlier versions of items: listing them, and bringing one back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ..checks import check_count, check_name, shown
from ..errors import InvalidValueError, NotFoundError
from ..layers.redact import redact_record
from ..layers.version_records import KeptVersion, PurgeRecord, read_versions
from ..records import ARCHIVED, FACT, MEMORY, MESSAGE, NOTE, RECALLED, Record, Ref, ScopePath, Value, plain
from ..store.matching import recalled_kinds
from ..store.protocol import SearchableStore, scan_all
from ..store.query import Delete, Expect, Op, Put, Scan, Touch, Write, stored_record
from ..store.retry import retry_conflicts
from ..tokens import TokenCounter
from .facts import AsyncFacts
from .hits import SHOWN, Item, Reference, find_refs, ref_of, to_item_of
from .notes import AsyncNotes
from .session_log import over_limits
from .sessions import AsyncSession

_ITEM_KINDS = dict.fromkeys((MESSAGE, ARCHIVED), (MESSAGE, ARCHIVED))
"""Kinds of the records of one item, of a kind that has several: an archived message is the same item."""


class Version(Value, frozen=True, kw_only=True):
    """A version of an item: when and by whom it was written, and when and by whom it was replaced or deleted.

    `ended` is None for the current version. Who did it is known of changes within `acting`, and of what was written
    before there was a history, or for the first time, never.
    """

    record: Record
    """As it was stored."""
    written: datetime
    by: str | None = None
    ended: datetime | None = None
    ended_by: str | None = None
    deleted: bool = False
    """Whether it ended because the item was deleted."""

    @property
    def id(self) -> str:
        """Id of the message or memory, or key of the note or fact."""
        return self.record.key

    @property
    def kind(self) -> str:
        """Kind of the record."""
        return self.record.kind

    @property
    def scope(self) -> ScopePath:
        """Path of its scope; for a message, of its session."""
        return self.record.scope

    @property
    def version(self) -> int:
        """Its number; with every change the item has a new one."""
        return self.record.version

    @property
    def item(self) -> Item:
        """The message, memory, note or fact as it was; the text of anything else."""
        return to_item_of(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`, FastAPI and pandas."""
        rest = {name: getattr(self, name) for name in self.__struct_fields__ if name != "record"}
        named = {name: getattr(self, name) for name in ("id", "kind", "scope", "version", "item")}
        return {name: plain(value) for name, value in (named | rest).items()}

    @property
    def current(self) -> bool:
        """Whether the item is this version now."""
        return self.ended is None


async def item_history(
    store: SearchableStore, scope: ScopePath, given: Reference | Version, kind: str | None
) -> list[Version]:
    """Return the versions of an item, newest first; raises NotFoundError if there is none, of any time."""
    ref, current = await _find(store, scope, given, kind)
    kept = _without_moves(await _earlier(store, ref, current), current)
    found = _with_writers([to_version(one) for one in kept])
    if current is not None:
        by = found[-1].ended_by if found and not found[-1].deleted else None
        found.append(_version(current, by=by))
    if not found:
        raise NotFoundError(f"{scope.path!r} has nothing with the id {shown(ref.key)}, and had nothing in its history")
    return found[::-1]


async def restore_item(
    store: SearchableStore,
    scope: ScopePath,
    tokens: TokenCounter,
    given: Reference | Version,
    version: Version | int | None,
    kind: str | None,
) -> Item:
    """Write an earlier version of an item again, as any other change; return the item.

    Without a version, the one before the current one, or the last one of a deleted item.
    """
    if isinstance(given, Version):
        if version is not None:
            raise InvalidValueError("restore takes a version, or an item and its version, not two versions")
        version = given
    elif isinstance(version, Version):
        if (given if isinstance(given, str) else ref_of(given, scope)) not in (version.id, version.record.ref):
            raise InvalidValueError(f"version {version.version} of {shown(version.id)} is not one of {shown(given)}")
        given = version
    elif version is not None:
        check_count(version, "version", least=1)

    async def restore() -> Item:
        ref, current = await _find(store, scope, given, kind)
        kept = await _earlier(store, ref, current)
        if version is None:
            kept = _without_moves(kept, current)
        chosen = _chosen(ref, current, [one.record for one in kept], version)
        if chosen is current:
            return to_item_of(chosen)
        return await _write(store, tokens, chosen, current)

    return await retry_conflicts(restore, f"restoring {shown(given.id if isinstance(given, Version) else given)}")


async def session_history(store: SearchableStore, scope: ScopePath, limit: int | None = None) -> list[Version]:
    """Return the replaced and deleted messages of a session, the last change first."""
    if limit is not None:
        check_count(limit, "limit")
    versions, _ = await read_versions(store, scope, kind=MESSAGE)
    return [to_version(one) for one in versions[::-1][:limit]]


async def restore_session(session: AsyncSession) -> int:
    """Bring back what the last clearing or deletion of a session removed; return the number of messages."""
    store, scope = session._store, session.scope

    async def restore() -> int:
        versions, purges = await _last_purge(store, scope)
        settings = next((purge for purge in purges if purge.kind == MESSAGE and purge.settings is not None), None)
        stream = await session._stream()
        if settings is not None and (stream is None or stream.settings is None):
            ttl = None if settings.ttl is None else timedelta(seconds=settings.ttl)
            touch = Touch(scope, MESSAGE, ttl, settings.settings)
            await store.write(Write((Expect(scope, MESSAGE, settings=None), touch)))
            session._settings.learn(settings.settings)
            stream = await session._stream()
        there = [record async for record in scan_all(store, Scan(scope=scope, kinds=(MESSAGE,)))]
        keys = {record.key for record in there}
        back = [one.record for one in versions if one.record.kind == MESSAGE and one.record.key not in keys]
        archive = await store.read([replace(record.ref, kind=ARCHIVED) for record in back])
        back = [record for record, archived in zip(back, archive, strict=True) if archived is None]
        await session.settings()
        if session._settings.overflow == "drop":
            dropped = over_limits(session._settings.view.settings, [*back, *there])
            back = [record for record in back if record.key not in dropped]
        besides = [one.record for one in versions if one.record.kind != MESSAGE]
        found = await store.read([record.ref for record in besides])
        ops: list[Op] = [Expect(scope, MESSAGE, stream.version if stream is not None else 0)]
        # What was added since then comes after it.
        ops += [Delete(record.ref, record.version) for record in there if back]
        ops += [Put(record, 0) for record in back] + [Put(record) for record in there if back]
        ops += [Put(record, 0) for record, now in zip(besides, found, strict=True) if now is None]
        if len(ops) > 1:
            await session._write(ops, [], after=[*back, *there])
        return sum(record is not None for record in await store.read([record.ref for record in back]))

    return await retry_conflicts(restore, f"restoring session {scope.path!r}")


async def _last_purge(store: SearchableStore, scope: ScopePath) -> tuple[list[KeptVersion], list[PurgeRecord]]:
    """Return the records that the last clearing or deletion of a session removed, and the purges of its streams.

    Raises NotFoundError if there was none.
    """
    versions, purges = await read_versions(store, scope)
    if not purges:
        raise NotFoundError(f"session {scope.path!r} was not cleared or deleted, as far as its history goes")
    write = purges[-1].id.partition(".")[0]
    together = {purge.id for purge in purges if purge.id.partition(".")[0] == write}
    return (
        [version for version in versions if version.purge in together],
        [purge for purge in purges if purge.id in together],
    )


def to_version(kept: KeptVersion) -> Version:
    """Return a kept version as callers see it."""
    return _version(kept.record, ended=kept.ended, ended_by=kept.by, deleted=kept.removed)


def _version(record: Record, **fields: Any) -> Version:
    assert record.updated is not None
    return Version(record=record, written=record.updated, **fields)


def _with_writers(versions: list[Version]) -> list[Version]:
    """Return versions of one item, oldest first, each with its writer, who ended the version before it."""
    written = [None, *(None if one.deleted else one.ended_by for one in versions)]
    return [replace(version, by=by) for version, by in zip(versions, written, strict=False)]


def _is(kept: KeptVersion, current: Record | None) -> bool:
    """Return whether a version is the current one, which was replaced while both were read."""
    if current is None:
        return False
    known, now = ((record.kind, record.version, record.updated) for record in (kept.record, current))
    return known == now


async def _earlier(store: SearchableStore, ref: Ref, current: Record | None) -> list[KeptVersion]:
    """Return the versions of an item before the current one, oldest first; of a message, also those in the archive."""
    kinds = _ITEM_KINDS.get(ref.kind, (ref.kind,))
    versions, _ = await read_versions(store, ref.scope, kind=ref.kind if len(kinds) == 1 else None, key=ref.key)
    return [one for one in versions if one.record.kind in kinds and not _is(one, current)]


def _without_moves(versions: list[KeptVersion], current: Record | None) -> list[KeptVersion]:
    """Return the versions of an item without those that ended because the message was archived as it was."""
    after = [*(one.record.kind for one in versions[1:]), None if current is None else current.kind]
    pairs = zip(versions, after, strict=False)
    return [one for one, kind in pairs if (one.record.kind, kind) != (MESSAGE, ARCHIVED)]


def _chosen(ref: Ref, current: Record | None, kept: list[Record], version: Version | int | None) -> Record:
    """Return the version to restore; of several with a number, as after the deletion of a session, the last."""
    if version is None:
        if not kept:
            raise NotFoundError(f"{shown(ref.key)} in {ref.scope.path!r} has no earlier version")
        return kept[-1]
    number, written = (version.version, version.written) if isinstance(version, Version) else (version, None)
    for one in (*kept, *([current] if current is not None else []))[::-1]:
        if one.version == number and written in (None, one.updated):
            return one
    known = ", ".join(str(one.version) for one in kept[-SHOWN:]) or "none"
    raise NotFoundError(f"{shown(ref.key)} in {ref.scope.path!r} has no version {number}; earlier ones: {known}")


async def _write(store: SearchableStore, tokens: TokenCounter, chosen: Record, current: Record | None) -> Item:
    """Write a record again, within the limits of its kind; one from before there was a redaction is redacted."""
    chosen = await redact_record(store, chosen if current is None else replace(chosen, kind=current.kind))
    put = Put(chosen, 0 if current is None else current.version)
    if chosen.kind == FACT:
        return await AsyncFacts(store, chosen.scope)._restore(chosen)
    if chosen.kind == NOTE:
        notes = AsyncNotes(store, chosen.scope)
        await notes.settings()
        await notes._put(chosen, put.if_version or 0, current)
        return await notes.get(chosen.key)
    if chosen.kind == MESSAGE:
        (did, *_) = await AsyncSession(store, chosen.scope, tokens)._write(
            [put], [put.record] if current is None else []
        )
    else:
        (did,) = await store.write(Write((put,)))
    return to_item_of(stored_record(put.record, did))


async def _find(
    store: SearchableStore, scope: ScopePath, given: Reference | Version, kind: str | None
) -> tuple[Ref, Record | None]:
    """Return the ref of an item that is or was there, and its record if it is.

    An id may be of any item that is or was in the scope or below, as long as there is only one. What is in the scope
    itself comes first, unless it is deleted and the id of another item below.
    """
    if not isinstance(given, str):
        ref = ref_of(given.record if isinstance(given, Version) else given, scope)
        if kind is not None and ref.kind not in recalled_kinds(kind):
            raise InvalidValueError(f"{shown(ref.key)} in {ref.scope.path!r} is a {ref.kind}, not a {kind}")
        return await _where_it_is(store, ref)
    kinds = RECALLED if kind is None else recalled_kinds(kind)
    live = await find_refs(store, scope, check_name(given, "id"), kinds)
    versions, _ = await read_versions(store, scope, below=True, key=given)
    ended = [one.record.ref for one in versions if one.record.kind in kinds]
    # A message that was archived is the same item.
    found = {(ref.scope, MESSAGE if ref.kind == ARCHIVED else ref.kind): ref for ref in (*ended, *live)}
    here = [ref for ref in found.values() if ref.scope == scope]
    refs = here if here and (not live or any(ref in live for ref in here)) else list(found.values())
    if len(refs) > 1:
        shown_refs = [f"{'' if ref in live else 'deleted '}{ref.kind} in {ref.scope.path!r}" for ref in refs[:SHOWN]]
        raise InvalidValueError(
            f"{len(refs)} records have or had the key {shown(given)} ({', '.join(shown_refs)}"
            f"{' …' if len(refs) > SHOWN else ''}): give the kind or the scope of one, or its hit, version or ref"
        )
    return await _where_it_is(store, refs[0] if refs else Ref(scope, MEMORY, given))


async def _where_it_is(store: SearchableStore, ref: Ref) -> tuple[Ref, Record | None]:
    """Return the ref and the record of an item, wherever it is now; the ref as it is, and None, if it is deleted."""
    refs = [ref, *(replace(ref, kind=kind) for kind in _ITEM_KINDS.get(ref.kind, ()) if kind != ref.kind)]
    found = await store.read(refs)
    return next(((one, record) for one, record in zip(refs, found, strict=True) if record is not None), (ref, None))
