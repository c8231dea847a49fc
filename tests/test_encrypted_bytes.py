"""No word of the content is in the bytes of any store, file or connection of an encrypted memory, by any way in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
import zstandard

import mnemic
from faulty_proxy import FaultyProxy, proxy_for
from layered import KEY
from mnemic.messages import ToolCall
from mnemic.store.protocol import Capability
from servers.stores import STORES, empty_store

ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""How compressed data begins."""

REMOTE = ["postgresql", "redis8", "valkey", "dynamodb", "s3", "http", "agentcore"]

WORDS = [
    "teapot", "velvet", "hatter", "wonderland", "confidential", "allergic", "dormouse", "chessboard", "flamingo",
    "croquet", "walrus", "carpenter", "jabber", "vorpal", "tulgey", "unguessable",
]  # fmt: skip


def fill(memory: mnemic.Memory, *, everything: bool = True) -> None:
    """Store a word of WORDS in every place that takes content."""
    alice = memory.scope("acme", "alice")
    chat = alice.session("monday", max_messages=4)
    chat.set_system("You serve the Hatter")
    call = ToolCall("call", "find_dormouse", '{"where": "teapot"}')
    chat.add(mnemic.Message("assistant", "Looking", tool_calls=[call], metadata={"mood": "velvet"}))
    chat.add(mnemic.Message("tool", "It is in Wonderland", tool_call_id="call", name="find_dormouse"))
    for n in range(5):
        chat.add("user", f"Message {n} about the chessboard", once=f"once-{n}")
    alice.remember("Alice is allergic to velvet", id="unguessable", metadata={"level": "confidential"})
    if everything:
        summed = alice.session("tuesday", max_messages=2, overflow=mnemic.Summarize(lambda *_: "A flamingo was seen"))
        summed.add_many([mnemic.Message("user", text) for text in ("one", "two", "three")])
        assert summed.summary() == "A flamingo was seen"
        alice.remember("The dormouse sleeps", source="croquet")
        alice.notes.write("walrus", {"place": "Wonderland"}, description="of the carpenter")
        alice.facts.add("Jabber", "fears", "the vorpal sword", source="tulgey", metadata={"x": "velvet"})
        alice.facts.add("Jabber", "lives in", "the tulgey wood", single=True)
    assert alice.recall("allergic velvet")
    alice.used(alice.recall("velvet")[0])


def found_in(content: bytes) -> list[str]:
    """Return the words of WORDS that bytes contain, in any case, also compressed as S3's objects are."""
    texts, at = [content, unquote_to_bytes(content)], content.find(ZSTANDARD)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            texts.append(zstandard.ZstdDecompressor().decompressobj().decompress(content[at:]))
        at = content.find(ZSTANDARD, at + 1)
    joined = b"\0".join(texts).lower()
    return [word for word in WORDS if word.encode() in joined]


class Recorded(socket.socket):
    """A connection that keeps what is sent."""

    sent: list[bytes]

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.sent.append(bytes(data))
        super().sendall(data, flags)


class Recorder(FaultyProxy):
    """A proxy that keeps all that clients send."""

    def __init__(self, host: str, port: int) -> None:
        self.sent: list[bytes] = []
        super().__init__(host, port)

    def _exchange(self, client: socket.socket, server: socket.socket) -> None:
        recorded = Recorded(fileno=server.detach())
        recorded.sent = self.sent
        with recorded:
            super()._exchange(client, recorded)


@contextmanager
def recorded(url: str) -> Iterator[tuple[Recorder, str]]:
    with proxy_for(url) as plain:
        host, port = plain._target
    proxy = Recorder(host, port)
    with proxy:
        yield proxy, proxy.url(url)


@pytest.mark.parametrize("name", REMOTE)
def test_a_server_is_sent_no_word_of_the_content(name: str, tmp_path: Path) -> None:
    everything = Capability.RECORDS in STORES[name].capabilities
    for key in (None, KEY):
        folder = tmp_path / str(key is None)
        folder.mkdir()
        with empty_store(name, folder) as direct, recorded(direct) as (proxy, url):
            with mnemic.open(url, encryption_key=key) as memory:
                fill(memory, everything=everything)
            words = found_in(b"".join(proxy.sent))
            if key is None:
                # The recorder is not blind.
                assert {"teapot", "velvet", "hatter", "wonderland", "chessboard"} <= set(words)
            else:
                assert words == []


def test_no_file_of_an_encrypted_memory_has_a_word_of_the_content(tmp_path: Path) -> None:
    for name, key in (("plain", None), ("sealed", KEY)):
        folder = tmp_path / name
        folder.mkdir()
        encryption = None if key is None else mnemic.Encryption(key, key_store=f"sqlite:///{folder}/keys.db")
        memory = mnemic.open(
            f"sqlite:///{folder}/memory.db", audit=f"sqlite:///{folder}/trail.db", encryption_key=encryption
        )
        with memory, memory.acting(actor="the-walrus", session="of-the-carpenter"):
            fill(memory)
            alice = memory.scope("acme", "alice")
            alice.session("monday").save(folder / "saved.json")
            alice.forget(metadata={"level": "confidential"}, archive=f"sqlite:///{folder}/archive.db")
            # While it is open, the write-ahead log is there, too.
            files = {path.name: path.read_bytes() for path in folder.iterdir()}
        files |= {path.name: path.read_bytes() for path in folder.iterdir()} | {"wal": files["memory.db-wal"]}
        found = {file: found_in(content) for file, content in files.items()}
        if key is None:
            assert set(WORDS) <= {word for words in found.values() for word in words}
            assert all(found[file] for file in ("memory.db", "wal", "trail.db", "archive.db", "saved.json"))
        else:
            assert {"memory.db", "keys.db", "trail.db", "archive.db", "saved.json", "wal"} <= found.keys()
            assert {word for words in found.values() for word in words} == set()
