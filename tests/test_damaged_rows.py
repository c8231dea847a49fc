"""Rows that were damaged where they lie: the error is one of ours, and names the record."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import mnemic
from mnemic.errors import StoreError, UnreadableStoreError


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("data", "{"),
        ("data", b"\xff\xfe\x00"),
        ("meta", "[1"),
        ("meta", "[1, 2]"),
        ("labels", '{"role": 5}'),
        ("labels", "\x00"),
        ("created", "yesterday"),
        ("created", 2**62),
        ("text", b"\xff\x00"),
        ("version", "x"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, column: str, value: object) -> None:
    file = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{file}") as memory:
        chat = memory.scope("acme").session("s")
        kept = chat.add("user", "hello", metadata={"a": 1})
        with sqlite3.connect(file) as raw:
            raw.execute(f"UPDATE mnemic_records SET {column} = ? WHERE key = ?", (value, kept.id))
        raw.close()
        with pytest.raises(UnreadableStoreError, match=kept.id):
            chat.messages()
        with pytest.raises(UnreadableStoreError, match=kept.id):
            chat.get(kept.id)
        chat.add("user", "others are not affected")
        assert [message.text for message in chat.messages(1)] == ["others are not affected"]


@pytest.mark.parametrize("column", ["text", "data", "labels"])
def test_a_row_that_is_not_utf8_is_named(tmp_path: Path, column: str) -> None:
    file = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{file}") as memory:
        chat = memory.scope("acme").session("s")
        kept = chat.add("user", "hello")
        with sqlite3.connect(file) as raw:
            raw.execute(f"UPDATE mnemic_records SET {column} = CAST(x'ff00fe' AS TEXT)")
        raw.close()
        for read in (lambda: chat.messages(), lambda: chat.get(kept.id), lambda: memory.scope("acme").recall("hello")):
            with pytest.raises(UnreadableStoreError, match=kept.id):
                read()
        other = memory.scope("acme").session("other")
        other.add("user", "others are not affected")
        assert [message.text for message in other.messages()] == ["others are not affected"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_bytes_of_the_file_change_only_our_errors_come_out(tmp_path: Path, seed: int) -> None:
    import random

    file = tmp_path / "a.db"
    with mnemic.open(f"sqlite:///{file}") as memory:
        chat = memory.scope("acme").session("s")
        for n in range(30):
            chat.add("user", f"message {n}", metadata={"n": n})
    rng = random.Random(seed)
    data = bytearray(file.read_bytes())
    for _ in range(200):
        data[rng.randrange(100, len(data))] = rng.randrange(256)
    file.write_bytes(data)
    try:
        with mnemic.open(f"sqlite:///{file}") as memory:
            chat = memory.scope("acme").session("s")
            chat.messages()
            chat.add("user", "more")
    except StoreError:
        return
