"""Targets: names, options, files of other tools, and what callers send."""

from __future__ import annotations

import asyncio
import atexit
import base64
import io
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import jwt
import msgspec
from starlette.testclient import TestClient

import mnemic
from fuzz_stored import RECORD
from fuzzing import each, in_file, target, text, value
from mnemic import ScopePath
from mnemic.backends.http import problems
from mnemic.backends.postgres.opening import PostgresOptions
from mnemic.backends.redis.opening import connect
from mnemic.backends.sqlite.client import SqliteFile
from mnemic.cli.options import _metadata
from mnemic.cli.param_types import DURATION, SCOPE, STORE, TIME
from mnemic.clients.config_edit import JsonText, parse_toml, remove_table, set_table
from mnemic.clients.hooks import HookInput, Transcript
from mnemic.features.certificate import ErasureCertificate, verify_certificate
from mnemic.formats import from_anthropic, from_openai, to_anthropic, to_openai
from mnemic.images import image_info, split_data_url
from mnemic.mcp import stdio
from mnemic.mcp.graph_file import GraphFile
from mnemic.mem0.filters import Filters
from mnemic.recallset import read_recall_set
from mnemic.server.api_keys import parse_key
from mnemic.server.app import build_app
from mnemic.server.jwt_tokens import TokenError, TokenVerifier, check_template, fill_template, parse_jwks
from mnemic.server.settings import Settings, load
from mnemic.signing import SigningKey
from mnemic.store import newest
from mnemic.store.matching import from_cursor, to_cursor
from mnemic.store.query import Condition, Put, Scan, Write
from mnemic.store.registry import StoreURL, masked
from mnemic.store.wire import to_wire
from mnemic.transfer.formats import NAMES

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
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "4"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
]  # fmt: skip


# ------------------------------------------------------------ names and options


@target("store URL", "postgresql://u:p@h:5432/db?schema=a&pool_max=3", "redis+cluster://a:1,b:2?prefix=x",
        "sqlite:////tmp/a%20b.db?busy_timeout=3", "postgresql://h/%64b",
        "s3://bucket/prefix?region=x&endpoint=http://h:1")  # fmt: skip
def _url(data: bytes) -> None:
    masked(text(data))
    url = StoreURL.parse(text(data))
    str(url)
    match url.scheme:
        case "sqlite":
            SqliteFile(url)
        case "postgresql":
            PostgresOptions.of(url)
        case "redis" | "redis+cluster":
            connect(url)
        case _:
            url.take(region=str, endpoint=str, prefix=str)


@target("scope path", "acme/alice/monday", "a", "")
def _scope(data: bytes) -> None:
    ScopePath(text(data)).segments  # noqa: B018


@target("cursor", to_cursor(("acme", "message", 5)))
def _cursor(data: bytes) -> None:
    each(lambda: from_cursor(text(data)), lambda: newest._place(text(data)))


@target("command line", "2026-01-31T18:00+01:00", "12h", "acme/alice", "~/a.db", "http://h?on_failure=empty", "1.5w",
        expected=(click.UsageError,))  # fmt: skip
def _options(data: bytes) -> None:
    runs = (lambda kind=kind: kind.convert(text(data), None, None) for kind in (TIME, DURATION, SCOPE, STORE))
    each(*runs, expected=(click.UsageError,))


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
    "fence": [
        {
            "Item": {
                "PK": {"S": "a"},
                "SK": {"S": "None#s#2024-01-01T00:00:00+00:00"},
                "Role": {"S": "user"},
                "Message": {"M": {"type": {"S": "text"}, "text": {"S": "Hi"}}},
            }
        }
    ],
    "marsys": [{"memory_type": "managed_conversation", "messages": OPENAI, "timestamp": 1.5}],
    "opper": [{"key": "diet", "value": "tea"}],
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


_TURN = {"id": "1", "session": "s", "speaker": "user", "text": "Hi"}


@target("recall set", {"id": "a", "turns": [_TURN], "questions": [{"id": "q", "question": "?", "evidence": ["1"]}]})
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
    parse_toml(text(data))
    written = set_table(text(data), ("mcp_servers", "mnemic"), {"command": "x", "args": ["y"]})
    parse_toml(remove_table(written, ("mcp_servers", "mnemic")))


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
        HookInput.of(given)


@cache
def client() -> TestClient:
    """Return a client of a server that needs no key, without a network."""

    async def opened() -> Any:
        return await mnemic.open_async("memory://", embedder=None)

    app = build_app(asyncio.run(opened()), Settings())
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True, client=("127.0.0.1", 1))


def _answered(answer: Any) -> None:
    """Raise ValueError for a request that was refused; any other failure is the server's."""
    assert answer.status_code < 500, answer.text
    if not answer.is_success:
        raise ValueError(answer.text)


_LABELED = Condition("labels.b", "eq", "c")
_BODIES: dict[str, object] = {
    "/api/v1/recall": {"query": "tea", "k": 3, "kinds": ["memory"]},
    "/api/v1/store/scan": msgspec.json.encode(to_wire(Scan(scope=RECORD.scope, where=(_LABELED,), limit=2))),
    "/api/v1/store/write": msgspec.json.encode(Write((Put(RECORD),))),
    "/v2/memories/": {"filters": {"AND": [{"user_id": "a"}]}},
}


def _posted(path: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        _answered(client().post(path, content=data, headers={"Content-Type": "application/json"}))

    return run


for _path, _body in _BODIES.items():
    target(f"HTTP body of {_path}", _body, expected=(ValueError,))(_posted(_path))


@cache
def http_cursor() -> str:
    """Return the cursor of a page of the server."""
    for word in ("tea", "milk"):
        client().post("/api/v1/memories", json={"text": word}, params={"scope": "a"}).raise_for_status()
    return str(client().get("/api/v1/memories", params={"scope": "a", "limit": 1}).json()["cursor"])


@target("HTTP cursor", http_cursor(), expected=(ValueError,))
def _http_cursor(data: bytes) -> None:
    cursor = text(data[:2000]).encode("utf-8", "replace").decode()
    _answered(client().get("/api/v1/memories", params={"scope": "a", "cursor": cursor}))


@cache
def verifier() -> tuple[TokenVerifier, bytes]:
    """Return a verifier, and a token that it accepts."""
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key())), "kid": "1", "alg": "ES256"}
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "jwks.json"
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


@cache
def certificate() -> bytes:
    """Return a signed certificate."""
    with mnemic.open("memory://", embedder=None) as memory:
        memory.scope("acme").remember("tea")
        return json.dumps(memory.scope("acme").erase().to_dict()).encode()


@target("certificate", certificate(), expected=(ValueError,))
def _certificate(data: bytes) -> None:
    in_file(data, ErasureCertificate.load)
    verify_certificate(value(data))


@target("signing key", bytes(32), b"A" * 43 + b"=", expected=(ValueError,))
def _signing_key(data: bytes) -> None:
    each(
        lambda: SigningKey(data),
        lambda: SigningKey(text(data)),
        lambda: in_file(data, SigningKey.from_file),
        expected=(ValueError,),
    )


@target(
    "answers of a server", {"type": "x#conflict", "title": "a", "detail": "b"}, {"records": []}, expected=(ValueError,)
)
def _answers(data: bytes) -> None:
    str(problems.error_of("http://h", 409, None, data))


@target("metadata option", "a=1", "a=[1,2]", expected=(click.UsageError,))
def _metadata_option(data: bytes) -> None:
    _metadata(click.Context(click.Command("x")), click.Option(["--metadata"]), (text(data),))
