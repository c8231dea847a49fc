"""Attacks on the database of an encrypted store: what is noticed, and what the documentation says is not."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import mnemic
from layered import KEY
from mnemic.backends.sql.schema import COLUMNS, RECORDS
from mnemic.doctor import examine
from mnemic.errors import DecryptionError
from servers.stores import empty_store

DOCUMENT = Path(__file__).parent.parent / "docs" / "encryption.md"

Execute = Callable[..., list[tuple[Any, ...]]]


@contextmanager
def database(url: str) -> Iterator[Execute]:
    """Provide what runs SQL on the database of a store, with ? for parameters."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0])) as connection:
            yield lambda sql, *values: connection.execute(sql, values).fetchall()
            connection.commit()
    else:
        with psycopg.connect(url) as server:

            def execute(sql: str, *values: Any) -> list[tuple[Any, ...]]:
                cursor = server.execute(sql.replace("?", "%s"), values)
                return cursor.fetchall() if cursor.description else []

            yield execute


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store in SQLite, or in the database that a test names: what notices the attacks is above both."""
    with empty_store(getattr(request, "param", "sqlite"), tmp_path) as found:
        with opened(found) as memory:
            facts = memory.scope("acme", "alice").facts
            facts.add("Alice", "likes", "tea")
            facts.add("Bob", "likes", "milk")
            chat = memory.scope("acme", "alice").session("monday")
            chat.add("user", "first")
            chat.add("user", "second")
            memory.scope("acme", "alice").notes.write("plan", "approved: no", description="old")
        yield found


def opened(url: str) -> mnemic.Memory:
    return mnemic.open(url, encryption_key=KEY)


def stream(execute: Execute, kind: str) -> int:
    return int(execute("SELECT id FROM mnemic_streams WHERE kind = ?", kind)[0][0])


def swap(execute: Execute, table: str, column: str, id: int, one: Any, other: Any) -> None:
    for old, new in ((one, -1), (other, one), (-1, other)):
        execute(f"UPDATE {table} SET {column} = ? WHERE stream_id = ? AND {column} = ?", new, id, old)


# ------------------------------------------------------------ noticed


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_swapped_rows_of_the_label_index(url: str) -> None:
    with database(url) as execute:
        swap(execute, "mnemic_labels", "seq", stream(execute, "fact"), 1, 2)
    with opened(url) as memory, pytest.raises(DecryptionError, match="the label index was modified"):
        memory.scope("acme", "alice").facts.ask("Alice")


def test_swapped_labels_of_two_records(url: str) -> None:
    with database(url) as execute:
        id = stream(execute, "fact")
        (one,), (other,) = execute("SELECT labels FROM mnemic_records WHERE stream_id = ? ORDER BY seq", id)
        execute("UPDATE mnemic_records SET labels = ? WHERE stream_id = ? AND seq = 1", other, id)
        execute("UPDATE mnemic_records SET labels = ? WHERE stream_id = ? AND seq = 2", one, id)
    with opened(url) as memory, pytest.raises(DecryptionError, match="modified in the store"):
        memory.scope("acme", "alice").facts.ask()


def test_swapped_keys_of_two_records(url: str) -> None:
    with database(url) as execute:
        id = stream(execute, "fact")
        (one,), (other,) = execute("SELECT key FROM mnemic_records WHERE stream_id = ? ORDER BY seq", id)
        for old, new in ((one, "x"), (other, one), ("x", other)):
            execute("UPDATE mnemic_records SET key = ? WHERE stream_id = ? AND key = ?", new, id, old)
    with opened(url) as memory, pytest.raises(DecryptionError, match="modified in the store"):
        memory.scope("acme", "alice").facts.ask()


def test_the_changed_time_of_a_message(url: str) -> None:
    with database(url) as execute:
        execute(
            "UPDATE mnemic_records SET created = created - 86400000000 WHERE stream_id = ?", stream(execute, "message")
        )
    with opened(url) as memory, pytest.raises(DecryptionError, match="another time of creation"):
        memory.scope("acme", "alice").session("monday").messages()


@pytest.mark.parametrize("part", ["data", "meta"])
def test_a_part_of_an_older_version(url: str, part: str) -> None:
    with database(url) as execute:
        id = stream(execute, "note")
        ((old,),) = execute(f"SELECT {part} FROM mnemic_records WHERE stream_id = ?", id)
    with opened(url) as memory:
        memory.scope("acme", "alice").notes.write("plan", "approved: yes", description="new")
    with database(url) as execute:
        execute(f"UPDATE mnemic_records SET {part} = ? WHERE stream_id = ?", old, id)
    with opened(url) as memory, pytest.raises(DecryptionError, match="modified in the store"):
        memory.scope("acme", "alice").notes.read("plan")


def test_an_older_vector_beside_a_newer_text_is_computed_again(url: str) -> None:
    with opened(url) as memory:
        alice = memory.scope("acme", "alice")
        alice.remember("The teapot is velvet", id="m")
        assert alice.recall("velvet teapot")
    with database(url) as execute:
        id = stream(execute, "memory")
        older = execute("SELECT name, value FROM mnemic_derived WHERE stream_id = ?", id)
    with opened(url) as memory:
        memory.scope("acme", "alice").memories.update("m", text="The kettle is copper")
        (before,) = memory.scope("acme", "alice").recall("copper kettle", kinds=("memory",), uses=False)
    with database(url) as execute:
        for name, value in older:
            execute("UPDATE mnemic_derived SET value = ? WHERE stream_id = ? AND name = ?", value, id, name)
    with opened(url) as memory:
        (hit,) = memory.scope("acme", "alice").recall("copper kettle", kinds=("memory",), uses=False)
        assert hit.text == "The kettle is copper"
        assert hit.score == pytest.approx(before.score, abs=1e-3)


def test_the_emptied_record_of_the_encryption(url: str) -> None:
    for change in ("'{}'", "NULL", """'{"format": 2, "derived": []}'"""):
        with database(url) as execute:
            id = stream(execute, "encryption")
            ((stored,),) = execute("SELECT data FROM mnemic_records WHERE stream_id = ? AND key = 'current'", id)
            execute(f"UPDATE mnemic_records SET data = {change} WHERE stream_id = ? AND key = 'current'", id)
        with pytest.raises(DecryptionError):
            opened(url)
        with database(url) as execute:
            execute("UPDATE mnemic_records SET data = ? WHERE stream_id = ? AND key = 'current'", stored, id)


def test_swapped_key_records(url: str) -> None:
    with opened(url) as memory:
        memory.scope("acme", "bob").remember("Bob likes milk")
    with database(url) as execute:
        id = stream(execute, "encryption")
        keys = execute("SELECT key, data FROM mnemic_records WHERE stream_id = ? AND key <> 'current'", id)
        for (key, _), (_, data) in zip(keys, keys[1:] + keys[:1], strict=True):
            execute("UPDATE mnemic_records SET data = ? WHERE stream_id = ? AND key = ?", data, id, key)
    with pytest.raises(DecryptionError):
        with opened(url) as memory:
            memory.scope("acme", "alice").facts.ask()


@pytest.mark.parametrize("embedder", [None, "auto"])
def test_the_lost_records_of_the_encryption(tmp_path: Path, embedder: Any) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with mnemic.open(url, encryption_key=KEY, embedder=embedder) as memory:
        memory.scope("acme", "alice").notes.write("plan", "tea")
        memory.scope("acme", "alice").remember("Alice likes tea")
    with database(url) as execute:
        id = stream(execute, "encryption")
        execute("DELETE FROM mnemic_records WHERE stream_id = ?", id)
        execute("DELETE FROM mnemic_streams WHERE id = ?", id)
    for key in (None, KEY):
        with pytest.raises(DecryptionError, match="is encrypted, but the record of its encryption is lost"):
            mnemic.open(url, encryption_key=key, embedder=embedder)
    examined = asyncio.run(examine(url))
    assert [problem.code for problem in examined.problems if problem.severity == "error"] == ["lost_keys"]


# ------------------------------------------------------------ not noticed, as the documentation says


def test_the_documentation_names_what_is_not_noticed(url: str) -> None:
    """Each attack here succeeds; if one no longer does, or a new one is found, the list is changed."""
    listed = re.search(r"Not noticed(.*?)\n\n", DOCUMENT.read_text(), re.DOTALL)
    assert listed is not None
    for words in ("removed", "older version", "version number", "order", "last change"):
        assert words in listed[1], words
    with database(url) as execute:
        id = stream(execute, "note")
        columns = [name for name in COLUMNS[RECORDS] if name not in ("stream_id", "seq", "key")]
        (row,) = execute(f"SELECT {', '.join(columns)} FROM mnemic_records WHERE stream_id = ?", id)
    with opened(url) as memory:
        memory.scope("acme", "alice").notes.write("plan", "approved: yes", description="new")
    with database(url) as execute:
        changes = ", ".join(f"{name} = ?" for name in columns)
        execute(f"UPDATE mnemic_records SET {changes} WHERE stream_id = ?", *row, id)
        swap(execute, "mnemic_records", "seq", stream(execute, "message"), 1, 2)
        execute("DELETE FROM mnemic_records WHERE stream_id = ? AND seq = 2", stream(execute, "fact"))
    with opened(url) as memory:
        alice = memory.scope("acme", "alice")
        assert alice.notes.read("plan") == "approved: no"
        assert [message.text for message in alice.session("monday").messages()] == ["second", "first"]
        assert [fact.subject for fact in alice.facts.ask()] == ["Alice"]
