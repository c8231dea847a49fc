"""The database's own index: words by tsvector, vectors by pgvector, in one round trip.

It is derived data, brought up to date by searches, created on first use, and deleted with the records. The vector
column has no fixed dimension; each embedder has its own HNSW index. In a small scope PostgreSQL compares all
vectors, which is faster; in a large one it uses the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...recall.index_entry import USE, unpack
from ...records import Record, ScopePath, StreamName, known_scope
from ...store.codec import FIELDS, from_columns
from ...store.protocol import Mark, Near, Nearby
from ..sql.schema import STREAM_COLUMNS, to_stream
from ..sql.statements import Parameters, Prepared
from . import row_security
from .client import PostgresClient
from .statements import prepared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EF_SEARCH = 400
"""Initial search width of the graph; it continues while filters leave too few."""
LOCK = f"SELECT pg_advisory_xact_lock({0x6D6E656D6964})"
"""Taken to create the tables."""

_COLUMNS = {
    "scope": "text", "kind": "text", "key": "text", "piece": "bigint", "seq": "bigint", "version": "bigint",
    "words": "text", "vector": "text",
}  # fmt: skip
_ROWS = (
    f"unnest({', '.join(f'CAST(:{name}_list AS {type}[])' for name, type in _COLUMNS.items())}) "
    f"AS u({', '.join(_COLUMNS)})"
)
_STREAM_ID = "(SELECT id FROM mnemic_streams WHERE scope = :scope AND kind = :kind)"
_NAME = 'text COLLATE "C" NOT NULL'
_OF_STREAM = "stream_id bigint NOT NULL REFERENCES mnemic_streams ON DELETE CASCADE"


class PostgresIndex:
    """Finds records by words and vectors in the database that stores them."""

    tidy = True

    def __init__(self, client: PostgresClient, moment: Callable[[], int], schema: str, large: int) -> None:
        """Take the schema with pgvector, and from how many records on a scope is searched here."""
        self.url: str = client.options.url
        self.large = large
        self._client = client
        self._moment = moment
        self._pgvector = f'"{schema}".'
        self._created: set[tuple[str, int]] = set()

    async def nearby(self, near: Near) -> Nearby:
        width = len(near.vector or b"")
        await self._create(near.name, width)
        values = {**_values(near.scope), "entry": near.name, "kinds": list(near.kinds), "limit": near.limit}
        values |= {"use": USE, "now": self._moment(), "words": " | ".join(map(_word, near.terms))}
        if near.vector is not None:
            values["vector"] = _vector(near.vector)
        within = "here" if not near.below else "below" if near.scope.path else "everywhere"
        tune = (
            "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
            f"set_config('hnsw.ef_search', '{EF_SEARCH}', true)"
        )
        behind = (
            f"SELECT {_columns('s', ('id', *STREAM_COLUMNS))}, m.version, m.last_seq, m.count FROM mnemic_streams s "
            "LEFT JOIN mnemic_marks m ON m.stream_id = s.id AND m.entry = :entry "
            f"WHERE (m.version IS NULL OR m.version <> s.version) AND {_within('s', within)}"
        )
        _, streams_behind, found = await self._run([tune, behind, self._near(near, width, within)], values)
        columns = len(STREAM_COLUMNS) + 1
        states = ((to_stream(row[:columns]), row[columns:]) for row in streams_behind)
        return Nearby(
            [from_columns(known_scope(row[0]), row[1], row[2:], (near.name, USE)) for row in found],
            [
                (state.stream(state.count, state.weight), None if mark[0] is None else Mark(*mark))
                for state, mark in states
            ],
        )

    async def near(self, near: Near) -> list[Record]:
        return (await self.nearby(near)).records

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        await self._create()
        within = _within("s", "below" if scope.path else "everywhere")
        query = (
            "SELECT s.scope, s.kind, m.version, m.last_seq, m.count FROM mnemic_marks m "
            f"JOIN mnemic_streams s ON s.id = m.stream_id WHERE m.entry = :entry AND {within}"
        )
        (rows,) = await self._run([query], {**_values(scope), "entry": name})
        return {(row[0], row[1]): Mark(*row[2:]) for row in rows}

    async def put(self, name: str, records: Sequence[Record]) -> None:
        rows = []
        width = 0
        for record in records:
            entry = unpack(record.derived[name])
            vectors = [None] if entry.vectors is None else [_vector(vector.tobytes()) for vector in entry.vectors]
            width = width or (0 if entry.vectors is None else entry.vectors.shape[1])
            # A long text has several vectors, and its words once.
            words = " ".join({_word(term) for term in entry.terms.tolist()})
            for piece, vector in enumerate(vectors or [None]):
                place = (record.scope.path, record.kind, record.key, piece, record.seq, record.version)
                rows.append((*place, "" if piece else words, vector))
        if not rows:
            return
        await self._create(name, width)
        columns = zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)
        values: dict[str, Any] = {f"{column}_list": of_column for column, of_column in columns}
        clear = (
            f"DELETE FROM mnemic_index i USING {_ROWS} JOIN mnemic_streams s ON s.scope = u.scope AND s.kind = u.kind "
            "WHERE i.stream_id = s.id AND i.entry = :entry AND i.key = u.key"
        )
        insert = (
            "INSERT INTO mnemic_index (stream_id, entry, key, piece, seq, version, scope, kind, words, vector) "
            "SELECT s.id, CAST(:entry AS text), u.key, u.piece, u.seq, u.version, u.scope, u.kind, "
            f"array_to_tsvector(string_to_array(u.words, ' ')), CAST(u.vector AS {self._pgvector}halfvec) "
            f"FROM {_ROWS} JOIN mnemic_streams s ON s.scope = u.scope AND s.kind = u.kind "
            # A record deleted meanwhile is skipped.
            "JOIN mnemic_records r ON r.stream_id = s.id AND r.seq = u.seq AND r.key = u.key ON CONFLICT DO NOTHING"
        )
        await self._run([clear, insert], {**values, "entry": name})

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        await self._create()
        values = {"scope": stream[0], "kind": stream[1], "keys": list(keys or ())}
        remove = f"DELETE FROM mnemic_index WHERE stream_id = {_STREAM_ID}"
        if keys is not None:
            await self._run([f"{remove} AND key = ANY(CAST(:keys AS text[]))"], values)
        else:
            await self._run([remove, f"DELETE FROM mnemic_marks WHERE stream_id = {_STREAM_ID}"], values)

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        await self._create()
        query = f"SELECT DISTINCT key FROM mnemic_index WHERE stream_id = {_STREAM_ID} AND entry = :entry"
        (rows,) = await self._run([query], {"scope": stream[0], "kind": stream[1], "entry": name})
        return [row[0] for row in rows]

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        values: dict[str, Any] = {"entry": name, "scope": stream[0], "kind": stream[1]}
        values |= {"version": mark.version, "last_seq": mark.last_seq, "count": mark.count}
        upsert = (
            "INSERT INTO mnemic_marks (stream_id, entry, version, last_seq, count) "
            "SELECT id, CAST(:entry AS text), :version, :last_seq, :count FROM mnemic_streams "
            "WHERE scope = :scope AND kind = :kind ON CONFLICT (stream_id, entry) DO UPDATE SET "
            "version = excluded.version, last_seq = excluded.last_seq, count = excluded.count"
        )
        await self._run([upsert], values)

    async def reset(self) -> None:
        await self._create()
        await self._run(["TRUNCATE mnemic_index, mnemic_marks"])

    async def close(self) -> None:
        """Do nothing: the store owns the connections."""

    async def _create(self, name: str = "", width: int = 0) -> None:
        """Create the tables, and the index of an embedder's vectors, unless they exist."""
        halfvec = f"{self._pgvector}halfvec"
        if ("", 0) not in self._created:
            tables = [
                f"CREATE TABLE IF NOT EXISTS mnemic_index ({_OF_STREAM}, entry {_NAME}, key {_NAME}, "
                f"piece bigint NOT NULL, seq bigint NOT NULL, version bigint NOT NULL, scope {_NAME}, kind {_NAME}, "
                f"words tsvector NOT NULL, vector {halfvec}, PRIMARY KEY (stream_id, entry, key, piece), "
                "FOREIGN KEY (stream_id, seq) REFERENCES mnemic_records ON DELETE CASCADE)",
                "CREATE INDEX IF NOT EXISTS mnemic_index_place ON mnemic_index (stream_id, seq)",
                "CREATE INDEX IF NOT EXISTS mnemic_index_scope ON mnemic_index (scope, kind)",
                "CREATE INDEX IF NOT EXISTS mnemic_index_words ON mnemic_index USING gin (words)",
                f"CREATE TABLE IF NOT EXISTS mnemic_marks ({_OF_STREAM}, entry {_NAME}, version bigint NOT NULL, "
                "last_seq bigint NOT NULL, count bigint NOT NULL, PRIMARY KEY (stream_id, entry))",
            ]
            await self._run([LOCK, *tables])
            if self._client.row_security.in_force:
                (unprotected,) = await self._run([row_security.OPEN_TABLES])
                policies = [row_security.protect(table, has_scope=has_scope) for table, has_scope in unprotected]
                if policies:
                    await self._run([LOCK, *chain.from_iterable(policies)])
            self._created.add(("", 0))
        if width and (name, width) not in self._created:
            graph = (
                f"CREATE INDEX IF NOT EXISTS mnemic_index_{name.replace(':', '_')}_{width} ON mnemic_index USING hnsw "
                f"((CAST(vector AS {halfvec}({width}))) {self._pgvector}halfvec_cosine_ops) "
                f"WHERE entry = {_literal(name)}"
            )
            await self._run([LOCK, graph])
            self._created.add((name, width))

    async def _run(self, statements: Iterable[str], values: Parameters | None = None) -> list[list[Any]]:
        """Run statements in a transaction, in one round trip; return the rows of each."""
        queries = [(_prepared(statement), values or {}) for statement in ("BEGIN", *statements, "COMMIT")]
        return (await self._client.use(lambda connection: connection.each(queries)))[1:-1]

    def _near(self, near: Near, width: int, within: str) -> str:
        where = f"FROM mnemic_index i WHERE entry = {_literal(near.name)} AND {_within('i', within)}"
        if near.kinds:
            where += " AND kind = ANY(CAST(:kinds AS text[]))"
        halfvec = f"{self._pgvector}halfvec({width})"
        distance = f"CAST(vector AS {halfvec}) OPERATOR({self._pgvector}<=>) CAST(:vector AS {halfvec})"
        by_vector = f"(SELECT stream_id, seq {where} ORDER BY {distance} LIMIT :limit)"
        query = "CAST(:words AS tsquery)"
        by_words = (
            f"(SELECT stream_id, seq {where} AND words @@ {query} ORDER BY ts_rank(words, {query}) DESC LIMIT :limit)"
        )
        nothing = "(SELECT stream_id, seq FROM mnemic_index WHERE false)"
        found = " UNION ".join([*([by_vector] if width else []), *([by_words] if near.terms else [])]) or nothing
        return (
            f"WITH found AS MATERIALIZED ({found}) SELECT s.scope, s.kind, {_columns('r', FIELDS)}, d.value, u.value "
            "FROM found f JOIN mnemic_records r ON r.stream_id = f.stream_id AND r.seq = f.seq "
            "JOIN mnemic_streams s ON s.id = f.stream_id "
            "JOIN mnemic_derived d ON d.stream_id = f.stream_id AND d.seq = f.seq AND d.name = :entry "
            "AND d.version IN (r.version, 0) "
            "LEFT JOIN mnemic_derived u ON u.stream_id = f.stream_id AND u.seq = f.seq AND u.name = :use "
            "WHERE (r.expires IS NULL OR r.expires > :now) AND (s.expires IS NULL OR s.expires > :now)"
        )


@cache
def _prepared(statement: str) -> Prepared:
    # The plan of a search depends on the size of the scope.
    return prepared(statement, keep_plan=not statement.startswith("WITH found"))


def _columns(table: str, names: Iterable[str]) -> str:
    return ", ".join(f"{table}.{name}" for name in names)


def _within(table: str, reach: str) -> str:
    if reach == "everywhere":
        return "true"
    if reach == "here":
        return f"{table}.scope = :scope"
    return f"({table}.scope = :scope OR ({table}.scope >= :first AND {table}.scope < :beyond))"


def _values(scope: ScopePath) -> dict[str, Any]:
    return {"scope": scope.path, "first": f"{scope.path}/", "beyond": f"{scope.path}0"}


def _literal(name: str) -> str:
    """Return a name as an SQL literal, in which a colon is no parameter."""
    return "'" + name.replace("'", "''").replace(":", "\\:") + "'"


def _word(term: int) -> str:
    return f"t{term:x}"


def _vector(value: bytes) -> str:
    import numpy as np

    numbers: NDArray[np.int8] = np.frombuffer(value, dtype=np.int8)
    return f"[{','.join(map(str, numbers.tolist()))}]"
