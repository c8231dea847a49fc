"""Encryption keys and envelopes: record content, encrypted and bound to its position. No I/O.

An envelope is one byte for its type, four for the key, a random nonce of twelve, and the AES-256-GCM ciphertext
with its tag. A record has two: the head (title, metadata, labels), which a scan without bodies needs, and the
body (text, data), which is bound to its head so that the two cannot be mixed.
"""

from __future__ import annotations

import os
from base64 import b64decode
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from hmac import digest
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import json
from msgspec.structs import replace

from ..checks import check_extra, to_microseconds
from ..errors import DecryptionError, InvalidValueError
from ..records import Record, Ref, ScopePath

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Key: TypeAlias = str | bytes
"""32 bytes, or their 44 base64 characters, as from `Fernet.generate_key`."""
EncryptionKeys: TypeAlias = Key | Sequence[Key]
"""A key, or several: the first encrypts, all of them decrypt."""

OF_RECORD, LASTING = b"\x01", b"\x02"
"""Envelope types: part of a record version, or a derived value that outlives the version."""
NAMED, NONCE, TAG = 4, 12, 16
"""Lengths of a key's name, a nonce, and a tag."""
HEAD = "sealed"
"""Name of the encrypted head in the stored metadata."""

_encode = json.Encoder().encode
_decode = json.Decoder().decode
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class Keyring:
    """Encrypts with the first key, and decrypts with all of them."""

    def __init__(self, keys: EncryptionKeys) -> None:
        """Raise InvalidValueError for an invalid key, MissingExtraError without `mnemic[encryption]`."""
        check_extra("encryption", "encryption", "cryptography")
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        given = list(keys) if isinstance(keys, list | tuple) else [keys]
        if not given:
            raise InvalidValueError("encryption needs a key, and got an empty list of them")
        # The user's key is never used directly, so other uses of it cannot collide with these.
        secrets = [key_bytes(key) for key in given]
        self._ciphers: dict[bytes, AESGCM] = {
            _derived_key(secret, b"mnemic name of a key", NAMED): AESGCM(_derived_key(secret, b"mnemic records", 32))
            for secret in secrets
        }
        if len(self._ciphers) < len(set(secrets)):
            raise InvalidValueError("two of the encryption keys have the same name: generate another one")
        self._wrong = InvalidTag
        self.first: bytes = next(iter(self._ciphers))
        """Name of the key that encrypts."""

    def seal(self, content: bytes, bound: bytes, mark: bytes = OF_RECORD) -> bytes:
        """Return an envelope that can only be opened with the same `bound` data."""
        header, nonce = mark + self.first, os.urandom(NONCE)
        return header + nonce + self._ciphers[self.first].encrypt(nonce, content, header + bound)

    def open(self, sealed: bytes, bound: bytes, what: Record | str) -> bytes:
        """Return the content of an envelope; raises DecryptionError, which names `what` was read."""
        name, start = key_of(sealed, what), 1 + NAMED + NONCE
        cipher = self._ciphers.get(name)
        if cipher is None:
            known = ", ".join(one.hex() for one in self._ciphers)
            raise DecryptionError(
                f"{_named(what)} is encrypted with the key {name.hex()}, which was not given; given: {known}"
            )
        try:
            return cipher.decrypt(sealed[1 + NAMED : start], sealed[start:], sealed[: 1 + NAMED] + bound)
        except self._wrong:
            raise DecryptionError(
                f"{_named(what)} cannot be decrypted: it was modified in the store, or moved from elsewhere"
            ) from None


class RecordCipher:
    """Encrypts and decrypts record content."""

    def __init__(self, keys: Keyring) -> None:
        self.keys = keys

    def seal(self, record: Record, labels: dict[str, str]) -> Record:
        """Return a record encrypted for the store below, with `labels` in place of its own."""
        clear = _clear_fields(record)
        head = self.keys.seal(_encode((record.title, record.meta, record.labels)), b"head" + clear)
        body = self.keys.seal(_encode((record.text, record.data)), _bound_to(head, clear))
        return replace(
            record,
            seq=0,
            version=0,
            text=None,
            title=None,
            data=b2a_base64(body, newline=False).decode(),
            meta={HEAD: b2a_base64(head, newline=False).decode()},
            labels=labels,
            updated=None,
            derived={name: self.seal_derived(record.ref, name, value) for name, value in record.derived.items()},
        )

    def open(self, record: Record, *, bodies: bool = True) -> Record:
        """Return the decrypted record, text and data only with `bodies`; raises DecryptionError.

        Derived values that cannot be decrypted are omitted, since they can be recomputed.
        """
        clear, head = _clear_fields(record), head_of(record)
        title, meta, labels = _decode(self.keys.open(head, b"head" + clear, record))
        text = data = None
        if bodies:
            text, data = _decode(self.keys.open(_unpacked(record.data, record), _bound_to(head, clear), record))
        derived = {name: self._open_derived(record, name, value) for name, value in record.derived.items()}
        return replace(
            record,
            text=text,
            title=title,
            data=data,
            meta=meta,
            labels=labels,
            derived={name: value for name, value in derived.items() if value is not None},
        )

    def seal_derived(self, ref: Ref, name: str, value: bytes, mark: bytes = OF_RECORD) -> bytes:
        """Return a derived value encrypted for the store below."""
        return self.keys.seal(value, _derived_name(ref, name), mark)

    def _open_derived(self, record: Record, name: str, value: bytes) -> bytes | None:
        try:
            return self.keys.open(value, _derived_name(record.ref, name), record)
        except DecryptionError:
            return None


class LabelHasher:
    """Maps labels to keyed hashes, which reveal only equality within a tenant.

    A tenant is the first segment of a scope. Between tenants not even equality is visible.
    """

    def __init__(self, key: bytes) -> None:
        self._of_tenant = lru_cache(maxsize=10_000)(lambda tenant: digest(key, tenant.encode(), "sha256"))

    def hashed(self, scope: ScopePath, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of a record as they are stored."""
        tenant = tenant_of(scope)
        return {self.name(tenant, name): self.value(tenant, name, text) for name, text in labels.items()}

    def name(self, tenant: str, name: str) -> str:
        """Return the hash of a label's name."""
        return digest(self._of_tenant(tenant), b"name " + _bytes(name), "sha256")[:8].hex()

    def value(self, tenant: str, name: str, text: str) -> str:
        """Return the hash of a label's value."""
        # Names contain no NUL, so the encoding is unambiguous.
        message = b"value " + _bytes(name) + b"\0" + text.encode()
        return digest(self._of_tenant(tenant), message, "sha256")[:16].hex()


def _bytes(name: str) -> bytes:
    # A condition may name a label that no record can have.
    return name.encode("utf-8", "surrogatepass")


def tenant_of(scope: ScopePath) -> str:
    """Return the first segment of a scope; empty for the root."""
    return scope.path.partition("/")[0]


def key_bytes(key: object) -> bytes:
    """Return the 32 bytes of a key; raises InvalidValueError, which never shows the key."""
    if isinstance(key, bytes | bytearray) and len(key) == 32:
        return bytes(key)
    if isinstance(key, str | bytes | bytearray):
        text = key.encode() if isinstance(key, str) else bytes(key)
        try:
            found = b64decode(text.translate(_URL_SAFE), validate=True)
        except ValueError:
            found = b""
        if len(text) == 44 and len(found) == 32:
            return found
    size = f" of length {len(key)}" if isinstance(key, str | bytes | bytearray) else ""
    raise InvalidValueError(
        "an encryption key is 32 random bytes, or their 44 base64 characters, as cryptography's "
        f"Fernet.generate_key() makes them; given was a value of the type {type(key).__name__}{size}"
    )


def key_of(sealed: bytes, what: Record | str) -> bytes:
    """Return the key name of an envelope; raises DecryptionError if it is not an envelope."""
    if len(sealed) < 1 + NAMED + NONCE + TAG or sealed[:1] not in (OF_RECORD, LASTING):
        raise DecryptionError(f"{_named(what)} is not encrypted, or is damaged")
    return sealed[1 : 1 + NAMED]


def head_of(record: Record) -> bytes:
    """Return the stored head of a record; raises DecryptionError if it has none."""
    return _unpacked(record.meta.get(HEAD), record)


def _unpacked(text: Any, record: Record) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except (TypeError, ValueError):
        raise DecryptionError(f"{_named(record)} is not encrypted, or is damaged") from None


def _named(what: Record | str) -> str:
    return what if isinstance(what, str) else f"{what.kind} {what.key!r} in scope {what.scope.path!r}"


def _clear_fields(record: Record) -> bytes:
    """Return the authenticated clear fields of a record; if one is changed, decryption fails."""
    # Some stores have no negative zero.
    importance = None if record.importance is None else record.importance + 0.0
    times = (_micros(record.expires), _micros(record.valid_from), _micros(record.valid_to))
    return _encode((record.scope.path, record.kind, record.key, record.weight, importance, record.pinned, *times))


def _micros(time: datetime | None) -> int | None:
    return None if time is None else to_microseconds(time)


def _bound_to(head: bytes, clear: bytes) -> bytes:
    return b"body" + head[-TAG:] + clear


def _derived_name(ref: Ref, name: str) -> bytes:
    return b"derived" + _encode((ref.scope.path, ref.kind, ref.key, name))


def _derived_key(secret: bytes, purpose: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, None, purpose).derive(secret)
