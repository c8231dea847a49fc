"""The database as migrations see it: a connection of their own, and a lock that only one of them holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg

from ..migrate import Engine
from ..partitions import PARTITIONS
from ..schema import VERSION_TABLE
from .address import Address
from .errors import explain

Result = TypeVar("Result")

LOCK = 0x6D6E656D6963
"""The advisory lock of whoever migrates: "mnemic", as a number."""


class Connection:
    """What is lent to a migration."""

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
        """Return what `work` returns for a connection that is lent to it; driver errors leave it as ours."""
        try:
            with psycopg.connect(**self._address.parameters) as raw:
                return work(Connection(raw))
        except psycopg.Error as error:
            raise explain(error, self.url) from error


def _make_schema(name: str) -> str:
    """Return what makes a schema that is missing, and asks for no right to do so if it is there."""
    return f'DO $$ BEGIN IF to_regnamespace(\'"{name}"\') IS NULL THEN CREATE SCHEMA "{name}"; END IF; END $$'
