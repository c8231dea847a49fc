"""Signing keys: Ed25519 signatures of JSON documents, and keys of hash chains. No I/O except reading a key.

A document is signed as canonical JSON: sorted names, no spaces, UTF-8. Everyone who has the public key, or its
fingerprint, can verify it. Signatures need `mnemic[encryption]`; hash chains do not.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest, digest
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import json

from .checks import check_extra, shown
from .errors import InvalidValueError, SignatureError
from .key_reading import given_key, secret_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "SIGNATURE",
    "SigningKey",
    "SigningKeys",
    "can_sign",
    "canonical",
    "read_signing_keys",
    "signing_keys",
    "verify_signature",
]

SIGNATURE = "signature"
"""Name of the signature in a signed document."""
ALGORITHM = "ed25519"

_canonical = json.Encoder(order="sorted").encode


class SigningKey:
    """A secret of 32 bytes that signs documents, and from which the keys of hash chains are derived."""

    def __init__(self, secret: bytes | str | os.PathLike[str]) -> None:
        """Take 32 bytes, their 44 base64 characters, or an Ed25519 private key in PEM; raises InvalidValueError.

        A Path, "file:PATH" or "env:NAME" names a file or an environment variable with one of these.
        """
        self._secret = _secret_bytes(secret)

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a new random key."""
        return cls(os.urandom(32))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Return the key in a file; raises as `SigningKey` does."""
        return cls(Path(path))

    @classmethod
    def from_environment(cls, name: str) -> SigningKey:
        """Return the key in an environment variable; raises as `SigningKey` does."""
        return cls(f"env:{name}")

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for one purpose, from which the secret cannot be found."""
        return digest(self._secret, b"mnemic " + purpose.encode(), "sha256")

    def secret_text(self) -> str:
        """Return the secret as 44 base64 characters, to be stored."""
        return b64encode(self._secret).decode()

    @property
    def public_key(self) -> str:
        """The public key as 44 base64 characters; raises MissingExtraError without `mnemic[encryption]`."""
        return b64encode(self._private().public_key().public_bytes_raw()).decode()

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key, by which people compare keys; raises as `public_key` does."""
        return fingerprint_of(self.public_key)

    def sign(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document with a signature of everything else in it; raises as `public_key` does."""
        unsigned = {name: value for name, value in document.items() if name != SIGNATURE}
        private = self._private()
        value = b64encode(private.sign(canonical(unsigned))).decode()
        return {**unsigned, SIGNATURE: {"algorithm": ALGORITHM, "public_key": self.public_key, "value": value}}

    def _private(self) -> Ed25519PrivateKey:
        check_extra("encryption", "signing", "cryptography")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._secret)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


SigningKeys: TypeAlias = (
    SigningKey | bytes | str | os.PathLike[str] | Sequence[SigningKey | bytes | str | os.PathLike[str]]
)
"""A key in any form that `SigningKey` takes, or several: the first signs, all of them verify."""


def signing_keys(given: SigningKeys) -> list[SigningKey]:
    """Return the keys that were given; raises InvalidValueError if there is none, or an invalid one."""
    several: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not several:
        raise InvalidValueError("signing needs a key, and got an empty list of them")
    return [key if isinstance(key, SigningKey) else SigningKey(key) for key in several]


def read_signing_keys(files: Sequence[str], variables: Sequence[str]) -> list[SigningKey] | None:
    """Return the keys in files and environment variables; None if there are none. Raises as they do."""
    return [*map(SigningKey.from_file, files), *map(SigningKey.from_environment, variables)] or None


def can_sign() -> bool:
    """Return whether signatures are possible: whether `mnemic[encryption]` is installed."""
    return find_spec("cryptography") is not None


def canonical(document: Any) -> bytes:
    """Return a document as canonical JSON, equal for equal documents."""
    return _canonical(document)


def fingerprint_of(public_key: str) -> str:
    """Return the fingerprint of a public key."""
    return sha256(b64decode(public_key)).hexdigest()


def verify_signature(document: Mapping[str, Any], trusted: Collection[str] | None = None) -> str:
    """Check the signature of a document; return the fingerprint of its key.

    `trusted` has public keys or fingerprints; with None, only the document itself is checked: anyone can sign with
    a new key. Raises SignatureError if the document was not signed, was changed, or has a key that is not trusted;
    MissingExtraError without `mnemic[encryption]`.
    """
    check_extra("encryption", "verifying a signature", "cryptography")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = document.get(SIGNATURE)
    if not isinstance(signature, Mapping):
        raise SignatureError("the document has no signature")
    if signature.get("algorithm") != ALGORITHM:
        raise SignatureError(f"the signature's algorithm is not {ALGORITHM}: {shown(signature.get('algorithm'))}")
    try:
        public = b64decode(signature["public_key"], validate=True)
        value = b64decode(signature["value"], validate=True)
        key = Ed25519PublicKey.from_public_bytes(public)
    except (KeyError, TypeError, ValueError):
        raise SignatureError("the signature is not readable: its key or value is missing or damaged") from None
    try:
        key.verify(value, canonical({name: part for name, part in document.items() if name != SIGNATURE}))
    except InvalidSignature:
        raise SignatureError("the document was changed after it was signed, or signed with another key") from None
    found = sha256(public).hexdigest()
    if trusted is not None and not any(_same(name, public, found) for name in trusted):
        raise SignatureError(f"the document is signed with a key that is not trusted: {found}")
    return found


def _same(name: str, public: bytes, fingerprint: str) -> bool:
    return compare_digest(name.encode(), b64encode(public)) or compare_digest(
        name.lower().encode(), fingerprint.encode()
    )


def _secret_bytes(key: object) -> bytes:
    """Return the 32 bytes of a secret; raises InvalidValueError, which never shows the key."""
    found, description = given_key(key)
    if (secret := secret_of(found)) is not None:
        return secret
    text = found.encode() if isinstance(found, str) else found
    if isinstance(text, bytes | bytearray) and text.startswith(b"-----BEGIN"):
        return _from_pem(bytes(text))
    raise InvalidValueError(
        f"a signing key is 32 random bytes, their 44 base64 characters, or an Ed25519 private key in PEM; {description}"
    )


def _from_pem(text: bytes) -> bytes:
    check_extra("encryption", "a signing key in PEM", "cryptography")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text, None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise InvalidValueError("the signing key in PEM cannot be read: it is damaged or has a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidValueError("the signing key in PEM is not of the type Ed25519")
    return key.private_bytes_raw()
