"""Files of an encrypted memory, such as saved sessions: each has a key of its own, wrapped by the master key."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from msgspec import DecodeError, json

from ..errors import DecryptionError
from ..event_loop import off_loop
from ..store.protocol import Store
from .cipher import DataKeys
from .encryption import EncryptLayer
from .encryption_metadata import to_data, to_wrapped
from .layer import find_layer

FORMAT = "mnemic.encrypted/1"
_START = f'{{"format":"{FORMAT}"'.encode()
_BOUND = b"file"


async def encrypted_file(store: Store, content: bytes) -> bytes:
    """Return the content of a file, encrypted if the store is; raises StoreError if a master key's function fails."""
    layer = find_layer(store, EncryptLayer)
    if layer is None:
        return content
    keys = DataKeys.generate(FORMAT)
    sealed = await off_loop(lambda: b64encode(keys.seal(content, _BOUND)).decode())
    return json.encode({"format": FORMAT, "keys": to_data(await layer.masters.wrap(keys.packed())), "sealed": sealed})


async def decrypted_file(store: Store, content: bytes, name: str) -> bytes:
    """Return the decrypted content of a file, or the content as it is if it is not encrypted.

    Raises DecryptionError if it has another key, was modified, or the store is opened without a key.
    """
    if not content.startswith(_START):
        return content
    layer = find_layer(store, EncryptLayer)
    if layer is None:
        raise DecryptionError(f"{name} is encrypted: open the memory with its encryption_key")
    try:
        data: dict[str, Any] = json.decode(content)
        sealed = b64decode(data["sealed"], validate=True)
        wrapped = to_wrapped(data["keys"], name)
    except (DecodeError, KeyError, TypeError, ValueError):
        raise DecryptionError(f"{name} is damaged") from None
    packed = await layer.masters.unwrap(wrapped, name)
    keys = DataKeys.unpacked(packed, FORMAT, 0, frozenset(), name)
    return await off_loop(lambda: keys.open(sealed, _BOUND, name))
