"""Several statements in one round trip.

The driver's own pipelines send each statement separately. Here all go into one buffer and one system call, which
takes half the time for client and server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from ..sql.statements import Parameters, Prepared

MOST_KEPT = 200
"""Maximum number of prepared statements per connection; others are sent in full each time."""

MOST_NOTHING = 2
"""How often in a row the driver has no result while the server is still answering: it ends each one's with one."""

Talk = Generator[Wait, Ready | int, list[list[Any]]]
"""Generator that waits for the socket, and returns the rows of each statement."""
_Key = tuple[str, tuple[int, ...]]


class Pipeline:
    """Sends statements over one connection."""

    def __init__(self, raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._raw = raw
        self._adapt = Transformer(raw)
        self._keeps = raw.prepare_threshold is not None
        self._names: dict[_Key, bytes] = {}
        """Names of the prepared statements."""
        self._seen: set[_Key] = set()
        self._number = 0

    def talk(self, asked: Sequence[tuple[Prepared, Parameters]]) -> Talk:
        """Send statements and return the rows of each; raises the first error and skips the rest."""
        link = self._raw.pgconn
        new: list[_Key] = []
        link.enter_pipeline_mode()
        try:
            wanted = [command for one in asked for command in self._send(*one, new)]
            link.pipeline_sync()
            results = yield from self._answers(len(wanted))
        except BaseException:
            self._forget(new)
            raise
        finally:
            if link.status == ConnStatus.OK:
                link.exit_pipeline_mode()
        failed = next((one for one in results if one.status == ExecStatus.FATAL_ERROR), None)
        if failed is not None:
            self._forget(new)
            raise error_from_result(failed, encoding=self._raw.info.encoding)
        return [self._rows(one) for one, is_wanted in zip(results, wanted, strict=True) if is_wanted]

    def _send(self, statement: Prepared, parameters: Parameters, new: list[_Key]) -> Iterator[bool]:
        """Add a statement to the buffer; yield for each command whether its result is wanted."""
        link, adapt = self._raw.pgconn, self._adapt
        given = statement.arguments(parameters)
        values = adapt.dump_sequence(given, [PyFormat.AUTO] * len(given))
        key = (statement.text, adapt.types or ())
        name = self._names.get(key)
        if name is None and self._is_worth_keeping(statement, key):
            self._number += 1
            name = self._names[key] = b"mnemic_%d" % self._number
            new.append(key)
            link.send_prepare(name, statement.text.encode(), adapt.types)
            yield False
        if name is None:
            link.send_query_params(statement.text.encode(), values, adapt.types, adapt.formats)
        else:
            link.send_query_prepared(name, values, adapt.formats)
        yield True

    def _is_worth_keeping(self, statement: Prepared, key: _Key) -> bool:
        if not (self._keeps and statement.keep_plan) or len(self._names) >= MOST_KEPT:
            return False
        if key in self._seen:
            return True
        if len(self._seen) < 10 * MOST_KEPT:
            self._seen.add(key)
        return False

    def _forget(self, keys: list[_Key]) -> None:
        """Mark statements as not prepared: an error may have come before them."""
        for key in keys:
            self._names.pop(key, None)

    def _answers(self, count: int) -> Generator[Wait, Ready | int, list[PGresult]]:
        """Return the result of each command, and read until the server is ready again."""
        link = self._raw.pgconn
        while link.flush():
            # The server may wait for us to read before it reads on.
            if (yield Wait.RW) & Ready.R:
                link.consume_input()
        results: list[PGresult] = []
        nothing = 0
        while nothing <= MOST_NOTHING and len(results) <= count:
            while link.is_busy():
                yield Wait.R
                link.consume_input()
            result = link.get_result()
            nothing = nothing + 1 if result is None else 0
            if result is None:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC and len(results) == count:
                return results
            results.append(result)
        said = link.get_error_message()
        link.finish()  # whatever comes next would be taken for the answer to something else
        raise psycopg.OperationalError(f"the server sent an unexpected answer: {said}")

    def _rows(self, result: PGresult) -> list[Any]:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._adapt.set_pgresult(result)
        rows = self._adapt.load_rows(0, result.ntuples, tuple)
        self._adapt.set_pgresult(None)
        return rows
