"""Targets: what lies in stores, and the analysis of texts."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from fuzzing import each, in_file, target, text, value
from mnemic import ScopePath
from mnemic.backends.agentcore import codec as agentcore
from mnemic.backends.dynamodb import codec as dynamodb
from mnemic.backends.redis import codec as redis_codec
from mnemic.backends.s3 import codec as s3
from mnemic.backends.sqlite.pages import PageFile, values_of
from mnemic.layers.cipher import DataKeys, open_record, seal_record
from mnemic.recall import index_entry
from mnemic.recall.question import analyze_question
from mnemic.recall.text_analysis import content_words, similarity, terms, words
from mnemic.records import Record
from mnemic.redaction.config import Redaction, redactor_of
from mnemic.store.codec import FIELDS, decode_record, decode_record_state, encode_record, from_columns, to_columns

KEY = bytes(range(32))
RECORD = Record(
    ScopePath("acme"), "message", "k", 1, 2, text="Hello", title="A", data={"role": "user", "n": [1, 2.5]},
    meta={"a": 1}, labels={"b": "c"}, importance=0.5, created=datetime(2024, 1, 1, tzinfo=UTC),
    updated=datetime(2024, 1, 2, tzinfo=UTC),
)  # fmt: skip
# ------------------------------------------------------------ what lies in stores


@target("record", encode_record(RECORD))
def _record(data: bytes) -> None:
    each(lambda: decode_record_state(data), lambda: decode_record(ScopePath("a"), "message", data))


@target("row", to_columns(RECORD), expected=(ValueError,))
def _row(data: bytes) -> None:
    found = value(data)
    if isinstance(found, list) and len(found) == len(FIELDS):
        from_columns(ScopePath("a"), "message", found)


@target(
    "Redis values",
    b"1 2 3 " + json.dumps(["a", "message", 1, 1, 1, 1, 0, 0]).encode(),
    expected=(ValueError, IndexError),
)
def _redis(data: bytes) -> None:
    redis_codec.decode_state(data)


@target("Redis slots", json.dumps([1, 2, 3, 4, {}, None]), expected=(ValueError, IndexError))
def _slots(data: bytes) -> None:
    redis_codec.decode_slot("k", data)


@target("DynamoDB items", {"record": {"S": encode_record(RECORD).decode()}, "seq": {"N": "1"}, "body": {"S": "x.1"}},
        {"stream": {"S": json.dumps(["a", "message", 1, 1, 1, 1, 0, 0])}, "derived:use": {"L": []}},
        expected=(ValueError,))  # fmt: skip
def _dynamodb(data: bytes) -> None:
    item = value(data)
    if isinstance(item, dict) and all(isinstance(one, dict) and len(one) == 1 for one in item.values()):
        each(
            lambda: dynamodb.decode_item(item, ("a", "message"), {}, ("use",)),
            lambda: dynamodb.decode_state(item),
            expected=(ValueError,),
        )


@target("S3 objects", s3.write_object(s3.Manifest()), s3.write_object(s3.SegmentRecords([])))
def _s3(data: bytes) -> None:
    each(lambda: s3.read_object(s3.Manifest, data, "it"), lambda: s3.read_object(s3.SegmentRecords, data, "it"))


_EVENT = agentcore.encode_event(agentcore.SessionEvent(agentcore.FORMAT, "acme", 1), [RECORD], [RECORD])


@target("event of AgentCore", _EVENT[-1]["blob"])
def _agentcore_event(data: bytes) -> None:
    agentcore.decode_event({"eventId": "e", "sessionId": "s", "payload": [*_EVENT[:-1], {"blob": text(data)}]}, "url")


@target("memory of AgentCore", agentcore.encode_memory(RECORD)["metadata"], expected=(ValueError,))
def _agentcore_memory(data: bytes) -> None:
    metadata = value(data)
    if isinstance(metadata, dict):
        agentcore.decode_memory({"memoryRecordId": "m", "metadata": metadata, "content": {"text": "a"}}, "url")


@target("page of SQLite", b"\x0d\0\0\0\1\x0f\xf0\0\x0f\xf0" + bytes(4070) + b"\x0e\1\6\1\1\x13\1\1\7Hello" + bytes(8),
        expected=(ValueError, IndexError))  # fmt: skip
def _page(data: bytes) -> None:
    def read(path: Path) -> None:
        pages = PageFile(path)
        try:
            pages.free_pages()
            for number in range(1, pages.count + 1):
                list(pages.rows(number))
        finally:
            pages.close()

    each(lambda: in_file(data, read), lambda: values_of(data), expected=(ValueError, IndexError))


@cache
def sealed() -> tuple[DataKeys, Record]:
    """Return keys, and a record that they have encrypted."""
    keys = DataKeys.of_secret(KEY)
    return keys, seal_record(keys, RECORD)


@target("envelope", base64.b64decode(sealed()[1].data))
def _envelope(data: bytes) -> None:
    keys, record = sealed()
    head = base64.b64encode(data).decode()
    changed = msgspec.structs.replace
    each(
        lambda: open_record(keys, changed(record, data=text(data))),
        lambda: open_record(keys, changed(record, data=head)),
        lambda: open_record(keys, changed(record, meta={**record.meta, **dict.fromkeys(record.meta, head)})),
    )


@target("index entry", index_entry.pack(RECORD, None))
def _entry(data: bytes) -> None:
    index_entry.unpack_use(data)
    if index_entry.intact(data):
        index_entry.unpack(data)


# ------------------------------------------------------------ words


@target("text analysis", "Where did Ana's sister go on 3 May 2023? in-depth U.S. 1,000.50 naïve 東京", "x" * 500)
def _words(data: bytes) -> None:
    given = data.decode(errors="replace")
    terms(given)
    similarity(given[:200], given[200:400])
    analyze_question(given, {"ana": 1})
    content_words(given)
    index_entry.chunks(" ".join(words(given)))


@cache
def redactor() -> Any:
    return redactor_of(Redaction())


@target(
    "redaction", "Mail ana@x.org, +49 30 1234567, 4111 1111 1111 1111, DE89370400440532013000, ::1, sk-abc0123456789"
)
def _redaction(data: bytes) -> None:
    redactor().text(data.decode(errors="replace"))
