"""Certificates of erasures: what was erased, when, by whom, what was verified, and what remains; signed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from hashlib import sha256
from os import PathLike
from typing import Any

from msgspec import MsgspecError, convert, field, json
from msgspec.structs import replace

from ..checks import new_id
from ..errors import InvalidValueError, MissingExtraError
from ..files import check_path, read_file, replace_file
from ..layers.audit import actor_of
from ..layers.layer import Layer, layers_of
from ..layers.restricted import require
from ..layers.store_signing import StoreSigning
from ..records import Value
from ..signing import SIGNATURE, canonical, verify_signature
from ..store.protocol import Store, Unreached, scrub

FORMAT = "mnemic.erasure/1"


class ErasedStream(Value, frozen=True, kw_only=True):
    """How many records of one kind were erased in one scope."""

    scope: str
    kind: str
    records: int


class ErasedDerivation(Value, frozen=True, kw_only=True):
    """Records of one kind in another scope that were derived from the subject's data: dropped, or rebuilt."""

    scope: str
    kind: str
    dropped: int = 0
    rebuilt: int = 0


class ErasedArchive(Value, frozen=True, kw_only=True):
    """Records erased from an archive in another store."""

    store: str
    records: int


class InterruptedErasure(Value, frozen=True, kw_only=True):
    """An earlier erasure of the scope that did not finish, and how many records it had found."""

    id: str
    started: datetime
    records: int


class Verification(Value, frozen=True, kw_only=True):
    """A place that was searched after the erasure, when, and how many records of the subject it still had."""

    place: str
    time: datetime
    records: int


class ErasureCertificate(Value, frozen=True, kw_only=True):
    """The result of `erase`: a record of what was done that can be verified by its signature.

    `records` counts the records of the scope; internal ones, such as idempotency ids, are in `erased` only. A dry run
    has the counts of what would be erased, and neither an id nor a signature.
    """

    format: str = FORMAT
    id: str = ""
    scope: str
    store: str
    started: datetime
    finished: datetime
    actor: str | None = None
    session: str | None = None
    address: str | None = None
    dry_run: bool = False
    records: int = 0
    erased: list[ErasedStream] = field(default_factory=list)
    derived: list[ErasedDerivation] = field(default_factory=list)
    archives: list[ErasedArchive] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    """Number of things removed besides records: cached indexes, data keys, names in the audit log."""
    interrupted: list[InterruptedErasure] = field(default_factory=list)
    verified: list[Verification] = field(default_factory=list)
    unreached: list[Unreached] = field(default_factory=list)
    finishes: str | None = None
    """The id of the certificate whose `unreached` this one finishes."""
    signature: dict[str, str] | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing remains anywhere that this memory knows of."""
        return not self.dry_run and not self.unreached and all(one.records == 0 for one in self.verified)

    @property
    def digest(self) -> str:
        """The SHA-256 of everything but the signature, to quote it elsewhere."""
        return sha256(canonical({**self.to_dict(), SIGNATURE: None})).hexdigest()

    def verify(self, *, trusted: Collection[str] | None = None) -> str:
        """Check the signature; return the fingerprint of its key.

        `trusted` are public keys or fingerprints; with None, anyone may have signed it. Raises SignatureError if it
        was not signed, was changed, or has another key.
        """
        return verify_certificate(self.to_dict(), trusted=trusted)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a JSON file, which is replaced atomically; raises a StoreError."""
        replace_file(path, json.format(json.encode(self.to_dict()), indent=1))

    @classmethod
    def from_dict(cls, value: Any) -> ErasureCertificate:
        """Return the certificate of a dict that `to_dict` made; raises InvalidValueError."""
        try:
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise InvalidValueError(f"this is not a certificate of the format {FORMAT!r}")
            if unknown := value.keys() - set(cls.__struct_fields__):
                raise InvalidValueError(f"a certificate has no field {sorted(unknown)[0]!r}")
            return convert(value, cls)
        except MsgspecError as error:
            raise InvalidValueError(f"this is not a valid certificate: {error}") from None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ErasureCertificate:
        """Read a saved certificate; raises NotFoundError, or InvalidValueError if the file is not one."""
        try:
            return cls.from_dict(json.decode(read_file(path)))
        except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValueError(f"{check_path(path)} is not a certificate: {error}") from None
        except InvalidValueError as error:
            raise InvalidValueError(f"{check_path(path)}: {error}") from None


def _signing(store: Store) -> StoreSigning | None:
    return next((one.signing for one in layers_of(store) if isinstance(one, Layer) and one.signing), None)


async def check_signing(store: Store) -> None:
    """Raise UnreadableStoreError if the keys that sign certificates are damaged."""
    if (signing := _signing(store)) is not None:
        await signing.keys()


async def signed(store: Store, certificate: ErasureCertificate) -> ErasureCertificate:
    """Return a certificate with a signature; without one if the store can keep no key, or the extra is missing."""
    signing = _signing(store)
    key = None if signing is None else await signing.find()
    if key is None:
        return certificate
    try:
        document = key.sign(certificate.to_dict())
    except MissingExtraError:
        return certificate
    return replace(certificate, signature=document[SIGNATURE])


async def finish(store: Store, certificate: ErasureCertificate) -> ErasureCertificate:
    """Remove what an erasure has left in files and logs; return a certificate that says what remains now.

    Raises SignatureError for a certificate that this store has not signed, or that was changed.
    """
    require(store, "erase")
    signing = _signing(store)
    if signing is not None and (keys := await signing.keys()):
        certificate.verify(trusted=[key.fingerprint for key in keys])
    done = await scrub(store, finish=True)
    left = [one for one in certificate.unreached if not one.finishable]
    made = replace(
        certificate,
        id=new_id(),
        started=store.clock(),
        finished=store.clock(),
        finishes=certificate.id,
        removed=done.removed,
        unreached=[*left, *(one for one in done.unreached if one not in left)],
        signature=None,
        **actor_of(store),
    )
    return await signed(store, made)


def verify_certificate(document: Any, *, trusted: Collection[str] | None = None) -> str:
    """Check a certificate, as JSON; return the fingerprint of the key that signed it.

    Raises InvalidValueError if it is none, SignatureError if it was not signed, was changed, or has a key that is not
    trusted.
    """
    ErasureCertificate.from_dict(document)
    return verify_signature(document, trusted)
