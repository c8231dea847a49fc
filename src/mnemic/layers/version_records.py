"""Earlier versions of records, as records of the kind VERSION in the same scope: their form, and how they are read.

A version has the record that was replaced or removed. Those that a large purge removes are written before it, under
the id of the purge, and count from the moment when the record of the purge itself is written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import force_setattr, replace

from ..checks import to_microseconds
from ..kinds import KINDS
from ..records import VERSION, Record, Ref, ScopePath, Stream, digest_of, unreadable
from ..store.codec import decode_record, encode_record
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Put, Scan

__all__ = [
    "BEGIN_REF",
    "EXPIRY",
    "FOREVER",
    "VERSIONED_KINDS",
    "KeptVersion",
    "PurgeRecord",
    "copied_version",
    "held_expiry",
    "purge_record",
    "read_versions",
    "version_put",
]

VERSIONED_KINDS = tuple(name for name, kind in KINDS.items() if kind.versioned)
"""Kinds whose earlier versions are kept."""
BEGIN_REF = Ref(ScopePath(), VERSION, "begin")
"""Ref of the record that says since when the versions of a store are kept, and how long."""
EXPIRY = "expiry-under-hold"
"""Name of the derived value that has the expiry of a record that a legal hold has suspended, in ISO 8601."""
FOREVER = datetime.max.replace(tzinfo=UTC)
"""When a legal hold ends that was set without an end."""
READ_AT_ONCE = 200
"""How many versions are read at once."""


class PurgeRecord(Struct, frozen=True):
    """A purge of a stream: when, by whom, and what the stream had besides records.

    `id` is that of the write, which may purge several streams, with a dot and the kind.
    """

    id: str
    scope: ScopePath
    kind: str
    time: datetime
    position: int
    by: str | None
    created: datetime | None
    ttl: float | None
    settings: str | None


class KeptVersion(Struct, frozen=True):
    """An earlier version of a record, when and by whom it was replaced or, if `removed`, deleted.

    `purge` is the id of the purge that removed it, if one did; `position` gives the order of all changes of a scope.
    """

    record: Record
    ended: datetime
    removed: bool
    by: str | None
    position: int
    purge: str | None = None
    place: tuple[int, int] | None = None
    """In a copy, whose records have other seqs: the seq after which it was, and its own in the original."""


def held_expiry(expires: datetime, held_until: datetime) -> datetime | None:
    """Return when something expires that is under a legal hold; None for never."""
    return None if held_until == FOREVER else max(expires, held_until)


def version_put(
    record: Record,
    *,
    removed: bool,
    by: str | None,
    now: datetime,
    keep: timedelta,
    purge: str | None = None,
    salt: str = "",
    held_until: datetime | None = None,
) -> Put:
    """Return the operation that keeps a version; it conflicts if another writer has kept the same one.

    A `salt` is for a version that only looks the same, of a stream that was dropped and began again.
    With `purge`, the id of a purge that follows, it counts from then on, and replaces an older one of that purge.
    Under a legal hold it does not expire before `held_until`.
    """
    assert record.updated is not None
    expires = now + keep if record.expires is None else min(now + keep, record.expires)
    key = digest_of((record.kind, record.key, record.version, to_microseconds(record.updated), salt)).hex()
    if purge is not None:
        key = f"{purge}-{digest_of((record.kind, record.key)).hex()}"
    labels = {"kind": record.kind, "key": record.key}
    put = Put(Record(record.scope, VERSION, key, labels=labels, expires=expires), None if purge else 0)
    # The record was checked when it was written; with its encoding it may be longer than one may be.
    data: dict[str, Any] = {"record": encode_record(record).decode(), "removed": removed, "by": by, "purge": purge}
    kept = copy(put.record)
    if held_until is not None:
        force_setattr(kept, "expires", held_expiry(expires, held_until))
        force_setattr(kept, "derived", {EXPIRY: expires.isoformat().encode()})
    force_setattr(kept, "data", {name: value for name, value in data.items() if value})
    force_setattr(put, "record", kept)
    return put


def purge_record(id: str, stream: Stream, *, by: str | None, now: datetime, keep: timedelta) -> Put:
    """Return the operation that keeps what a purge removes besides records, and makes its versions count."""
    ttl = None if stream.ttl is None else stream.ttl.total_seconds()
    data = {"purged": True, "by": by, "created": stream.created.isoformat(), "ttl": ttl, "settings": stream.settings}
    labels = {"kind": stream.kind}
    return Put(Record(stream.scope, VERSION, id, data=data, labels=labels, expires=now + keep), 0)


async def read_versions(
    store: Store, scope: ScopePath, *, below: bool = False, kind: str | None = None, key: str | None = None
) -> tuple[list[KeptVersion], list[PurgeRecord]]:
    """Return the kept versions of a scope, or those of a kind or key, in the order of the changes, and the purges.

    With a key, the purges are those of the versions. Raises UnreadableStoreError for a damaged version.
    """
    labels = {"labels.kind": kind, "labels.key": key}
    where = tuple(Condition(name, "eq", value) for name, value in labels.items() if value is not None)
    scan = Scan(scope=scope, kinds=(VERSION,), below=below, where=where, limit=READ_AT_ONCE)
    records = [record async for record in scan_all(store, scan) if record.ref != BEGIN_REF]
    purges = {(one.scope, one.id): one for one in map(_to_purge, records) if one is not None}
    kept = [record for record in records if not _is_purge(record)]
    missing = {Ref(one.scope, VERSION, id) for one in kept if (id := _purge_id(one)) and (one.scope, id) not in purges}
    for found in await store.read(list(missing)) if missing else ():
        if found is not None and (purge := _to_purge(found)) is not None:
            purges[purge.scope, purge.id] = purge
    return _in_order(kept, purges), sorted(purges.values(), key=lambda one: (one.scope, one.position))


def copied_version(record: Record, seqs: Callable[[str], Sequence[int]]) -> Record:
    """Return the record of a version as a copy has it, where the records of a stream are numbered from 1.

    `seqs` returns the seqs of the records of a kind in the original. Other records are returned as they are.
    """
    if record.kind != VERSION or not isinstance(record.data, dict) or "record" not in record.data:
        return record
    version = _to_version(record, None)
    known = seqs(version.record.kind)
    if version.place is None:
        place = [bisect_left(known, version.record.seq), version.record.seq]
    else:
        place = [bisect_right(known, version.place[0]), version.place[1]]
    return replace(record, data={**record.data, "place": place})


def _in_order(kept: Sequence[Record], purges: dict[tuple[ScopePath, str], PurgeRecord]) -> list[KeptVersion]:
    """Return the versions that count, each once, in the order in which they ended."""
    versions: list[KeptVersion] = []
    ends: dict[Any, list[int]] = {}
    for one in kept:
        if _purge_id(one) is None:
            versions.append(_to_version(one, None))
            ends.setdefault(_identity(versions[-1].record), []).append(one.seq)
    for one in kept:
        if (id := _purge_id(one)) is not None and (purge := purges.get((one.scope, id))) is not None:
            version = _to_version(one, purge)
            # One that ended while the purge was prepared is not the purge's.
            if not any(one.seq < end < purge.position for end in ends.get(_identity(version.record), ())):
                versions.append(version)
    return sorted(versions, key=lambda one: (one.record.scope, one.position, one.record.kind, one.record.seq))


def _identity(record: Record) -> tuple[Ref, int, datetime | None]:
    return record.ref, record.version, record.updated


def _is_purge(record: Record) -> bool:
    return isinstance(record.data, dict) and bool(record.data.get("purged"))


def _purge_id(record: Record) -> str | None:
    return record.data.get("purge") if isinstance(record.data, dict) else None


def _to_purge(record: Record) -> PurgeRecord | None:
    if not _is_purge(record):
        return None
    data: Any = record.data
    try:
        return PurgeRecord(
            record.key,
            record.scope,
            record.labels["kind"],
            convert(record.created, datetime),
            record.seq,
            convert(data.get("by"), str | None),
            convert(data.get("created"), datetime | None),
            convert(data.get("ttl"), float | None),
            convert(data.get("settings"), str | None),
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise unreadable(record, error) from None


def _to_version(record: Record, purge: PurgeRecord | None) -> KeptVersion:
    data: Any = record.data
    try:
        kept = decode_record(record.scope, record.labels["kind"], convert(data["record"], str))
        ended = convert(record.created, datetime)
        by = convert(data.get("by"), str | None)
        removed = bool(data.get("removed"))
        place = convert(data.get("place"), tuple[int, int] | None)
    except (KeyError, TypeError, ValidationError) as error:
        raise unreadable(record, error) from None
    if purge is None:
        return KeptVersion(kept, ended, removed, by, record.seq, None, place)
    return KeptVersion(kept, purge.time, True, purge.by, purge.position, purge.id, place)
