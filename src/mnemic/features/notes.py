"""Notes: named JSON values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, MsgspecError, UnsetType, json
from msgspec.structs import replace

from ..checks import JSON, MAX_TTL, check_count, check_json, check_name, check_names, check_text, shown
from ..errors import InvalidValueError, LimitError, NotFoundError, SettingsChangedError, UnreadableStoreError
from ..layers.redact import redact_record
from ..messages import texts_in
from ..records import NOTE, Record, Ref, ScopePath, Value
from ..store.matching import conditions, prefixed
from ..store.protocol import Store, scan_all
from ..store.query import (
    Condition,
    Delete,
    Expect,
    Limit,
    Op,
    Purge,
    Put,
    Scan,
    StreamScan,
    Touch,
    Write,
    stored_record,
)
from ..store.retry import retry_conflicts
from ..store.stream_state import shown_limit
from ..telemetry.calls import observed
from .memory_items import source_labels


class NoteInfo(Value, frozen=True, kw_only=True):
    """A note without its value; `size` is that of the value as JSON, in bytes, `source` who wrote it last, if given."""

    key: str
    description: str | None
    size: int
    metadata: dict[str, Any]
    version: int
    created: datetime
    updated: datetime
    source: str | None = None


class Note(NoteInfo, frozen=True, kw_only=True):
    """A note with its value."""

    value: JSON


class NoteSettings(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on the number of notes in a scope, and on the bytes of their values as JSON."""

    max_notes: int | None = None
    max_bytes: int | None = None


@observed
class AsyncNotes:
    """The notes of one scope: any JSON value under a key, with a description.

    The settings, two limits, are stored with the notes: a write that would exceed them raises LimitError and
    changes nothing.
    """

    scope: ScopePath

    def __init__(self, store: Store, scope: ScopePath) -> None:
        self.scope = scope
        self._store = store
        self._settings: str | None = None
        """Stored settings, as last seen."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def settings(self) -> NoteSettings:
        """Return the limits of this scope's notes."""
        page = await self._store.streams(StreamScan(scope=self.scope, kinds=(NOTE,), below=False, empty=True))
        self._settings = page.items[0].settings if page.items else None
        return note_settings(self._settings)

    async def configure(
        self, *, max_notes: int | None | UnsetType = UNSET, max_bytes: int | None | UnsetType = UNSET
    ) -> NoteSettings:
        """Change the given limits of this scope's notes, for all writers; others stay.

        None removes a limit. Existing notes stay. Returns all settings. Raises InvalidValueError for a limit
        below 1, ConflictError if concurrent changes win every attempt.
        """
        limits = {"max_notes": max_notes, "max_bytes": max_bytes}
        given = {name: limit for name, limit in limits.items() if limit is not UNSET}
        for name, limit in given.items():
            if limit is not None:
                check_count(limit, name, least=1)
        await self.settings()

        async def change() -> NoteSettings:
            changed: NoteSettings = replace(note_settings(self._settings), **given)
            text = None if changed == NoteSettings() else json.encode(changed).decode()
            try:
                await self._store.write(
                    Write((Expect(self.scope, NOTE, settings=self._settings), Touch(self.scope, NOTE, settings=text)))
                )
            except SettingsChangedError as error:
                self._settings = error.settings
                raise
            self._settings = text
            return changed

        return await retry_conflicts(change, f"changing the settings of the notes of {self.scope.path!r}")

    async def write(
        self,
        key: str,
        value: JSON,
        *,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        created: datetime | None = None,
        if_version: int | None = None,
    ) -> NoteInfo:
        """Write a value under a key of this scope, replacing the previous one.

        An omitted description or metadata stays unchanged; `source` is the origin of this value. `created` is for a
        note that is older than this store: a copy, or one that was deleted. With `if_version`,
        the note must have that version, 0 for new; otherwise ConflictError is raised, whose `current` is the stored
        version. Without, ConflictError means that concurrent writes won every attempt. Raises LimitError
        if a limit would be exceeded, InvalidValueError if the value is not JSON.
        """

        async def replace_note() -> NoteInfo:
            old = None if if_version == 0 else await self._find(key)  # a new one replaces nothing
            before = old or Record(scope=self.scope, kind=NOTE, key=key)
            note = replace(
                before,
                data=value,
                title=before.title if description is None else description,
                meta=before.meta if metadata is None else metadata,
                labels=source_labels(source),
                created=before.created if created is None else created,
            )
            return await self._put(note, before.version if if_version is None else if_version, old)

        return await retry_conflicts(
            replace_note,
            f"writing the note {shown(key)} in {self.scope.path!r}",
            retry_on=lambda error: if_version is None or isinstance(error, SettingsChangedError),
        )

    async def read(self, key: str) -> JSON:
        """Return the value under a key of this scope; raises NotFoundError."""
        return (await self.get(key)).value

    async def read_many(self, keys: Sequence[str]) -> dict[str, JSON]:
        """Return the values of those of these keys that exist in this scope."""
        refs = [self._ref(key) for key in check_names(keys, "keys")]
        return {record.key: record.data for record in await self._store.read(refs) if record is not None}

    async def read_all(self) -> dict[str, JSON]:
        """Return all values of this scope by key, in order of creation."""
        return {record.key: record.data async for record in self._scan(bodies=True)}

    async def get(self, key: str) -> Note:
        """Return a note of this scope with its value, description and version; raises NotFoundError."""
        record = await self._find(key)
        if record is None:
            raise NotFoundError(f"{self.scope.path!r} has no note {shown(key)}")
        return to_note(record)

    async def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete a note of this scope; return whether it existed.

        With `if_version`, a note with another version is not deleted, and ConflictError is raised.
        """
        version = None if if_version is None else check_count(if_version, "if_version")
        outcomes = await self._store.write(Write((Delete(self._ref(key), version),)))
        return bool(outcomes[0].removed)

    async def rename(self, key: str, to: str, *, if_version: int | None = None) -> NoteInfo:
        """Change the key of a note of this scope.

        Raises NotFoundError if it does not exist, ConflictError if the new key is taken, or if the note has another
        version than `if_version`, if given.
        """
        expected = None if if_version is None else check_count(if_version, "if_version")

        async def move() -> NoteInfo:
            old = await self._find(key)
            if old is None:
                raise NotFoundError(f"{self.scope.path!r} has no note {shown(key)}")
            version = old.version if expected is None else expected
            if to == key and version == old.version:
                return to_info(old)
            return await self._put(replace(old, key=to), 0, old, Delete(old.ref, version))

        return await retry_conflicts(
            move,
            f"renaming the note {shown(key)} in {self.scope.path!r}",
            retry_on=lambda error: error.key != to and expected is None,
        )

    async def stale(self, older_than: timedelta) -> list[NoteInfo]:
        """Return the notes of this scope that were last written longer ago than this."""
        if not isinstance(older_than, timedelta) or not timedelta(0) <= older_than <= MAX_TTL:
            raise InvalidValueError(f"older_than must be a timedelta from 0 to a thousand years: {shown(older_than)}")
        where = (Condition("updated", "lt", self._store.clock() - older_than),)
        return [to_info(record) async for record in self._scan(where)]

    async def usage(self) -> tuple[int, int]:
        """Return the number of notes of this scope, and the bytes of their values as JSON."""
        page = await self._store.streams(StreamScan(scope=self.scope, kinds=(NOTE,), below=False))
        return (page.items[0].count, page.items[0].weight) if page.items else (0, 0)

    async def clear(self) -> None:
        """Delete all notes of this scope."""
        await self._store.write(Write((Purge(self.scope, NOTE),)))

    # Last among the public methods, because its name shadows the type in annotations.
    async def list(self, metadata: Mapping[str, Any] | None = None, *, prefix: str = "") -> list[NoteInfo]:
        """List the notes of this scope without values, in order of creation; those whose key begins with `prefix`."""
        found = self._scan(conditions(metadata) + prefixed(prefix))
        return [to_info(record) async for record in found if record.key.startswith(prefix)]

    async def _put(self, note: Record, if_version: int, old: Record | None, *before: Op) -> NoteInfo:
        """Write a note in place of the old one; one that is not larger is always accepted."""
        given = checked_note(note)
        note = await redact_record(self._store, given)
        put = Put(given if note is given else checked_note(note), if_version)
        limits = note_settings(self._settings)
        ops: list[Op] = [Expect(self.scope, NOTE, settings=self._settings), *before, put]
        if limits != NoteSettings() and (old is None or put.record.weight > old.weight):
            ops.append(Limit(self.scope, NOTE, limits.max_notes, limits.max_bytes))
        try:
            outcomes = await self._store.write(Write(tuple(ops)))
        except SettingsChangedError as error:
            self._settings = error.settings
            raise
        except LimitError as error:
            raise LimitError(
                f"{self.scope.path!r} would hold {error.count:,} notes of {error.weight:,} bytes; "
                f"allowed are {shown_limit(limits.max_notes)} notes of {shown_limit(limits.max_bytes)} bytes",
                count=error.count,
                weight=error.weight,
            ) from None
        return to_info(stored_record(put.record, outcomes[1 + len(before)]))

    async def _find(self, key: str) -> Record | None:
        (record,) = await self._store.read([self._ref(key)])
        return record

    def _ref(self, key: str) -> Ref:
        return Ref(self.scope, NOTE, check_name(key, "key"))

    def _scan(self, where: tuple[Condition, ...] = (), *, bodies: bool = False) -> AsyncIterator[Record]:
        return scan_all(self._store, Scan(scope=self.scope, kinds=(NOTE,), where=where, bodies=bodies))


def checked_note(note: Record) -> Record:
    """Return a note with its text and size; raises InvalidValueError if its key, title or value is invalid."""
    value, _ = check_json(note.data, "value")
    title = None if note.title is None else check_text(note.title, "description")
    text = "\n".join(filter(None, [check_name(note.key, "key"), title, *texts_in(value)]))
    return replace(note, data=value, text=text, weight=len(json.encode(value)))


def to_info(record: Record) -> NoteInfo:
    return NoteInfo(**_fields(record))


def to_note(record: Record) -> Note:
    return Note(**_fields(record), value=record.data)


def _fields(record: Record) -> dict[str, Any]:
    return {
        "key": record.key,
        "description": record.title,
        "size": record.weight,
        "metadata": record.meta,
        "version": record.version,
        "created": record.created,
        "updated": record.updated,
        "source": record.labels.get("source"),
    }


def note_settings(settings: str | None) -> NoteSettings:
    """Return the stored settings of notes; raises UnreadableStoreError."""
    try:
        return NoteSettings() if settings is None else json.decode(settings, type=NoteSettings)
    except MsgspecError as error:
        raise UnreadableStoreError(f"notes have settings that cannot be read: {shown(settings)}") from error
