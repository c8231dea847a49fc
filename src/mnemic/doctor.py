"""Examines a store, also one that cannot be opened, and changes nothing: `mnemic doctor`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import field

from .errors import (
    DecryptionError,
    EmbedderError,
    MnemicError,
    NotFoundError,
    StorePermissionError,
    StoreUnavailableError,
    UnreadableStoreError,
)
from .layers.cipher import EncryptionKeys
from .layers.encryption import METADATA_REF, EncryptLayer
from .layers.store_embedder import EMBEDDER_REF, embedder_data
from .models.embedder import embedder_by_id
from .recall.index_entry import entry_name
from .records import EMBEDDER_KIND, ENCRYPTION_KIND, ONCE_KIND, RECALLED, ScopePath, Value
from .store import registry
from .store.diagnosis import Diagnosis, Problem
from .store.protocol import Capability, Store, all_streams, scan_all
from .store.query import Scan, StreamScan

__all__ = ["Examination", "examine"]

INTERNAL = (EMBEDDER_KIND, ENCRYPTION_KIND, ONCE_KIND)
"""Kinds that are not counted."""


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
    facts: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return all(problem.severity != "error" for problem in self.problems)


async def examine(url: str, encryption_key: EncryptionKeys | None = None) -> Examination:
    """Examine the store at a URL.

    Raises InvalidValueError, UnknownSchemeError or MissingExtraError for a bad URL, NotFoundError if there is no store.
    """
    parsed, backend = registry.find(url)
    found = Diagnosis()
    known: dict[str, Any] = dict.fromkeys(("durable", "shared", "encrypted", "embedder", "without_vectors"))
    known |= {"scopes": None, "records": None}
    try:
        if backend.exists is not None and backend.diagnose is None and not await backend.exists(parsed):
            raise NotFoundError(f"there is no store at {parsed}")
        if backend.diagnose is not None:
            found = await backend.diagnose(parsed)
        else:
            found = Diagnosis(engine=parsed.scheme, store=await backend.open(parsed))
        if found.store is not None:
            await _look_into(found.store, encryption_key, found, known)
    except (StorePermissionError, StoreUnavailableError, UnreadableStoreError, DecryptionError, EmbedderError) as error:
        code, repair = _explained(error)
        found.error(code, str(error), repair)
    finally:
        if found.store is not None:
            await found.store.close()
    return Examination(
        url=str(parsed), engine=found.engine, schema=found.schema, facts=found.facts, problems=found.problems, **known
    )


def _explained(error: MnemicError) -> tuple[str, str]:
    if isinstance(error, StoreUnavailableError):
        return "unavailable", "start the server, and check host, port and network"
    if isinstance(error, StorePermissionError):
        return "no_permission", "check user, password and permissions"
    if isinstance(error, DecryptionError):
        return "wrong_key", "give the key with --key-file or --key-env"
    return "unreadable", "restore the newest backup"


async def _look_into(
    store: Store, encryption_key: EncryptionKeys | None, found: Diagnosis, known: dict[str, Any]
) -> None:
    """Find out what every back-end tells in the same way."""
    lossy = any(problem.code in ("not_durable", "not_persistent") for problem in found.problems)
    known["durable"] = Capability.DURABLE in store.capabilities and not lossy
    known["shared"] = Capability.SHARED in store.capabilities
    known["encrypted"] = (await store.read([METADATA_REF]))[0] is not None
    records: Counter[str] = Counter()
    scopes: set[str] = set()
    async for stream in all_streams(store, StreamScan(scope=ScopePath())):
        if stream.kind not in INTERNAL:
            records[stream.kind] += stream.count
            scopes.add(stream.scope.path)
    known["records"], known["scopes"] = dict(sorted(records.items())), len(scopes)
    if known["encrypted"]:
        if encryption_key is None:
            return
        layer = EncryptLayer(store, encryption_key)
        await layer.prepare()
        store = layer
    (note,) = await store.read([EMBEDDER_REF])
    data = embedder_data(note)
    known["embedder"] = id = data.get("id")
    if target := data.get("next"):
        text = f"moving the vectors to the embedder {target} was interrupted"
        found.warn("half_reembedded", text, f"mnemic reembed --embedder {target}")
    if id is not None:
        lacking = Scan(scope=ScopePath(), below=True, kinds=RECALLED, lacking=entry_name(id), bodies=False, limit=1000)
        known["without_vectors"] = sum([1 async for _ in scan_all(store, lacking)])
        if embedder_by_id(id) is None:
            found.warn(
                "no_embedder",
                f"the embedder {id} of the stored vectors is not installed, so that recall compares words alone",
                "install it, or move to another: mnemic reembed --embedder static",
            )
