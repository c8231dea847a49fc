"""The PostgreSQL store: writes take one round trip to lock and load, one to write; an append is one in all."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from msgspec import UNSET, Struct

from ...checks import from_microseconds
from ...errors import LimitError, StoreBusyError, StoreError, StoreUnavailableError, UnreadableStoreError
from ...event_loop import off_loop
from ...records import Record, Ref, ScopePath, StreamName
from ...store.codec import from_columns
from ...store.confinement import confinement
from ...store.planning import Plan, needs_of, plan_writes
from ...store.protocol import Capability, Scrubbed, Unreached
from ...store.query import Expect, Limit, Outcome, Put, Write
from ...store.retry import write_once
from ...store.stream_state import Needs, NeedsMoreError, StreamChange
from ...telemetry.calls import count
from ..sql.reading import ReadConnection as Reads
from ..sql.reading import SqlReads
from ..sql.reading import Work as ReadWork
from ..sql.schema import (
    COLUMNS,
    DERIVED,
    LABELS,
    RECORDS,
    LoadedRows,
    stream_values,
    to_record_state,
    to_row,
    to_stream,
)
from ..write_queue import Result as WriteResult
from ..write_queue import WriteQueue, scope_of
from . import row_security
from .client import LostConnectionError, Pool, PostgresClient, PostgresConnection, Query
from .errors import RETRYABLE, explain, state_of
from .statements import PostgresStatements
from .vector_index import PostgresIndex

if TYPE_CHECKING:
    from .opening import PostgresOptions

Result = TypeVar("Result")
Row = dict[str, Any]

log: logging.Logger = logging.getLogger("mnemic.store")

COPY_FROM = 50
"""Number of new rows from which COPY is used instead of INSERT."""
COMMIT_GROUPS = 8
"""Maximum number of concurrent transactions."""
ATTEMPTS = 10
"""Maximum number of attempts on conflicts."""
LARGE_WRITE = 1000
"""Number of operations from which planning runs in a thread, so that it does not block the event loop."""
MAX_PLANNED = 10_000
"""How many streams are remembered whose appends have to be planned."""


class PostgresStore(SqlReads):
    _sql: PostgresStatements
    index: PostgresIndex

    def __init__(self, options: PostgresOptions, statements: PostgresStatements) -> None:
        super().__init__(statements)
        self._options = options
        self._client = PostgresClient(options)
        self._queue = WriteQueue(self._commit, self._commit_group)
        self._planned: dict[StreamName, None] = {}
        """Streams whose last append replaced or evicted a record, as the next one will."""

    def _commit_group(self, write: Write) -> Hashable:
        group = hash(scope_of(write)) % COMMIT_GROUPS
        # A group's task runs in the context of its first writer: all of them must be confined to the same scope.
        return (group, confinement().path) if self._client.row_security.in_force else group

    async def write(self, write: Write) -> list[Outcome]:
        return await write_once(self, write, self._queue.write)

    async def revision(self) -> str | None:
        """Return the database's revision; None if it has no revision table."""
        try:
            rows = await self._read(lambda connection: connection.all(self._sql.revision, {}))
        except UnreadableStoreError:
            return None
        return str(rows[0][0]) if rows else None

    async def find_row_security(self) -> bool:
        """Confine transactions if the database has policies that apply; return whether it has any.

        Raises StorePermissionError if they were asked for in the URL and do not apply to the role.
        """
        (found,) = await self._read(lambda connection: connection.all(row_security.find, {}))
        return self._client.row_security.learn(self._options, *found)

    async def find_vector_index(self) -> None:
        """Use the database's own index if it has pgvector, or can install it."""
        sql, url = self._sql, self._options.url
        found = await self._read(lambda connection: connection.all(sql.vectors, {}))
        if found and found[0][0] is None:
            try:
                await self._client.use(lambda connection: connection.all(sql.add_vectors, {}))
            except StoreError as error:
                log.info("%s: pgvector is there but may not be installed: %s", url, error)
            found = await self._read(lambda connection: connection.all(sql.vectors, {}))
        if not found or found[0][0] is None:
            log.info("%s has no pgvector: recall compares words and vectors in memory, however large a scope is", url)
            return
        self.index = PostgresIndex(self._client, self._moment, found[0][0], self._options.recall)
        self.capabilities: frozenset[Capability] = self.capabilities | {Capability.NEAREST}

    async def scrub(self, *, finish: bool = False) -> Scrubbed:
        """Name the dead rows; with `finish`, rewrite all tables without them, which locks each meanwhile."""
        done = Scrubbed()
        what, how = "the tables and indexes", "which rewrites the tables and locks each meanwhile"
        if finish:
            tables = await self._client.use(self._rewrite_tables, deadline=False)
            done.add("tables rewritten", sum(tables.values()))
            what = ", ".join(table for table, rewritten in tables.items() if not rewritten)
            how = "with a role that owns the tables"
        if what:
            done.unreached.append(
                Unreached(
                    what=f"dead rows in the files of {what}",
                    until="until PostgreSQL has vacuumed the tables and used the space again",
                    finish=f"mnemic erase --finish CERTIFICATE, {how}",
                    finishable=True,
                )
            )
        done.unreached.append(
            Unreached(
                what="the write-ahead log of PostgreSQL, and its archives and replicas, if it has some",
                until="until the server has used its segments again, and the archives are deleted",
                finish="CHECKPOINT, and delete archived segments",
            )
        )
        return done

    async def _rewrite_tables(self, connection: PostgresConnection) -> dict[str, bool]:
        """Rewrite each table without its dead rows; return whether the server did, which skips those of others."""
        await connection.execute("SET statement_timeout = 0")
        try:
            before = dict(await connection.all(self._sql.tables, {}))
            for table in before:
                await connection.execute(f"VACUUM FULL {table}")
            after = dict(await connection.all(self._sql.tables, {}))
        finally:
            if not connection.closed:
                await connection.execute("RESET statement_timeout")
        return {table: after.get(table) != file for table, file in before.items()}

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, work: ReadWork[Result]) -> Result:
        return await self._client.use(work, tries=2)

    async def _find(self, connection: Reads, asked: dict[tuple[ScopePath, str], dict[str, None]]) -> dict[Ref, Record]:
        """Read keys of any streams in one statement, to save round trips."""
        refs = [Ref(scope, kind, key) for (scope, kind), keys in asked.items() for key in keys]
        if len(refs) == 1:
            return await super()._find(connection, asked)
        values: dict[str, Any] = {"scopes": [ref.scope.path for ref in refs], "now": self._moment()}
        values |= {"kinds": [ref.kind for ref in refs], "keys": [ref.key for ref in refs]}
        found: dict[Ref, Record] = {}
        for row in await connection.all(self._sql.find_all, values):
            ref = refs[row[0] - 1]
            found[ref] = from_columns(ref.scope, ref.kind, row[1:])
        return found

    async def _commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Run writes in one transaction; return the outcomes of each, or its error."""

        async def commit(pool: Pool) -> list[WriteResult]:
            results = await self._settle(pool, writes)
            if len(results) == 1 and isinstance(results[0], StoreUnavailableError):
                raise results[0]  # so that the client logs it
            return results

        return await self._client.run(commit)

    async def _settle(self, pool: Pool, writes: Sequence[Write], *, lost: bool = False) -> list[WriteResult]:
        try:
            return await self._transact(pool, writes, lost=lost)
        except Exception as error:
            return [explain(error, self._options.url)] * len(writes)

    async def _transact(self, pool: Pool, writes: Sequence[Write], *, lost: bool) -> list[WriteResult]:
        """Run writes in one transaction, again on conflicts, and once more if a connection was lost."""
        url = self._options.url
        append = Append.of(writes[0]) if len(writes) == 1 else None
        for number in range(1, ATTEMPTS + 1):
            try:
                return await pool.use(partial(self._attempt, writes, append))
            except LostRaceError:
                count("retries", "conflict")
                log.debug("%s: retry %d (another writer was faster)", url, number)
            except LostConnectionError as error:
                if error.committing:
                    return await self._after_loss(pool, writes, error, lost=lost)
                if lost:
                    raise
                lost = True
            except (psycopg.Error, UnreadableStoreError) as error:
                if state_of(error) in RETRYABLE and number < ATTEMPTS:
                    count("retries", "conflict")
                    log.debug("%s: retry %d (%s)", url, number, state_of(error))
                    await asyncio.sleep(random.random() * 0.005 * 2**number)  # noqa: S311
                elif len(writes) > 1:
                    break
                else:
                    raise
        if len(writes) == 1:
            raise StoreBusyError(f"{url}: concurrent writers won every attempt, {ATTEMPTS} times")
        # One of them is invalid, or meets a damaged record; the others are retried without it.
        return [result for write in writes for result in await self._settle(pool, [write])]

    async def _after_loss(
        self, pool: Pool, writes: Sequence[Write], error: LostConnectionError, *, lost: bool
    ) -> list[WriteResult]:
        """Send writes with an id again, once; the others may have been done or not."""
        again = [] if lost else [write for write in writes if write.id is not None]
        results = iter(await self._settle(pool, again, lost=True) if again else ())
        uncertain = StoreUnavailableError(
            f"{self._options.url}: the connection broke before the server had answered, so the write may "
            f"have been done or not; a write with an id can be sent again ({error})"
        )
        return [next(results) if again and write.id is not None else uncertain for write in writes]

    async def _attempt(
        self, writes: Sequence[Write], append: Append | None, connection: PostgresConnection
    ) -> list[WriteResult]:
        sql = self._sql
        if append is not None and append.stream not in self._planned:
            outcomes = await append.run(connection, sql, self._moment())
            if outcomes is not None:
                return [outcomes]
        begin = [(sql.begin, {}), (sql.set_timeouts, {"wait": f"{self._options.lock_timeout:.3f}s"})]
        loaded = await load(connection, sql, needs_of(writes), begin)
        while True:
            try:
                plan = await self._plan(loaded, writes)
                break
            except NeedsMoreError as error:
                loaded.take(await load(connection, sql, error.needs))
        if plan.changes:
            await apply(connection, sql, plan.changes, loaded.ids)
        if append is not None:
            self._learn(append.stream, plan)
        return plan.results

    async def _plan(self, loaded: LoadedRows, writes: Sequence[Write]) -> Plan:
        if sum(len(write.ops) for write in writes) < LARGE_WRITE:
            return plan_writes(loaded, writes, self._moment())
        return await off_loop(lambda: plan_writes(loaded, writes, self._moment()))

    def _learn(self, stream: StreamName, plan: Plan) -> None:
        if any(change.replaced or change.removed for change in plan.changes) or isinstance(plan.results[0], LimitError):
            if len(self._planned) < MAX_PLANNED:
                self._planned[stream] = None
        else:
            self._planned.pop(stream, None)


class LostRaceError(Exception):
    """Another writer created a stream that a plan was about to create, or expected to be absent; internal."""


async def load(
    connection: PostgresConnection, sql: PostgresStatements, needs: Needs, first: Sequence[Query] = ()
) -> LoadedRows:
    """Run the queries of `first`, lock the streams, ordered by name so that writers do not deadlock, and load."""
    kinds: dict[str, list[str]] = {}
    for scope, kind in sorted(needs.streams):
        kinds.setdefault(scope, []).append(kind)
    by_key = {name: keys for name, keys in needs.keys.items() if name not in needs.whole}
    queries = [
        *first,
        *((sql.lock_streams, {"scope": scope, "kinds": of_scope}) for scope, of_scope in kinds.items()),
        *((sql.record_states, {"scope": name[0], "kind": name[1], "keys": list(by_key[name])}) for name in by_key),
        *((sql.all_record_states, {"scope": scope, "kind": kind}) for scope, kind in needs.whole),
    ]
    answers = iter((await connection.each(queries))[len(first) :])
    loaded = LoadedRows(streams=dict.fromkeys(needs.streams), whole=needs.whole)
    for _ in kinds:
        for row in next(answers):
            state = to_stream(row)
            loaded.streams[state.name], loaded.ids[state.name] = state, state.id
    for name, keys in by_key.items():
        loaded.records[name] = dict.fromkeys(keys)
        loaded.records[name] |= {row[0]: to_record_state(row) for row in next(answers)}
    for name in needs.whole:
        loaded.records[name] = {row[0]: to_record_state(row) for row in next(answers)}
    return loaded


async def apply(
    connection: PostgresConnection, sql: PostgresStatements, changes: Sequence[StreamChange], ids: dict[StreamName, int]
) -> None:
    """Write changes and commit; raises LostRaceError if another writer has created a stream that was absent."""
    removals: list[Query] = [(sql.remove_stream, {"id": ids[change.name]}) for change in changes if change.dropped]
    new = {change.name: change.after for change in changes if change.after and (change.dropped or not change.before)}
    new_ids = dict(ids)
    absent = [change.name for change in changes if change.before is None and change.after is None]
    if absent:
        # There is no row to lock, so the names are locked, and those of new streams for writers who expect the reverse.
        names = [f"{scope}\n{kind}" for scope, kind in sorted({*absent, *new})]
        scopes, kinds = map(list, zip(*absent, strict=True))
        queries = [(sql.lock_names, {"names": names}), (sql.any_stream, {"scopes": scopes, "kinds": kinds})]
        if (await connection.each(queries))[1]:
            raise LostRaceError
    if new:
        claims = [(sql.claim_stream, stream_values(state, 0)) for state in new.values()]
        answers = (await connection.each([*removals, *claims]))[len(removals) :]
        if not all(answers):
            raise LostRaceError
        new_ids |= {name: rows[0][0] for name, rows in zip(new, answers, strict=True)}
        removals = []
    updates: list[Query] = []
    inserts: dict[str, list[Row]] = {RECORDS: [], LABELS: [], DERIVED: []}
    for change in changes:
        if change.before is not None:
            removals += _removals(sql, change, ids[change.name])
        if change.after is None:
            continue
        id = new_ids[change.name]
        added = {record.seq for record in change.added}
        inserts[RECORDS] += [to_row(record, id) for record in change.added]
        updates += [(sql.set, to_row(record, id)) for record in change.replaced]
        for record in (*change.added, *change.replaced):
            inserts[LABELS] += [
                {"stream_id": id, "name": name, "value": value, "seq": record.seq}
                for name, value in record.labels.items()
            ]
        for item in change.derived:
            row = {"stream_id": id, **item._asdict()}
            if item.value is None:
                updates.append((sql.remove_derived, row))
            elif item.seq in added:
                inserts[DERIVED].append(row)
            else:
                updates.append((sql.put_derived, row))
        if change.after is not change.before and change.name not in new:
            updates.append((sql.set_stream, stream_values(change.after, id)))
    # COPY is refused where row-level security applies.
    if sum(map(len, inserts.values())) < COPY_FROM or connection.first:
        statements = {RECORDS: sql.add, LABELS: sql.add_label, DERIVED: sql.put_derived}
        removals += [(statements[table], row) for table, rows in inserts.items() for row in rows]
    else:
        if removals:
            await connection.each(removals)
            removals = []
        for table, rows in inserts.items():
            columns = list(COLUMNS[table])
            if rows:
                await connection.insert(table, columns, map(itemgetter(*columns), rows))
    connection.committing = True
    await connection.each([*removals, *updates, (sql.commit, {})])


def _removals(sql: PostgresStatements, change: StreamChange, id: int) -> Iterator[Query]:
    lost = dict(change.lost_labels)
    if change.cleared:
        spared = [record.seq for record in change.spared]
        yield from ((statement, {"stream_id": id, "spared": spared}) for statement in sql.clear)
    elif change.removed:
        seqs = [record.seq for record in change.removed]
        yield from ((statement, {"stream_id": id, "seqs": seqs}) for statement in sql.remove_seqs)
        lost |= {record.seq: record.labels for record in change.removed}
    flat = [(name, value, seq) for seq, of_record in lost.items() for name, value in of_record.items()]
    if flat:
        names, values, seqs = map(list, zip(*flat, strict=True))
        yield sql.remove_labels, {"stream_id": id, "names": names, "values": values, "seqs": seqs}


class Append(Struct, frozen=True):
    """The parts of a write that may be a plain append of one record."""

    put: Put
    expect: Expect | None
    limit: Limit | None
    other: Expect | None
    """Settings that another stream of the scope must have."""

    @classmethod
    def of(cls, write: Write) -> Append | None:
        """Return the parts; None if the write is more than an append."""
        expect: Expect | None = None
        limit: Limit | None = None
        other: Expect | None = None
        ops = write.ops
        if len(ops) > 1 and isinstance(ops[0], Expect):
            other, ops = ops[0], ops[1:]
            if not isinstance(other.settings, str) or other.key is not None or other.version is not None:
                return None
        match ops:
            case (Put() as put,):
                pass
            case (Put() as put, Expect() as expect):
                pass
            case (Put() as put, Limit() as limit):
                pass
            case (Put() as put, Expect() as expect, Limit() as limit):
                pass
            case _:
                return None
        if write.id is not None or put.if_version or put.updated is not None:
            return None
        if any((op.scope, op.kind) != (put.record.scope, put.record.kind) for op in (expect, limit) if op is not None):
            return None
        if expect and (expect.settings is UNSET or expect.key is not None or expect.version is not None):
            return None
        if other is not None and other.kind == put.record.kind:
            return None
        return cls(put, expect, limit, other)

    @property
    def stream(self) -> StreamName:
        return self.put.record.scope.path, self.put.record.kind

    async def run(self, connection: PostgresConnection, sql: PostgresStatements, moment: int) -> list[Outcome] | None:
        """Append in one round trip; return None, with nothing done, if the write turns out to be more."""
        record, expect, limit = self.put.record, self.expect, self.limit
        values = to_row(record, 0) | {
            "scope": record.scope.path,
            "kind": record.kind,
            "updated": moment,
            "label_names": list(record.labels),
            "label_values": list(record.labels.values()),
            "derived_names": list(record.derived),
            "derived_values": list(record.derived.values()),
            "expecting": expect is not None,
            "expected_settings": expect.settings if expect else None,
            "max_count": limit.max_count if limit else None,
            "max_weight": limit.max_weight if limit else None,
        }
        if self.other is not None:
            values |= {"other_kind": self.other.kind, "other_settings": self.other.settings}
        if record.created is None:
            values["created"] = moment
        connection.committing = True
        rows = await connection.all(
            sql.append(bool(record.labels), bool(record.derived), self.other is not None), values
        )
        connection.committing = False
        if not rows:
            return None
        seq, version, count, weight = rows[0]
        now = from_microseconds(moment)
        outcomes = [Outcome()] if self.other is not None else []
        outcomes.append(Outcome(seq, version, record.created or now, now, key=record.key))
        if expect is not None:
            outcomes.append(Outcome(version=version))
        if limit is not None:
            outcomes.append(Outcome(count=count, weight=weight))
        return outcomes
