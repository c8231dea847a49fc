"""The database for migrations: a connection of its own, and an advisory lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg

from ..sql.migrate import Engine
from ..sql.partitions import PARTITIONS
from ..sql.schema import VERSION_TABLE
from .address import Address
from .errors import explain

Result = TypeVar("Result")

LOCK = 0x6D6E656D6963
"""Advisory lock of migrations: "mnemic" as a number."""


class Connection:
    """A connection borrowed by a migration."""

    def __init__(self, raw: psycopg.Connection) -> None:
        self.raw = raw


class PostgresDatabase:
    """Opens a connection for each migration."""

    def __init__(self, address: Address) -> None:
        self.url: str = address.shown
        self._address = address
        begin = [f"SELECT pg_advisory_xact_lock({LOCK})"]
        if address.schema is not None:
            begin.append(_make_schema(address.schema))
        self.engine: Engine = Engine(
            "postgresql+psycopg://",
            f"SELECT 1 WHERE to_regclass('{VERSION_TABLE}') IS NOT NULL",
            begin,
            {PARTITIONS: address.partitions},
        )

    def use(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` with a borrowed connection; maps driver errors."""
        try:
            with psycopg.connect(**self._address.parameters) as raw:
                return work(Connection(raw))
        except psycopg.Error as error:
            raise explain(error, self.url) from error


def _make_schema(name: str) -> str:
    """Return SQL that creates a missing schema, and needs no privilege if it exists."""
    return f'DO $$ BEGIN IF to_regnamespace(\'"{name}"\') IS NULL THEN CREATE SCHEMA "{name}"; END IF; END $$'
