"""Master keys: where they come from, and how they wrap data keys.

A master key encrypts nothing but data keys. It is 32 bytes, or a `MasterKey`: two functions, such as those of a key
management service, which never hands its key out.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from os import PathLike
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from ..checks import MAX_DEPTH, check_count, check_extra, check_name, check_text
from ..errors import DecryptionError, InvalidValueError, MnemicError, StoreError
from ..event_loop import call
from ..key_reading import KEY_SIZE, given_key, secret_of

NONCE = 12
"""Length of a nonce in bytes."""
NAME_SIZE = 4
"""Length of the name of a key in bytes."""
SUBJECT_LEVEL = 2
"""How many segments of a scope make a subject in a new store, unless given."""

_BOUND = b"mnemic data keys"


class MasterKey(Struct, frozen=True, kw_only=True):
    """A master key that stays elsewhere, such as in a key management service.

    `wrap` takes some hundred bytes and returns them encrypted and authenticated; `unwrap` reverses it and raises if
    they were not wrapped by this key. Both may be async. `name` identifies the key, and is stored in clear with what
    it wrapped.
    """

    name: str
    wrap: Callable[[bytes], bytes | Awaitable[bytes]]
    unwrap: Callable[[bytes], bytes | Awaitable[bytes]]

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an invalid name, or what cannot be called."""
        check_name(self.name, "name of a master key")
        if not callable(self.wrap) or not callable(self.unwrap):
            raise InvalidValueError("wrap and unwrap of a MasterKey must be functions from bytes to bytes")


EncryptionKey: TypeAlias = str | bytes | PathLike[str] | MasterKey
"""32 bytes, their 44 base64 characters, "file:PATH" or a Path, "env:NAME" for a variable, or a `MasterKey`."""


class Encryption(Struct, frozen=True):
    """How a store is encrypted: by which keys, how finely, and where its data keys are kept.

    Of several keys, the first wraps new data keys, and all of them unwrap. The first `subject_level` segments of a
    scope have a data key of their own; it is fixed when the store is created. With `key_store`, the URL of another
    store, the wrapped data keys are kept there, so that a copy of the data alone is not readable once they are
    destroyed.
    """

    key: EncryptionKey | Sequence[EncryptionKey]
    subject_level: int | None = None
    key_store: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an invalid level or URL; keys are checked when a store is opened."""
        if isinstance(self.key, list):
            force_setattr(self, "key", tuple(self.key))
        if self.subject_level is not None and check_count(self.subject_level, "subject_level") > MAX_DEPTH:
            raise InvalidValueError(f"subject_level is at most {MAX_DEPTH}: {self.subject_level}")
        if self.key_store is not None:
            check_text(self.key_store, "key_store")

    def __repr__(self) -> str:
        return f"Encryption(subject_level={self.subject_level}, key_store={self.key_store!r})"


EncryptionKeys: TypeAlias = EncryptionKey | Sequence[EncryptionKey] | Encryption
"""A key, several of which the first encrypts, or an `Encryption`."""


def encryption_of(given: EncryptionKeys) -> Encryption:
    """Return an `encryption_key` in any form as an `Encryption`."""
    return given if isinstance(given, Encryption) else Encryption(given)


class UnknownMasterKeyError(DecryptionError):
    """Data keys are wrapped by a master key that was not given."""


class Wrapped(Struct, frozen=True):
    """Data keys, wrapped by the master key of this name."""

    key: str
    value: str


class MasterKeys:
    """Wraps with the first master key, and unwraps with all of them."""

    def __init__(self, keys: EncryptionKey | Sequence[EncryptionKey]) -> None:
        """Raise InvalidValueError for an invalid key, MissingExtraError without `mnemic[encryption]`."""
        check_extra("encryption", "encryption", "cryptography")
        given = list(keys) if isinstance(keys, list | tuple) else [keys]
        if not given:
            raise InvalidValueError("encryption needs a key, and got an empty list of them")
        found = [key if isinstance(key, MasterKey) else key_bytes(key) for key in given]
        masters = [key if isinstance(key, MasterKey) else _local(key) for key in dict.fromkeys(found)]
        self._masters: dict[str, MasterKey] = {master.name: master for master in masters}
        if len(self._masters) < len(masters):
            raise InvalidValueError("two of the encryption keys have the same name: generate another one")
        self.first: str = next(iter(self._masters))
        """Name of the key that wraps."""

    async def wrap(self, content: bytes) -> Wrapped:
        """Return the content wrapped; raises StoreError if the key's function fails."""
        master = self._masters[self.first]
        return Wrapped(self.first, b64encode(await _called(master.wrap, content, master.name)).decode())

    def require(self, wrapped: Wrapped, what: str) -> MasterKey:
        """Return the key that wrapped; raises DecryptionError, which names `what`, if it is not known."""
        if (master := self._masters.get(wrapped.key)) is None:
            raise UnknownMasterKeyError(
                f"{what} is encrypted with the key {wrapped.key}, which was not given; given: "
                f"{', '.join(self._masters)}. If keys were rotated, open it with the new key; what still has an old "
                "one, with [new, old], and rotate again"
            )
        return master

    async def unwrap(self, wrapped: Wrapped, what: str) -> bytes:
        """Return wrapped content; raises DecryptionError, which names `what`, if the key is not known or wrong."""
        master = self.require(wrapped, what)
        try:
            value = b64decode(wrapped.value, validate=True)
        except ValueError:
            raise DecryptionError(f"{what}: its wrapped data keys are damaged") from None
        return await _called(master.unwrap, value, master.name)


async def _called(function: Callable[[bytes], Any], content: bytes, name: str) -> bytes:
    try:
        result = await call(function, content)
    except MnemicError:
        raise
    except Exception as error:
        raise StoreError(f"the master key {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, bytes):
        raise StoreError(f"the master key {name} returned {type(result).__name__} instead of bytes")
    return result


def _local(secret: bytes) -> MasterKey:
    """Return a master key whose bytes are known here."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    # The user's key is never used directly, so other uses of it cannot collide with these.
    cipher = AESGCM(derived_key(secret, b"mnemic records", KEY_SIZE))
    name = derived_key(secret, b"mnemic name of a key", NAME_SIZE).hex()

    def wrap(content: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + cipher.encrypt(nonce, content, _BOUND)

    def unwrap(wrapped: bytes) -> bytes:
        try:
            return cipher.decrypt(wrapped[:NONCE], wrapped[NONCE:], _BOUND)
        except (InvalidTag, ValueError):
            raise DecryptionError(f"data keys that the key {name} wrapped were modified in the store") from None

    return MasterKey(name=name, wrap=wrap, unwrap=unwrap)


def derived_key(secret: bytes, purpose: bytes, length: int = KEY_SIZE) -> bytes:
    """Return a key for one purpose, from which the secret cannot be computed."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, None, purpose).derive(secret)


def key_bytes(key: object) -> bytes:
    """Return the 32 bytes of a key in any form; raises InvalidValueError, which never shows the key."""
    found, description = given_key(key)
    if (secret := secret_of(found)) is None:
        raise InvalidValueError(
            "an encryption key is 32 random bytes, or their 44 base64 characters, as cryptography's "
            f"Fernet.generate_key() makes them; {description}"
        )
    return secret
