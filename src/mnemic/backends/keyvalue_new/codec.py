"""Records as JSON arrays."""

from __future__ import annotations

from ...records import Record, known_scope
from ...store.planning import StreamName
from ..keyvalue.kept import Kept, decode_kept, encode


def encode_record(record: Record) -> bytes:
    """Encode a record without its scope, kind and derived values."""
    return encode(Kept.of(record))


def decode_record(stored: bytes, name: StreamName) -> Record:
    """Decode a record of a stream; raises UnreadableStoreError if it is damaged."""
    return decode_kept(stored).record(known_scope(name[0]), name[1], {})
