"""Examines a store, also one that cannot be opened, and changes nothing: `mnemic doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from msgspec import field

from .checks import shown
from .errors import (
    DecryptionError,
    EmbedderError,
    MnemicError,
    NewerSchemaError,
    StoreBusyError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from .features.hits import to_item_of
from .kinds import KINDS
from .layers.auxiliary_stores import open_encrypted
from .layers.encryption import check_plain
from .layers.encryption_metadata import METADATA_REF
from .layers.master_key import EncryptionKeys, UnknownMasterKeyError, encryption_of
from .layers.store_embedder import EMBEDDER_REF, embedder_data
from .models.embedder import embedder_by_id
from .recall.index_entry import entry_name
from .records import RECALLED, VERSION, Record, ScopePath, Stream, Value
from .store import registry
from .store.damage import records_around, streams_around
from .store.diagnosis import Diagnosis, StoreProblem
from .store.protocol import Capability, Store, scan_all
from .store.query import Scan, StreamScan

__all__ = ["Examination", "examine"]

INTERNAL = frozenset(name for name, kind in KINDS.items() if not kind.counted)
"""Kinds that are not counted: Mnemic's own records, which nobody has written."""
READ = 100_000
"""How many records are read at most, unless the examination is deep."""
READ_AT_ONCE = 500
MOST_UNREADABLE = 1000
"""How many unreadable records are counted at most."""
SALVAGE = "restore the newest backup; without one, save what can be read: mnemic doctor --salvage NEW_STORE"
NAMED = 3
"""How many unreadable records are named."""


class Examination(Value, frozen=True, kw_only=True):
    """A store, and what is wrong with it; a field is None if it could not be found out."""

    url: str
    engine: str
    schema: str | None
    durable: bool | None
    shared: bool | None
    encrypted: bool | None
    embedder: str | None
    without_vectors: int | None
    """Texts whose vectors are missing or out of date, which the next recall computes."""
    scopes: int | None
    records: dict[str, int] | None
    """Number of records of each kind."""
    read: int | None
    """Number of these that were read, to find damaged ones; of an encrypted store without its key, not decrypted."""
    facts: dict[str, Any]
    problems: list[StoreProblem] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return all(problem.severity != "error" for problem in self.problems)


async def examine(url: str, encryption_key: EncryptionKeys | None = None, *, deep: bool = False) -> Examination:
    """Examine the store at a URL; a deep examination reads every record, else the first 100,000.

    Raises InvalidValueError, UnknownSchemeError or MissingExtraError for a bad URL.
    """
    parsed, backend = registry.find(url)
    found = Diagnosis()
    known: dict[str, Any] = dict.fromkeys(("durable", "shared", "encrypted", "embedder", "without_vectors"))
    known |= {"scopes": None, "records": None, "read": None}
    try:
        if backend.exists is not None and backend.diagnose is None and not await backend.exists(parsed):
            found.no_store_yet(str(parsed))
        elif backend.diagnose is not None:
            found = await backend.diagnose(parsed)
        else:
            found = Diagnosis(engine=parsed.scheme, store=await backend.open(parsed))
        if found.store is not None:
            await _look_into(found.store, encryption_key, found, known, deep)
    except (StoreError, EmbedderError) as error:
        code, repair = _explained(error)
        if code == "unreadable" and found.store is None and parsed.split.hostname:
            # The first answer is not that of such a server, or the URL's options are not those of a store.
            code, repair = "not_a_store", "check host, port, database and options of the URL"
        found.error(code, str(error), repair)
    finally:
        if found.store is not None:
            await found.store.close()
    return Examination(
        url=str(parsed), engine=found.engine, schema=found.schema, facts=found.facts, problems=found.problems, **known
    )


def _explained(error: MnemicError) -> tuple[str, str]:
    if isinstance(error, NewerSchemaError):
        return "newer_schema", "pip install -U mnemic"
    if isinstance(error, StoreBusyError):
        return "busy", "try again when the others have finished"
    if isinstance(error, StoreUnavailableError):
        return "unavailable", "start the server, and check host, port and network"
    if isinstance(error, StorePermissionError):
        return "no_permission", "check user, password and permissions"
    if isinstance(error, DecryptionError):
        return "wrong_key", "give the key with --key-file or --key-env"
    if isinstance(error, EmbedderError):
        return "no_embedder", "install it, or move to another: mnemic reembed --embedder static"
    return "unreadable", SALVAGE


async def _look_into(
    store: Store, encryption_key: EncryptionKeys | None, found: Diagnosis, known: dict[str, Any], deep: bool
) -> None:
    """Find out what every back-end tells in the same way."""
    lossy = any(problem.code in ("not_durable", "not_persistent") for problem in found.problems)
    known["durable"] = Capability.DURABLE in store.capabilities and not lossy
    known["shared"] = Capability.SHARED in store.capabilities
    (metadata,) = await store.read([METADATA_REF])
    known["encrypted"] = metadata is not None
    lost = False
    if not known["encrypted"]:
        try:
            await check_plain(store, "the store")
        except DecryptionError as error:
            lost = True
            found.error("lost_keys", str(error), "restore a backup of the store, or copy its key records from one")
    records: Counter[str] = Counter()
    scopes: set[str] = set()
    async for stream in streams_around(store):
        if isinstance(stream, StoreError):
            found.error("unreadable", str(stream), SALVAGE)
        elif stream.kind not in INTERNAL and stream.count:
            records[stream.kind] += stream.count
            scopes.add(stream.scope.path)
    known["records"], known["scopes"] = dict(sorted(records.items())), len(scopes)
    sealed = lost or (known["encrypted"] and encryption_key is None)
    below = store
    if metadata is not None and encryption_key is not None:
        if not await _check_key_store(metadata, encryption_key, found):
            return
        found.store = store = layer = await open_encrypted(store, encryption_key)
        await layer.prepare()
    reading = _Reading(store, below, None if deep else READ, decoded=not sealed)
    for kinds in ((), (VERSION,)):
        async for stream in streams_around(store, kinds):
            if not isinstance(stream, StoreError) and stream.count and not reading.full:
                await reading.stream(stream)
    reading.report(found, known)
    if sealed:
        return
    if Capability.SEARCH in store.capabilities:
        known["embedder"] = "the server's"
        return
    (note,) = await store.read([EMBEDDER_REF])
    data = embedder_data(note)
    known["embedder"] = id = data.get("id")
    if target := data.get("next"):
        text = f"moving the vectors to the embedder {target} was interrupted"
        found.warn("half_reembedded", text, f"mnemic reembed --embedder {target}")
    if id is not None and not reading.damaged:
        lacking = Scan(scope=ScopePath(), below=True, kinds=RECALLED, lacking=entry_name(id), bodies=False, limit=1000)
        known["without_vectors"] = sum([1 async for _ in scan_all(store, lacking)])
    if id is not None and embedder_by_id(id) is None:
        found.warn(
            "no_embedder",
            f"the embedder {id} of the stored vectors is not installed, so that recall compares words alone",
            "install it, or move to another: mnemic reembed --embedder static",
        )


async def _check_key_store(metadata: Record, given: EncryptionKeys, found: Diagnosis) -> bool:
    """Check that a key store was given if the data keys are in one, and that it is there; return whether it is."""
    apart = isinstance(metadata.data, dict) and "store" not in metadata.data
    url = encryption_of(given).key_store
    if not apart:
        return True
    if url is None:
        text = "the data keys of the store are in another store, which was not given"
    else:
        parsed, backend = registry.find(url)
        if backend.exists is None or await backend.exists(parsed):
            return True
        text = f"there is no key store at {parsed}"
    found.error("no_key_store", text, "give the store that has the data keys with --key-store, beside the key")
    return False


class _Reading:
    """Reads the records of a store, and counts those that cannot be read, or are not what their kind says."""

    def __init__(self, store: Store, below: Store, most: int | None, *, decoded: bool) -> None:
        """Take a store, and for an encrypted one also that below its encryption."""
        self._store = store
        self._below = below
        self._most = most
        self._decoded = decoded
        self._malformed: list[str] = []
        self._read = 0
        self.damaged: list[str] = []
        self._whole = True
        self._lost = 0
        self._erased: Counter[str] = Counter()
        self._erased_in: dict[str, None] = {}
        self._unknown_keys: dict[str, None] = {}

    @property
    def full(self) -> bool:
        """Whether as much was read as is wanted."""
        return len(self.damaged) >= MOST_UNREADABLE or (self._most is not None and self._read >= self._most)

    async def stream(self, stream: Stream) -> None:
        """Read a stream, around the records that are damaged."""
        counted = stream.kind not in INTERNAL
        before, locked = self._read, False
        reading = records_around(self._store, stream.scope, stream.kind, stream.last_seq, at_once=READ_AT_ONCE)
        async with aclosing(reading) as pages:
            async for found in pages:
                if isinstance(found, UnknownMasterKeyError):
                    self._unknown_keys[str(found)] = None
                    locked = True
                elif isinstance(found, StoreError):
                    self.damaged.append(str(found))
                    self._read += counted
                else:
                    self._read += counted * len(found)
                    self._check_content(stream.kind, found)
                if self.full:
                    self._whole = len(self.damaged) < MOST_UNREADABLE
                    return
        if locked:
            self._read = before + counted * stream.count
        elif counted and self._read - before < stream.count:
            await self._check_count(stream, self._read - before)

    def _check_content(self, kind: str, records: Sequence[Record]) -> None:
        """Note the records that cannot be decoded as what their kind says."""
        for record in records if self._decoded else ():
            if len(self._malformed) >= MOST_UNREADABLE:
                return
            try:
                to_item_of(record)
            except Exception as error:  # whatever is wrong with the data of a record
                what = f"{type(error).__name__}: {error}"
                self._malformed.append(f"the {kind} {shown(record.key)} in {record.scope.path!r} ({what})")

    async def _check_count(self, stream: Stream, seen: int) -> None:
        """Note missing records, unless the stream has changed, or records have expired, since it was listed."""
        listed = await self._store.streams(StreamScan(scope=stream.scope, kinds=(stream.kind,), below=False))
        if any((now.version, now.count) == (stream.version, stream.count) for now in listed.items):
            stored = seen
            if self._below is not self._store:
                # The encryption treats records whose data key was destroyed as absent.
                every = records_around(self._below, stream.scope, stream.kind, stream.last_seq, at_once=READ_AT_ONCE)
                stored = sum([1 if isinstance(one, StoreError) else len(one) async for one in every])
            if stored > seen:
                self._erased[stream.kind] += stored - seen
                self._erased_in[repr(stream.scope.path)] = None
            self._lost += stream.count - stored

    def report(self, found: Diagnosis, known: dict[str, Any]) -> None:
        """Say how many records cannot be read, and which."""
        known["read"] = self._read
        if self.damaged:
            number = f"{'' if self._whole else 'at least '}{len(self.damaged):,}"
            found.error("unreadable", f"{number} of the records cannot be read: {_first(self.damaged)}", SALVAGE)
        if self._malformed:
            least = "at least " if len(self._malformed) >= MOST_UNREADABLE else ""
            found.error(
                "malformed",
                f"{least}{len(self._malformed):,} of the records are not what their kind says: "
                f"{_first(self._malformed)}",
                "restore them from a backup, or delete them: mnemic forget SCOPE ID",
            )
        if self._unknown_keys:
            found.error(
                "unknown_key",
                f"some records are encrypted with a key that was not given: {_first([*self._unknown_keys])}",
                "a program with another key has written them; give that key too, and rotate again: "
                "mnemic rotate --key-file NEW --key-file OTHER",
            )
        if self._erased:
            known["records"] = dict(Counter(known["records"]) - self._erased)
            found.warn(
                "erased_records",
                f"{self._erased.total():,} more records were erased, and nobody can read them, because their data key "
                f"was destroyed: in {_first([*self._erased_in])}",
                "none is needed, and no backup has them; to remove what is left of them: mnemic erase SCOPE",
            )
        if self._lost:
            found.error(
                "lost_records",
                f"{self._lost:,} of the records that were written are missing, and were not deleted by Mnemic",
                "restore the newest backup, or copy the others to a new store, which counts them: mnemic copy",
            )


def _first(several: list[str]) -> str:
    """Return the first of several records, and whether there are more."""
    return "; ".join([*several[:NAMED], *(["…"] if len(several) > NAMED else [])])
