"""The hash chain of the audit log under attack: whatever is removed, changed, reordered or inserted is found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mnemic
from layered import KEY
from mnemic.layers.audit_verify import AuditVerification
from mnemic.records import AUDIT_KIND, CHAINS_KIND

OTHER = bytes(range(1, 33))


def fill(memory: mnemic.Memory) -> None:
    for name in ("alice", "bob"):
        with memory.acting(actor=f"{name}'s app"):
            for n in range(5):
                memory.scope("acme", name).notes.write(f"note {n}", n)


def found(verification: AuditVerification) -> list[tuple[str, int | None]]:
    return [(problem.scope.path, problem.number) for problem in verification.problems]


@contextmanager
def rows(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def stream_id(connection: sqlite3.Connection, scope: str, kind: str = AUDIT_KIND) -> int:
    (found,) = connection.execute(
        "SELECT id FROM mnemic_streams WHERE scope = ? AND kind = ?", (scope, kind)
    ).fetchone()
    return int(found)


@pytest.fixture(params=["same", "separate"])
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[..., mnemic.Memory]]:
    """The file of an audit log, and how its memory is opened."""
    data, trail = tmp_path / "data.db", tmp_path / "trail.db"
    audit: Any = True if request.param == "same" else f"sqlite:///{trail}"

    def opened(**options: Any) -> mnemic.Memory:
        return mnemic.open(f"sqlite:///{data}", audit=audit, signing_key=KEY, embedder=None, **options)

    with opened() as memory:
        fill(memory)
        assert memory.audit_verify().intact
    return (data if request.param == "same" else trail), opened


def change_field(connection: sqlite3.Connection, scope: str, number: int, change: Callable[[Any], object]) -> None:
    where = (stream_id(connection, scope), number)
    (text,) = connection.execute("SELECT data FROM mnemic_records WHERE stream_id = ? AND seq = ?", where).fetchone()
    data = json.loads(text)
    change(data)
    connection.execute("UPDATE mnemic_records SET data = ? WHERE stream_id = ? AND seq = ?", (json.dumps(data), *where))


def delete(connection: sqlite3.Connection, scope: str, numbers: str, kind: str = AUDIT_KIND) -> None:
    connection.execute(
        f"DELETE FROM mnemic_records WHERE stream_id = ? AND seq {numbers}", (stream_id(connection, scope, kind),)
    )


def delete_log(connection: sqlite3.Connection, scope: str, kind: str) -> None:
    delete(connection, scope, "> 0", kind)
    connection.execute("DELETE FROM mnemic_streams WHERE id = ?", (stream_id(connection, scope, kind),))


ATTACKS: dict[str, tuple[Callable[[sqlite3.Connection], object], list[tuple[str, int | None]]]] = {
    "remove one": (lambda db: delete(db, "acme/bob", "= 3"), [("acme/bob", 3)]),
    "remove the first": (lambda db: delete(db, "acme/bob", "= 1"), [("acme/bob", 1)]),
    "remove the last": (lambda db: delete(db, "acme/bob", "= 5"), [("acme/bob", 5)]),
    "remove several": (lambda db: delete(db, "acme/bob", "IN (2, 3)"), [("acme/bob", 2)]),
    "change a field": (
        lambda db: change_field(db, "acme/alice", 2, lambda data: data.update(operation="delete")),
        [("acme/alice", 2)],
    ),
    "change a name": (
        lambda db: change_field(db, "acme/alice", 2, lambda data: data.update(actor="mallory")),
        [("acme/alice", 2)],
    ),
    "add a field": (
        lambda db: change_field(db, "acme/alice", 2, lambda data: data.update(unsure=True)),
        [("acme/alice", 2)],
    ),
    "remove the names": (
        lambda db: change_field(db, "acme/alice", 4, lambda data: [data.pop(n) for n in ("key", "actor", "salt")]),
        [("acme/alice", 4)],
    ),
    "change a time": (
        lambda db: db.execute(
            "UPDATE mnemic_records SET created = created + 1 WHERE stream_id = ? AND seq = 2",
            (stream_id(db, "acme/alice"),),
        ),
        [("acme/alice", 2)],
    ),
    "reorder": (
        lambda db: db.executescript(
            "UPDATE mnemic_records SET seq = -seq WHERE stream_id = {0} AND seq IN (2, 3);"
            "UPDATE mnemic_records SET seq = 5 + seq WHERE stream_id = {0} AND seq < 0;".format(
                stream_id(db, "acme/alice")
            )
        ),
        [("acme/alice", 2), ("acme/alice", 2)],
    ),
    "insert": (
        lambda db: db.execute(
            "UPDATE mnemic_records SET stream_id = ?, seq = 6, key = '0000000006' WHERE stream_id = ? AND seq = 5",
            (stream_id(db, "acme/alice"), stream_id(db, "acme/bob")),
        ),
        [("acme/alice", 6), ("acme/alice", 6), ("acme/bob", 5)],
    ),
    "swap two logs": (
        lambda db: db.executescript(
            "UPDATE mnemic_streams SET scope = 'x' WHERE scope = 'acme/alice' AND kind = 'audit';"
            "UPDATE mnemic_streams SET scope = 'acme/alice' WHERE scope = 'acme/bob' AND kind = 'audit';"
            "UPDATE mnemic_streams SET scope = 'acme/bob' WHERE scope = 'x' AND kind = 'audit';"
        ),
        [(scope, n) for scope in ("acme/alice", "acme/bob") for n in (1, 2, 3, 4, 5, None)],
    ),
    "remove a whole log": (lambda db: delete_log(db, "acme/bob", AUDIT_KIND), [("acme/bob", 1)]),
    "remove the register": (lambda db: delete_log(db, "", CHAINS_KIND), [("acme/alice", None), ("acme/bob", None)]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_the_database_is_found(attack: str, attacked: tuple[Path, Callable[..., mnemic.Memory]]) -> None:
    path, opened = attacked
    change, expected = ATTACKS[attack]
    with rows(path) as connection:
        change(connection)
    with opened() as memory:
        assert found(memory.audit_verify()) == expected
