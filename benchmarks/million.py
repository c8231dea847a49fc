"""A million records of ten thousand users on PostgreSQL: recall of one user, against a bare indexed query.

The bare query finds the same user's nearest vectors with pgvector, through an index on the user. `recall` is
measured on users that were asked about before, and on users that were not.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

import mnemic
from servers import postgres

from .embedded import text
from .measuring import Result

USERS, EACH = 10_000, 100
ASKED = 200
QUESTIONS = ["coffee in Oslo", "who is allergic to peanuts?", "the meeting on Thursday", "an umbrella in Paris"]


def run(folder: Path) -> list[Result]:
    """Fill a database and measure."""
    with postgres.empty_database(folder) as url, mnemic.open(url) as memory:
        _fill(memory)
        with psycopg.connect(url, autocommit=True) as raw:
            bare = _bare(raw)
            raw.execute("VACUUM ANALYZE")
            pick = random.Random(11)
            users = pick.sample(range(USERS), ASKED)
            # Each is asked about three times, in turns with the bare query: cold, and then warm.
            memory.scope("warm", "up").recall("hello")
            times: dict[str, list[float]] = {"cold": [], "warm": [], "bare": []}
            for n, user in enumerate(users):
                question = QUESTIONS[n % len(QUESTIONS)]
                home = memory.scope("acme", f"user{user}")
                times["cold"].append(_timed(lambda home=home, q=question: home.recall(q)))  # type: ignore[misc]
                times["bare"].append(_timed(lambda user=user: bare(user)))  # type: ignore[misc]
                times["warm"].append(_timed(lambda home=home, q=question: home.recall(q)))  # type: ignore[misc]
        middle = {name: statistics.median(found) for name, found in times.items()}
    return [
        _line("recall within one user, first time", middle["cold"], middle["bare"], None),
        _line("recall within one user, p50", middle["warm"], middle["bare"], 10),
    ]


def _line(what: str, ours: float, bare: float, most: float | None) -> Result:
    ratio = ours / bare
    target = "(to know)" if most is None else f"under {most:g}× a bare indexed query"
    reached = f"{ratio:.1f}× ({ours * 1e3:.2f} against {bare * 1e3:.2f} ms)"
    return Result(f"postgresql, {USERS * EACH:,} records: {what}", target, reached, not most or ratio < most)


def _fill(memory: mnemic.Memory) -> None:
    for user in range(USERS):
        texts = [text(user * EACH + n) for n in range(EACH)]
        memory.scope("acme", f"user{user}").remember_many(texts)


def _bare(raw: psycopg.Connection) -> Callable[[int], object]:
    """Make the table that one would write by hand, and return what asks it about a user."""
    vector = mnemic.StaticEmbedder().embed_query("coffee in Oslo")
    width = len(vector)
    raw.execute("CREATE EXTENSION IF NOT EXISTS vector")
    raw.execute(f"CREATE TABLE bare (id bigint, user_id bigint, text text, embedding halfvec({width}))")
    with raw.cursor().copy("COPY bare FROM STDIN") as copy:
        pick = random.Random(3)
        vectors = [[round(pick.uniform(-1, 1), 3) for _ in range(width)] for _ in range(1000)]
        written = [f"[{','.join(map(str, one))}]" for one in vectors]
        for n in range(USERS * EACH):
            copy.write_row((n, n // EACH, text(n), written[n % len(written)]))
    raw.execute("CREATE INDEX bare_user ON bare (user_id)")
    asked = f"[{','.join(str(float(x)) for x in vector)}]"

    def ask(user: int) -> object:
        found = raw.execute(
            f"SELECT id, text FROM bare WHERE user_id = %s ORDER BY embedding <=> %s::halfvec({width}) LIMIT 5",
            (user, asked),
        )
        return found.fetchall()

    for user in range(10):
        ask(user)
    return ask


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
