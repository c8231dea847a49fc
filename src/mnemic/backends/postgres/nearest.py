"""The database's own index: words by tsvector, vectors by pgvector, in one round trip.

It is derived data, brought up to date by searches, created on first use, and deleted with the records. The vector
column has no fixed dimension; each embedder has its own HNSW index. In a small scope PostgreSQL compares all
vectors, which is faster; in a large one it uses the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from ...recall.index_entry import unpack
from ...recall.strength import USE
from ...records import Record, ScopePath, known_scope
from ...store.nearest import Mark, Near, Nearby
from ...store.planning import StreamName
from ..sql.rows import COLUMNS, STREAM_COLUMNS, to_record, to_stream
from ..sql.schema import records, streams
from ..sql.statements import Prepared
from .client import PostgresClient, Query
from .statements import FLAVOR

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AHEAD = 400
"""Initial search width of the graph (ef_search); it continues while filters leave too few."""
LOCK = 0x6D6E656D6964
"""Advisory lock for creating the tables."""

_GIVEN = ("scopes", "kinds", "keys", "pieces", "seqs", "versions", "words", "vectors")
_HEAD = ", ".join(f"s.{column.name}" for column in streams.columns)
_RECORD = ", ".join(f"r.{column.name}" for column in records.columns)


class PostgresIndex:
    """Finds records by words and vectors in the database that stores them."""

    tidy = True

    def __init__(self, client: PostgresClient, moment: Callable[[], int], schema: str, large: int) -> None:
        """Take the schema with pgvector, and from how many records on a scope is searched here."""
        self.url: str = client.options.url
        self.large = large
        self._client = client
        self._moment = moment
        self._sql = Sql(schema)
        self._made: set[tuple[str, int]] = set()
        self._there = False

    async def nearby(self, near: Near) -> Nearby:
        """Return records by words and by vectors, and the streams for which the index is behind, in one round
        trip.
        """
        await self._make(near.name, len(near.vector) if near.vector else 0)
        values = _values(near.scope, near.kinds) | {"entry": near.name, "now": self._moment()}
        values |= {"limit": near.limit, "use": USE}
        if near.vector is not None:
            values["vector"] = _vector(near.vector)
        if near.terms:
            values["words"] = " | ".join(_word(term) for term in near.terms)
        sql = self._sql
        found = sql.near(near.name, len(near.vector or b""), bool(near.terms), _reach(near), bool(near.kinds))
        asked = [(sql.begin, {}), (sql.tune, {}), (sql.behind(_reach(near)), values), (found, values)]
        answers = await self._each([*asked, (sql.commit, {})])
        behind = []
        for row in answers[2]:
            head = to_stream(row[: len(STREAM_COLUMNS) + 1])
            mark = row[len(STREAM_COLUMNS) + 1 :]
            known = None if mark[0] is None else Mark(*mark)
            behind.append((head.stream(head.count, head.weight), known))
        return Nearby([_record(row, near.name) for row in answers[3]], behind)

    async def near(self, near: Near) -> list[Record]:
        """Return records by words and by vectors."""
        return (await self.nearby(near)).records

    async def marks(self, name: str, scope: ScopePath) -> dict[StreamName, Mark]:
        """Return how far the index has followed the streams of a scope and below."""
        await self._make(name, 0)
        reach = "below" if scope.path else "everywhere"
        rows = await self._all(self._sql.marks(reach), _values(scope, ()) | {"entry": name})
        return {(row[0], row[1]): Mark(*row[2:]) for row in rows}

    async def put(self, name: str, records: Sequence[Record]) -> None:
        """Add records, replacing older versions."""
        columns: dict[str, list[Any]] = {
            column: [] for column in ("scopes", "kinds", "keys", "pieces", "seqs", "versions", "words", "vectors")
        }
        width = 0
        for record in records:
            entry = unpack(record.derived[name])
            vectors = [] if entry.vectors is None else list(entry.vectors)
            width = width or (len(vectors[0]) if vectors else 0)
            # A long text has several vectors, and its words once.
            for piece in range(max(1, len(vectors))):
                words = " ".join({_word(term) for term in entry.terms.tolist()}) if not piece else ""
                row = (
                    record.scope.path, record.kind, record.key, piece, record.seq, record.version, words,
                    _vector(vectors[piece].tobytes()) if vectors else None,
                )  # fmt: skip
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
        if not columns["keys"]:
            return
        await self._make(name, width)
        values = columns | {"entry": name}
        sql = self._sql
        await self._each([(sql.begin, {}), (sql.clear, values), (sql.put, values), (sql.commit, {})])

    async def remove(self, stream: StreamName, keys: Sequence[str] | None) -> None:
        """Remove records of a stream for every embedder; with None, the whole stream and its marks."""
        await self._make("", 0)
        values = {"scope": stream[0], "kind": stream[1], "keys": list(keys or ())}
        if keys is not None:
            await self._all(self._sql.remove, values)
        else:
            await self._each([(self._sql.empty, values), (self._sql.unmark, values)])

    async def keys(self, name: str, stream: StreamName) -> list[str]:
        """Return the keys of a stream that the index contains."""
        await self._make(name, 0)
        values = {"scope": stream[0], "kind": stream[1], "entry": name}
        return [row[0] for row in await self._all(self._sql.keys, values)]

    async def mark(self, name: str, stream: StreamName, mark: Mark) -> None:
        """Record how far the index has followed a stream."""
        values: dict[str, Any] = {"entry": name, "scope": stream[0], "kind": stream[1]}
        values |= {"version": mark.version, "last_seq": mark.last_seq, "count": mark.count}
        await self._all(self._sql.mark, values)

    async def reset(self) -> None:
        """Delete the whole index."""
        await self._make("", 0)
        await self._each([(self._sql.forget, {})])

    async def close(self) -> None:
        """Do nothing: the store owns the connections."""

    async def explain(self, near: Near) -> str:
        """Return the query plan, for a person to read."""
        found = self._sql.near(near.name, len(near.vector or b""), bool(near.terms), _reach(near), bool(near.kinds))
        values = _values(near.scope, near.kinds) | {"entry": near.name, "now": self._moment()}
        values |= {"limit": near.limit, "use": USE, "words": " | ".join(_word(term) for term in near.terms)}
        values["vector"] = _vector(near.vector or b"")
        plan = Prepared(text(f"EXPLAIN {found.source}"), FLAVOR.dialect, keep_plan=False)
        answers = await self._each(
            [(self._sql.begin, {}), (self._sql.tune, {}), (plan, values), (self._sql.commit, {})]
        )
        return "\n".join(row[0] for row in answers[2])

    async def _make(self, entry: str, width: int) -> None:
        """Create the tables, and the index of an embedder's vectors, unless they exist."""
        if not self._there:
            await self._each([(self._sql.begin, {}), *((s, {}) for s in self._sql.tables), (self._sql.commit, {})])
            self._there = True
        if width and (entry, width) not in self._made:
            graph = self._sql.graph(entry, width)
            await self._each([(self._sql.begin, {}), *((s, {}) for s in graph), (self._sql.commit, {})])
            self._made.add((entry, width))

    async def _all(self, statement: Prepared, values: dict[str, Any]) -> list[Any]:
        (rows,) = await self._each([(statement, values)])
        return rows

    async def _each(self, queries: Sequence[Query]) -> list[list[Any]]:
        return await self._client.use(lambda connection: connection.each(queries))


class Sql:
    """The statements; pgvector's names are qualified with its schema."""

    def __init__(self, schema: str) -> None:
        self.of: str = f'"{schema}".'
        stream = "(SELECT id FROM mnemic_streams WHERE scope = :scope AND kind = :kind)"
        given = (
            "unnest(CAST(:scopes AS text[]), CAST(:kinds AS text[]), CAST(:keys AS text[]), "
            "CAST(:pieces AS bigint[]), CAST(:seqs AS bigint[]), CAST(:versions AS bigint[]), "
            "CAST(:words AS text[]), CAST(:vectors AS text[])) "
            "AS u(scope, kind, key, piece, seq, version, words, vector)"
        )
        self.begin: Prepared = _prepared("BEGIN")
        self.commit: Prepared = _prepared("COMMIT")
        self.tune: Prepared = _prepared(
            "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), "
            f"set_config('hnsw.ef_search', '{AHEAD}', true)"
        )
        self.tables: list[Prepared] = [_prepared(statement) for statement in self._tables()]
        self.clear: Prepared = _prepared(
            f"DELETE FROM mnemic_index i USING {given} JOIN mnemic_streams s ON s.scope = u.scope AND "
            "s.kind = u.kind WHERE i.stream_id = s.id AND i.entry = :entry AND i.key = u.key"
        )
        self.put: Prepared = _prepared(
            "INSERT INTO mnemic_index "
            "(stream_id, entry, key, piece, seq, version, scope, kind, words, vector) "
            "SELECT s.id, CAST(:entry AS text), u.key, u.piece, u.seq, u.version, u.scope, u.kind, "
            "array_to_tsvector(string_to_array(u.words, ' ')), "
            f"CAST(u.vector AS {self.of}halfvec) FROM {given} "
            "JOIN mnemic_streams s ON s.scope = u.scope AND s.kind = u.kind "
            # A record deleted meanwhile is skipped.
            "JOIN mnemic_records r ON r.stream_id = s.id AND r.seq = u.seq AND r.key = u.key "
            "ON CONFLICT DO NOTHING"
        )
        self.remove: Prepared = _prepared(
            f"DELETE FROM mnemic_index WHERE stream_id = {stream} AND key = ANY(CAST(:keys AS text[]))"
        )
        self.empty: Prepared = _prepared(f"DELETE FROM mnemic_index WHERE stream_id = {stream}")
        self.unmark: Prepared = _prepared(f"DELETE FROM mnemic_marks WHERE stream_id = {stream}")
        self.keys: Prepared = _prepared(
            f"SELECT DISTINCT key FROM mnemic_index WHERE stream_id = {stream} AND entry = :entry"
        )
        self.mark: Prepared = _prepared(
            "INSERT INTO mnemic_marks (stream_id, entry, version, last_seq, count) "
            "SELECT id, CAST(:entry AS text), :version, :last_seq, :count FROM mnemic_streams "
            "WHERE scope = :scope AND kind = :kind ON CONFLICT (stream_id, entry) DO UPDATE SET "
            "version = excluded.version, last_seq = excluded.last_seq, count = excluded.count RETURNING 1"
        )
        self.forget: Prepared = _prepared("TRUNCATE mnemic_index, mnemic_marks")
        self.marks: Callable[[str], Prepared] = cache(self._marks)
        self.behind: Callable[[str], Prepared] = cache(self._behind)
        self.near: Callable[[str, int, bool, str, bool], Explained] = cache(self._near)

    def _tables(self) -> list[str]:
        return [
            f"SELECT pg_advisory_xact_lock({LOCK})",
            "CREATE TABLE IF NOT EXISTS mnemic_index (stream_id bigint NOT NULL REFERENCES mnemic_streams "
            'ON DELETE CASCADE, entry text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, '
            "piece bigint NOT NULL, seq bigint NOT NULL, version bigint NOT NULL, "
            'scope text COLLATE "C" NOT NULL, kind text COLLATE "C" NOT NULL, words tsvector NOT NULL, '
            f"vector {self.of}halfvec, PRIMARY KEY (stream_id, entry, key, piece), "
            "FOREIGN KEY (stream_id, seq) REFERENCES mnemic_records ON DELETE CASCADE)",
            "CREATE INDEX IF NOT EXISTS mnemic_index_place ON mnemic_index (stream_id, seq)",
            "CREATE INDEX IF NOT EXISTS mnemic_index_scope ON mnemic_index (scope, kind)",
            "CREATE INDEX IF NOT EXISTS mnemic_index_words ON mnemic_index USING gin (words)",
            "CREATE TABLE IF NOT EXISTS mnemic_marks (stream_id bigint NOT NULL REFERENCES mnemic_streams "
            'ON DELETE CASCADE, entry text COLLATE "C" NOT NULL, version bigint NOT NULL, '
            "last_seq bigint NOT NULL, count bigint NOT NULL, PRIMARY KEY (stream_id, entry))",
        ]

    def graph(self, entry: str, width: int) -> list[Prepared]:
        """Return the statements that create the index of an embedder's vectors."""
        name = f"mnemic_index_{entry.replace(':', '_')}_{width}"
        return [
            _prepared(f"SELECT pg_advisory_xact_lock({LOCK})"),
            _prepared(
                f"CREATE INDEX IF NOT EXISTS {name} ON mnemic_index USING hnsw "
                f"((vector\\:\\:{self.of}halfvec({width})) {self.of}halfvec_cosine_ops) "
                f"WHERE entry = '{_literal(entry)}'"
            ),
        ]

    def _marks(self, reach: str) -> Prepared:
        return _prepared(
            "SELECT s.scope, s.kind, m.version, m.last_seq, m.count FROM mnemic_marks m "
            f"JOIN mnemic_streams s ON s.id = m.stream_id WHERE m.entry = :entry AND {_within('s', reach)}"
        )

    def _behind(self, reach: str) -> Prepared:
        return _prepared(
            f"SELECT {_HEAD}, m.version, m.last_seq, m.count FROM mnemic_streams s "
            "LEFT JOIN mnemic_marks m ON m.stream_id = s.id AND m.entry = :entry "
            f"WHERE (m.version IS NULL OR m.version <> s.version) AND {_within('s', reach)}"
        )

    def _near(self, entry: str, width: int, worded: bool, reach: str, of_kinds: bool) -> Explained:
        here = f"entry = '{_literal(entry)}' AND {_within('i', reach)}"
        if of_kinds:
            here += " AND kind = ANY(CAST(:kinds AS text[]))"
        ways = []
        if width:
            close = f"vector\\:\\:{self.of}halfvec({width}) OPERATOR({self.of}<=>)"
            ways.append(
                f"(SELECT stream_id, seq FROM mnemic_index i WHERE {here} "
                f"ORDER BY {close} CAST(:vector AS {self.of}halfvec({width})) LIMIT :limit)"
            )
        if worded:
            ways.append(
                f"(SELECT stream_id, seq FROM mnemic_index i WHERE {here} "
                "AND words @@ CAST(:words AS tsquery) "
                "ORDER BY ts_rank(words, CAST(:words AS tsquery)) DESC LIMIT :limit)"
            )
        found = " UNION ".join(ways) or "(SELECT stream_id, seq FROM mnemic_index WHERE false)"
        return Explained(
            f"WITH found AS MATERIALIZED ({found}) SELECT s.scope, s.kind, {_RECORD}, d.value, u.value "
            "FROM found f JOIN mnemic_records r ON r.stream_id = f.stream_id AND r.seq = f.seq "
            "JOIN mnemic_streams s ON s.id = f.stream_id "
            "JOIN mnemic_derived d ON d.stream_id = f.stream_id AND d.seq = f.seq AND d.name = :entry "
            "AND d.version IN (r.version, 0) "
            "LEFT JOIN mnemic_derived u ON u.stream_id = f.stream_id AND u.seq = f.seq AND u.name = :use "
            "WHERE (r.expires IS NULL OR r.expires > :now) AND (s.expires IS NULL OR s.expires > :now)"
        )


class Explained(Prepared):
    """A statement with an EXPLAIN: its plan depends on the size of a scope."""

    def __init__(self, source: str) -> None:
        super().__init__(text(source), FLAVOR.dialect, keep_plan=False)
        self.source = source


def _prepared(statement: str) -> Prepared:
    return Prepared(text(statement), FLAVOR.dialect)


def _within(table: str, reach: str) -> str:
    if reach == "everywhere":
        return "true"
    if reach == "here":
        return f"{table}.scope = :scope"
    return f"({table}.scope = :scope OR ({table}.scope >= :first AND {table}.scope < :beyond))"


def _reach(near: Near) -> str:
    return "here" if not near.below else "below" if near.scope.path else "everywhere"


def _values(scope: ScopePath, kinds: Sequence[str]) -> dict[str, Any]:
    return {"scope": scope.path, "first": f"{scope.path}/", "beyond": f"{scope.path}0", "kinds": list(kinds)}


def _literal(entry: str) -> str:
    """Return an entry's name as an SQL literal: letters, digits and a colon only."""
    return entry.replace("'", "''").replace(":", "\\:")


def _word(term: int) -> str:
    """Return the word for a term."""
    return f"t{term:x}"


def _vector(value: bytes) -> str:
    import numpy as np

    whole: NDArray[np.int8] = np.frombuffer(value, dtype=np.int8)
    return f"[{','.join(map(str, whole.tolist()))}]"


def _record(row: Sequence[Any], name: str) -> Record:
    return to_record(known_scope(row[0]), row[1], row[2 : 4 + len(COLUMNS)], (name, USE))
