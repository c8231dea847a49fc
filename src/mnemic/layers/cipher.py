"""Data keys and envelopes: record content, encrypted and bound to its position. No I/O.

An envelope is one byte for its type, four for the key, a random nonce of twelve, and the AES-256-GCM ciphertext
with its tag. A record has two: the head (title, metadata, labels, key, time of creation if given), which a scan
without bodies needs, and the body (text, data), which is bound to its head so that the two cannot be mixed.
"""

from __future__ import annotations

import os
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from hmac import digest
from typing import TYPE_CHECKING, Any

from msgspec import json
from msgspec.structs import replace

from ..checks import check_extra, to_microseconds
from ..errors import DecryptionError
from ..key_reading import KEY_SIZE
from ..records import (
    ARCHIVED,
    EMBEDDER_KIND,
    KEPT_BY_ERASURE,
    LEASE,
    MESSAGE,
    ONCE_KIND,
    SUMMARY,
    TITLE,
    Record,
    Ref,
    ScopePath,
)
from .master_key import NAME_SIZE, NONCE, derived_key, key_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PART, LASTING, OF_CONTENT, OF_VERSION = b"\x01", b"\x02", b"\x03", b"\x04"
"""Envelope types: head or body of a record; a derived value of any version, of one content, or of one version."""
TAG = 16
"""Length of a tag."""
HEAD = "sealed"
"""Name of the encrypted head in the stored metadata."""
CLEAR_KEYS = frozenset({MESSAGE, ARCHIVED, SUMMARY, TITLE, LEASE, ONCE_KIND, EMBEDDER_KIND, *KEPT_BY_ERASURE})
"""Kinds whose keys are random or fixed, and stored as they are; all other keys are stored as keyed hashes."""

_encode = json.Encoder().encode
_decode = json.Decoder().decode


class DataKeys:
    """The keys of one subject: some that encrypt and decrypt content, and a secret for the hashes of names.

    Hashes reveal only equality within the subject. `version` is that of the key record.
    """

    def __init__(
        self,
        subject: str,
        secret: bytes,
        keys: Mapping[bytes, bytes],
        version: int = 0,
        destroyed: frozenset[bytes] = frozenset(),
    ) -> None:
        """Take keys by name, of which the first encrypts, and the names of keys that were destroyed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.subject = subject
        self.secret = secret
        self.keys: dict[bytes, bytes] = dict(keys)
        self.version = version
        self.destroyed = destroyed
        self.first: bytes = next(iter(self.keys))
        """Name of the key that encrypts."""
        self._ciphers: dict[bytes, AESGCM] = {name: AESGCM(key) for name, key in self.keys.items()}
        self._wrong = InvalidTag
        self._for_labels = digest(secret, b"labels", "sha256")
        self._for_keys = digest(secret, b"keys", "sha256")

    @classmethod
    def generate(cls, subject: str, destroyed: frozenset[bytes] = frozenset()) -> DataKeys:
        """Return new keys."""
        name, key = new_key(destroyed)
        return cls(subject, os.urandom(KEY_SIZE), {name: key}, 0, destroyed)

    @classmethod
    def of_secret(cls, key: str | bytes) -> DataKeys:
        """Return the keys that are derived from a key of the user's, for what has no key record.

        Raises InvalidValueError for an invalid key, MissingExtraError without `mnemic[encryption]`.
        """
        check_extra("encryption", "encryption", "cryptography")
        secret = key_bytes(key)
        name = derived_key(secret, b"mnemic name of a key", NAME_SIZE)
        return cls("", derived_key(secret, b"mnemic names"), {name: derived_key(secret, b"mnemic records")})

    def packed(self) -> bytes:
        """Return the keys as they are wrapped, with the subject that they belong to."""
        keys = b"".join(name + key for name, key in self.keys.items())
        return sha256(self.subject.encode()).digest() + self.secret + keys

    @classmethod
    def unpacked(cls, packed: bytes, subject: str, version: int, destroyed: frozenset[bytes], what: str) -> DataKeys:
        """Return packed keys; raises DecryptionError if they belong to another subject."""
        size, start = NAME_SIZE + KEY_SIZE, 2 * KEY_SIZE
        if packed[:KEY_SIZE] != sha256(subject.encode()).digest() or len(packed) < start + size:
            raise DecryptionError(f"{what}: its data keys are those of another scope, or damaged")
        parts = [packed[at : at + size] for at in range(start, len(packed), size)]
        keys = {part[:NAME_SIZE]: part[NAME_SIZE:] for part in parts}
        return cls(subject, packed[KEY_SIZE:start], keys, version, destroyed)

    def seal(self, content: bytes, bound: bytes, mark: bytes = PART) -> bytes:
        """Return an envelope that can only be opened with the same `bound` data."""
        header, nonce = mark + self.first, os.urandom(NONCE)
        return header + nonce + self._ciphers[self.first].encrypt(nonce, content, header + bound)

    def open(self, sealed: bytes, bound: bytes, what: Record | str) -> bytes:
        """Return the content of an envelope; raises DecryptionError, which names `what` was read."""
        name, start = key_of(sealed, what), 1 + NAME_SIZE + NONCE
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise UnknownDataKeyError(what, name)
        try:
            return cipher.decrypt(sealed[1 + NAME_SIZE : start], sealed[start:], sealed[: 1 + NAME_SIZE] + bound)
        except self._wrong:
            raise DecryptionError(
                f"{_named(what)} cannot be decrypted: it was modified in the store, or moved from elsewhere"
            ) from None

    def hashed_labels(self, labels: dict[str, str]) -> dict[str, str]:
        """Return the labels of a record as they are stored."""
        return {self.label_name(name): self.label_value(name, text) for name, text in labels.items()}

    def label_name(self, name: str) -> str:
        """Return the hash of a label's name."""
        return digest(self._for_labels, b"name " + _bytes(name), "sha256")[:8].hex()

    def label_value(self, name: str, text: str) -> str:
        """Return the hash of a label's value."""
        # Names contain no NUL, so the encoding is unambiguous.
        message = b"value " + _bytes(name) + b"\0" + text.encode()
        return digest(self._for_labels, message, "sha256")[:16].hex()

    def hashed_key(self, kind: str, key: str) -> str:
        """Return the key of a record as it is stored."""
        if kind in CLEAR_KEYS:
            return key
        return digest(self._for_keys, _bytes(kind) + b"\0" + _bytes(key), "sha256")[:16].hex()


class UnknownDataKeyError(DecryptionError):
    """An envelope names a data key that is not known; it may be new, or destroyed."""

    def __init__(self, what: Record | str, name: bytes) -> None:
        super().__init__(
            f"{_named(what)} is encrypted with a data key, {name.hex()}, that its scope does not have: it was "
            "modified, or its key record was lost"
        )
        self.name = name


def new_key(taken: frozenset[bytes] | Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return a new data key and its name, which none of `taken` has."""
    while (name := os.urandom(NAME_SIZE)) in taken:
        pass
    return name, os.urandom(KEY_SIZE)


def _bytes(name: str) -> bytes:
    # A condition may name a label that no record can have.
    return name.encode("utf-8", "surrogatepass")


def key_of(sealed: bytes, what: Record | str) -> bytes:
    """Return the key name of an envelope; raises DecryptionError if it is not an envelope."""
    if len(sealed) < 1 + NAME_SIZE + NONCE + TAG or not PART <= sealed[:1] <= OF_VERSION:
        raise DecryptionError(f"{_named(what)} is not encrypted, or is damaged")
    return sealed[1 : 1 + NAME_SIZE]


# ---------------------------------------------------------------- records


def seal_record(keys: DataKeys, record: Record) -> Record:
    """Return a record encrypted for the store below, with its key and labels hashed."""
    key = keys.hashed_key(record.kind, record.key)
    named = record.key if key != record.key else None
    labels = keys.hashed_labels(record.labels) if record.labels else {}
    placed = replace(record, key=key, labels=labels)
    clear = _clear_fields(placed)
    content = (record.title, record.meta, record.labels, named, _micros(record.created))
    head = keys.seal(_encode(content), b"head" + clear)
    body = keys.seal(_encode((record.text, record.data)), _bound_to(head, clear))
    return replace(
        placed,
        seq=0,
        version=0,
        text=None,
        title=None,
        data=b2a_base64(body, newline=False).decode(),
        meta={HEAD: b2a_base64(head, newline=False).decode()},
        updated=None,
        derived={
            name: keys.seal(value, _derived_name(placed.ref, name) + head[-TAG:], OF_CONTENT)
            for name, value in record.derived.items()
        },
    )


def open_record(keys: DataKeys | None, record: Record, *, bodies: bool = True) -> Record:
    """Return the decrypted record, text and data only with `bodies`; raises DecryptionError.

    Derived values that cannot be decrypted are omitted, since they can be recomputed.
    """
    clear, head = _clear_fields(record), head_of(record)
    if keys is None:
        raise UnknownDataKeyError(record, key_of(head, record))
    title, meta, labels, key, created = _decode(keys.open(head, b"head" + clear, record))
    if created is not None and created != _micros(record.created):
        raise DecryptionError(f"{_named(record)} has another time of creation than it was written with")
    text = data = None
    if bodies:
        text, data = _decode(keys.open(_unpacked(record.data, record), _bound_to(head, clear), record))
    derived = {name: _open_derived(keys, record, head, name, value) for name, value in record.derived.items()}
    return replace(
        record,
        key=record.key if key is None else key,
        text=text,
        title=title,
        data=data,
        meta=meta,
        labels=labels,
        derived={name: value for name, value in derived.items() if value is not None},
    )


def seal_derived(keys: DataKeys, ref: Ref, name: str, value: bytes, version: int | None) -> bytes:
    """Return a derived value of a record below, encrypted; valid at that version, or with None at any."""
    if version is None:
        return keys.seal(value, _derived_name(ref, name), LASTING)
    return keys.seal(value, _derived_name(ref, name) + version.to_bytes(8), OF_VERSION)


def _open_derived(keys: DataKeys, record: Record, head: bytes, name: str, value: bytes) -> bytes | None:
    mark, bound = value[:1], _derived_name(record.ref, name)
    if mark == OF_CONTENT:
        bound += head[-TAG:]
    elif mark == OF_VERSION:
        bound += record.version.to_bytes(8)
    try:
        return keys.open(value, bound, record)
    except DecryptionError:
        return None


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
    labels = sorted(record.labels.items()) if record.labels else None
    return _encode(
        (record.scope.path, record.kind, record.key, record.weight, importance, record.pinned, *times, labels)
    )


def _micros(time: datetime | None) -> int | None:
    return None if time is None else to_microseconds(time)


def _bound_to(head: bytes, clear: bytes) -> bytes:
    return b"body" + head[-TAG:] + clear


def _derived_name(ref: Ref, name: str) -> bytes:
    return b"derived" + _encode((ref.scope.path, ref.kind, ref.key, name))


def subject_of(scope: ScopePath, level: int) -> str:
    """Return the path of the subject of a scope: its first `level` segments."""
    path = scope.path
    if path.count("/") < level:
        return path if level else ""
    return "/".join(path.split("/", level)[:level])
