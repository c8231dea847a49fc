"""Records as JSON arrays."""

from __future__ import annotations

from ...records import Record, known_scope
from ...store import codec
from ...store.planning import StreamName

encode_record = codec.encode_record


def decode_record(stored: bytes, name: StreamName) -> Record:
    """Decode a record of a stream; raises UnreadableStoreError if it is damaged."""
    return codec.decode_record(known_scope(name[0]), name[1], stored)
