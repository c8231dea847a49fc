"""Every parser of Mnemic, as a function of bytes that a hostile file, caller or store may hold, with valid examples.

A target raises one of the errors that its callers expect, or nothing. Hypothesis calls them in test_fuzz.py, atheris
in tools/fuzz.py.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import jwt
import msgspec
from starlette.testclient import TestClient

import mnemic
from mnemic import ScopePath
from mnemic.backends.agentcore import codec as agentcore
from mnemic.backends.dynamodb import codec as dynamodb
from mnemic.backends.postgres.opening import Options
from mnemic.backends.redis import codec as redis_codec
from mnemic.backends.redis.opening import connect
from mnemic.backends.s3 import codec as s3
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.backends.sqlite.pages import PageFile, values_of
from mnemic.cli.options import DURATION, SCOPE, STORE, TIME
from mnemic.clients.hooks import Event, Transcript
from mnemic.clients.json_text import JsonText
from mnemic.clients.toml_text import parse, remove_table, set_table
from mnemic.errors import MnemicError
from mnemic.formats import from_anthropic, from_openai, to_anthropic, to_openai
from mnemic.images import image_info, split_data_url
from mnemic.layers.cipher import DataKeys, open_record, seal_record
from mnemic.mcp import stdio
from mnemic.mcp.graph_file import GraphFile
from mnemic.recall import index_entry
from mnemic.recall.question import analyze_question
from mnemic.recall.text_analysis import content_words, similarity, terms, words
from mnemic.recallset import read_recall_set
from mnemic.records import Record
from mnemic.redaction.config import Redaction, redactor_of
from mnemic.server.app import build_app
from mnemic.server.keys import parse_key
from mnemic.server.mem0.filters import Filters
from mnemic.server.settings import Settings, load
from mnemic.server.tokens import TokenError, TokenVerifier, check_template, fill_template, parse_jwks
from mnemic.store.codec import FIELDS, decode_record, decode_record_state, encode_record, from_columns, to_columns
from mnemic.store.matching import from_cursor, to_cursor
from mnemic.store.registry import StoreURL, masked
from mnemic.transfer.formats import NAMES

KEY = bytes(range(32))
RECORD = Record(
    ScopePath("acme"), "message", "k", 1, 2, text="Hello", title="A", data={"role": "user", "n": [1, 2.5]},
    meta={"a": 1}, labels={"b": "c"}, importance=0.5, created=datetime(2024, 1, 1, tzinfo=UTC),
    updated=datetime(2024, 1, 2, tzinfo=UTC),
)  # fmt: skip
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
OPENAI = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Hi"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
]
ANTHROPIC = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "tool_result", "tool_use_id": "c", "content": "4"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
]  # fmt: skip


class Target(NamedTuple):
    """A parser: the function, valid input, and the errors besides ours that its callers expect."""

    run: Callable[[bytes], object]
    examples: list[bytes]
    expected: tuple[type[Exception], ...] = ()

    def __call__(self, data: bytes) -> None:
        """Run it; raises what is neither an error of ours nor expected."""
        try:
            self.run(data)
        except (MnemicError, *self.expected):
            return


TARGETS: dict[str, Target] = {}


def target(name: str, *examples: object, expected: tuple[type[Exception], ...] = ()) -> Callable[[Any], Any]:
    """Add a function of bytes, or of text, with examples that are written as JSON unless they are bytes or text."""

    def add(run: Callable[..., object]) -> Callable[..., object]:
        TARGETS[name] = Target(run, [_bytes(example) for example in examples], expected)
        return run

    return add


def _bytes(example: object) -> bytes:
    if isinstance(example, bytes):
        return example
    return (example if isinstance(example, str) else json.dumps(example)).encode()


def text(data: bytes) -> str:
    """Return bytes as text, in which those that are not UTF-8 are lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def value(data: bytes) -> Any:
    """Return the JSON value of bytes; raises ValueError, as callers do before they call a target."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError from None


def each(*runs: Callable[[], object]) -> None:
    """Run all functions; raises the error of the last one if none succeeds, and any unexpected one."""
    failed: Exception | None = None
    succeeded = False
    for run in runs:
        try:
            run()
            succeeded = True
        except (MnemicError, ValueError, IndexError, click.UsageError) as error:
            failed = error
    if failed is not None and not succeeded:
        raise failed


def in_file(data: bytes, read: Callable[[Path], object], name: str = "file") -> object:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return read(path)


# ------------------------------------------------------------ names and options


@target("store URL", "postgresql://u:p@h:5432/db?schema=a&pool_max=3", "redis+cluster://a:1,b:2?prefix=x",
        "sqlite:////tmp/a%20b.db?busy_timeout=3", "s3://bucket/prefix?region=x&endpoint=http://h:1")  # fmt: skip
def _url(data: bytes) -> None:
    masked(text(data))
    url = StoreURL.parse(text(data))
    str(url)
    reading = {"sqlite": SqliteFile, "postgresql": Options.of, "redis": connect, "redis+cluster": connect}
    reading.get(url.scheme, lambda url: url.take(region=str, endpoint=str, prefix=str))(url)


@target("scope path", "acme/alice/monday", "a", "")
def _scope(data: bytes) -> None:
    ScopePath(text(data)).segments  # noqa: B018


@target("cursor", to_cursor(("acme", "message", 5)))
def _cursor(data: bytes) -> None:
    from_cursor(text(data))


@target("command line", "2026-01-31T18:00+01:00", "12h", "acme/alice", "~/a.db", "http://h?on_failure=empty", "1.5w",
        expected=(click.UsageError,))  # fmt: skip
def _options(data: bytes) -> None:
    each(*(lambda kind=kind: kind.convert(text(data), None, None) for kind in (TIME, DURATION, SCOPE, STORE)))


@target("settings file", 'store = "memory://"\nport = 80\nrate_burst = 5\n', "host = '127.0.0.1'")
def _settings(data: bytes) -> None:
    in_file(data, lambda path: load({}, {}, str(path)))


# ------------------------------------------------------------ files of others


def _imported(format: str | None) -> Callable[[bytes], object]:
    def run(data: bytes) -> None:
        with mnemic.open("memory://", embedder=None) as memory:
            memory.import_from(io.BytesIO(data), format=format)

    return run


_CHATGPT = [{"id": "c", "title": "Tea", "create_time": 1.5, "mapping": {"a": {"id": "a", "parent": None, "children": ["b"], "message": None}, "b": {"id": "b", "parent": "a", "children": [], "message": {"id": "b", "author": {"role": "user"}, "create_time": 1.0, "content": {"content_type": "text", "parts": ["Hi"]}}}}}]  # noqa: E501  # fmt: skip
_CLAUDE = [{"uuid": "u", "name": "Tea", "chat_messages": [{"uuid": "m", "sender": "human", "text": "Hi", "created_at": "2024-01-01T00:00:00Z"}]}]  # noqa: E501  # fmt: skip
_CODE = {"type": "user", "sessionId": "s", "uuid": "u", "timestamp": "2024-01-01T00:00:00Z", "message": {"role": "user", "content": "Hi"}}  # noqa: E501  # fmt: skip
_FILES: dict[str, list[object]] = {
    "chatgpt": [_CHATGPT],
    "claude": [_CLAUDE],
    "claude-code": [_CODE],
    "langchain": [[{"type": "human", "data": {"content": "Hi"}}]],
    "letta": [
        {
            "agents": [
                {"id": "a", "name": "A", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
            ]
        }
    ],
    "mcp-memory": [{"type": "entity", "name": "Ana", "entityType": "person", "observations": ["tea"]}],
    "mem0": [{"results": [{"id": "1", "memory": "likes tea", "user_id": "ana", "created_at": "2024-01-01"}]}],
    "markdown": ["# Tea\n\n- one\n- two\n\n## User\nHi\n"],
    "openai": [{"messages": OPENAI}],
    "mnemic": [b""],
}


@cache
def export() -> bytes:
    """Return an export of a small memory."""
    with mnemic.open("memory://", embedder=None) as memory, tempfile.TemporaryDirectory() as folder:
        memory.scope("acme").session("s").add("user", "Hi")
        memory.scope("acme").facts.add("Ana", "likes", "tea")
        memory.export_to(f"{folder}/all.jsonl")
        return Path(f"{folder}/all.jsonl").read_bytes()


for _name in NAMES:
    target(f"import {_name}", *([export()] if _name == "mnemic" else _FILES[_name]))(_imported(_name))
target("import", *(_FILES[name][0] for name in ("chatgpt", "claude", "mem0", "openai")))(_imported(None))


@target("session file", {"format": "mnemic.session/1", "messages": [{"role": "user", "content": "Hi"}]})
def _session(data: bytes) -> None:
    with mnemic.open("memory://", embedder=None) as memory:
        in_file(data, lambda path: memory.scope("a").session("s").load(path))


@target(
    "recall set",
    {"id": "a", "turns": [{"id": "1", "session": "s", "speaker": "user", "text": "Hi"}], "questions": [{"question": "?", "turns": ["1"]}]},
)
def _recall_set(data: bytes) -> None:
    in_file(data, read_recall_set)


@target("graph file", {"type": "relation", "from": "a", "to": "b", "relationType": "knows"}, _FILES["mcp-memory"][0])
def _graph(data: bytes) -> None:
    in_file(data, lambda path: GraphFile(path)._load())


@target("transcript", _CODE, {"type": "response_item", "payload": {"type": "message", "role": "user", "content": []}})
def _transcript(data: bytes) -> None:
    def read(path: Path) -> None:
        with path.open("rb") as file:
            list(Transcript(file, "s", lambda _: None).read(0))

    in_file(data + b"\n", read, "a.jsonl")
    in_file(data, read, "a.json")


@target(
    "JSON settings of clients", {"mcpServers": {"a": {"command": "b", "args": ["c"]}}}, '{"a": 1, // b\n "c": [2,]}'
)
def _json_text(data: bytes) -> None:
    document = JsonText(text(data))
    document.set(("mcpServers", "mnemic"), {"command": "x"}).remove(("mcpServers", "mnemic"))


@target("TOML settings of clients", "[mcp_servers.a]\ncommand = 'b'\n[mcp_servers.mnemic]\nargs = []\n")
def _toml_text(data: bytes) -> None:
    parse(text(data))
    written = set_table(text(data), ("mcp_servers", "mnemic"), {"command": "x", "args": ["y"]})
    parse(remove_table(written, ("mcp_servers", "mnemic")))


# ------------------------------------------------------------ what callers send


@target("messages of OpenAI", OPENAI, expected=(ValueError,))
def _openai(data: bytes) -> None:
    to_anthropic(from_openai(value(data)))


@target("messages of Anthropic", ANTHROPIC, expected=(ValueError,))
def _anthropic(data: bytes) -> None:
    to_openai(from_anthropic(value(data)))


@target(
    "images",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
    "https://x/y.png",
    "\xff\xd8\xff\xe0",
)
def _images(data: bytes) -> None:
    split_data_url(text(data))
    image_info(text(data))
    image_info(f"data:image/jpeg;base64,{base64.b64encode(data).decode()}")


@target("mem0 filters", {"AND": [{"user_id": "a"}, {"NOT": [{"metadata": {"k": {"gte": 1}}}]}]}, expected=(ValueError,))
def _filters(data: bytes) -> None:
    Filters(ScopePath(), value(data)).passes  # noqa: B018


@target("line of MCP", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "recall"}})
def _mcp(data: bytes) -> None:
    json.dumps(stdio._error(data.decode(errors="replace")))


@target("hook", {"session_id": "a", "cwd": "/tmp", "prompt": "Hi"}, expected=(ValueError,))
def _hook(data: bytes) -> None:
    given = value(data)
    if isinstance(given, dict):
        Event.of(given)


@cache
def client() -> TestClient:
    """Return a client of a server that needs no key, without a network."""

    async def opened() -> Any:
        return await mnemic.open_async("memory://", embedder=None)

    app = build_app(asyncio.run(opened()), Settings())
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True, client=("127.0.0.1", 1))


@target(
    "HTTP body", {"query": "tea", "limit": 3}, {"role": "user", "content": "Hi"}, {"refs": []}, {"ops": [{"op": "put"}]}
)
def _http(data: bytes) -> None:
    for path in ("/api/v1/scopes/a/recall", "/api/v1/store/scan", "/api/v1/store/write", "/v2/memories/"):
        answer = client().post(path, content=data, headers={"Content-Type": "application/json"})
        assert answer.status_code < 500, answer.text
    answer = client().get(
        "/api/v1/scopes/a/memories", params={"cursor": text(data[:2000]).encode("utf-8", "replace").decode()}
    )
    assert answer.status_code < 500, answer.text


@cache
def verifier() -> tuple[TokenVerifier, bytes]:
    """Return a verifier, and a token that it accepts."""
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key())), "kid": "1", "alg": "ES256"}
    file = Path(tempfile.mkdtemp()) / "jwks.json"
    file.write_text(json.dumps({"keys": [public]}))
    claims = {"iss": "https://i", "aud": "m", "exp": 9_999_999_999, "sub": "a", "mnemic_rights": ["read"]}
    token = jwt.encode(claims, private, "ES256", {"kid": "1"})
    settings = Settings(jwt_jwks=str(file), jwt_issuer="https://i", jwt_audience="m", jwt_scope="acme/{sub}")
    return TokenVerifier(settings), token.encode()


@target("token", verifier()[1], expected=(TokenError,))
def _token(data: bytes) -> None:
    asyncio.run(verifier()[0].verify(data.decode("latin-1")))


@target(
    "public keys", {"keys": [{"kty": "EC", "kid": "1", "crv": "P-256", "x": "a", "y": "b"}]}, expected=(ValueError,)
)
def _jwks(data: bytes) -> None:
    parse_jwks(data)


@target("API key and scope of a token", "mnemic_abc_def", "acme/{sub}/{org:path}")
def _names(data: bytes) -> None:
    each(
        lambda: parse_key(text(data)),
        lambda: check_template(text(data)),
        lambda: fill_template(text(data), {"sub": text(data), "org": "a/b"}),
    )


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
        {"stream": {"S": json.dumps(["a", "message", 1, 1, 1, 1, 0, 0])}, "derived:use": {"L": [{"N": "1"}, {"B": "x"}]}}, expected=(ValueError,))  # fmt: skip
def _dynamodb(data: bytes) -> None:
    item = value(data)
    if isinstance(item, dict) and all(isinstance(one, dict) and len(one) == 1 for one in item.values()):
        each(lambda: dynamodb.decode_item(item, ("a", "message"), {}, ("use",)), lambda: dynamodb.decode_state(item))


@target("S3 objects", s3.write_object(s3.Manifest()), s3.write_object(s3.SegmentRecords([])))
def _s3(data: bytes) -> None:
    each(lambda: s3.read_object(s3.Manifest, data, "it"), lambda: s3.read_object(s3.SegmentRecords, data, "it"))


@target("AgentCore", agentcore.encode_memory(RECORD) | {"memoryRecordId": "m"}, expected=(ValueError,))
def _agentcore(data: bytes) -> None:
    event = {"eventId": "e", "sessionId": "s", "payload": [{"blob": f'{{"mnemic":{text(data)}'}]}
    item = value(data)
    metadata = item.get("metadata") if isinstance(item, dict) else None
    memory = {"memoryRecordId": "m", "metadata": metadata, "content": {"text": "a"}}
    each(
        lambda: agentcore.decode_event(event, "url"),
        lambda: agentcore.decode_memory(memory, "url") if isinstance(metadata, dict) else None,
    )


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

    each(lambda: in_file(data, read), lambda: values_of(data))


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
