"""The embedded core against bare `sqlite3`: appends, batches, reads, limits, imports, processes, kills."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import mnemic
from mnemic import Message
from mnemic.backends.sql.schema import COLUMNS, RECORDS
from mnemic.checks import new_id

from .measuring import Result, in_turns, rate_share, time_ratio

SENTENCES = [
    "What is the weather in Paris today? I'd like to know whether I should bring an umbrella.",
    "My sister visits next week, and she is allergic to peanuts, so the cake must not have any.",
    "I moved from Rome to Oslo in March and still have not found a good place for coffee.",
    "Could you remind me to call the dentist on Thursday, before the meeting with the new client?",
]
RUN_APPENDS = textwrap.dedent("""
    import sys
    import mnemic
    with mnemic.open(sys.argv[1]) as memory:
        chat = memory.scope("acme").session("shared")
        for n in range(int(sys.argv[3])):
            chat.add("user", f"{sys.argv[2]}-{n}")
            print(n, flush=True)
""")


def text(n: int) -> str:
    """Return the text of a message, none quite like another."""
    return f"{SENTENCES[n % len(SENTENCES)]} ({n})"


class Bare:
    """The same row and a full-text entry, by hand: what there is to be compared with."""

    def __init__(self, path: Path, *, full_text: bool) -> None:
        self.raw = sqlite3.connect(path, isolation_level=None)
        self.raw.execute("PRAGMA journal_mode = WAL")
        self.raw.execute("PRAGMA synchronous = NORMAL")
        self.raw.execute(
            "CREATE TABLE records (stream_id INTEGER NOT NULL, seq INTEGER NOT NULL, key TEXT NOT NULL, "
            "version INTEGER NOT NULL, text TEXT, title TEXT, data TEXT, meta TEXT, labels TEXT, "
            "importance REAL, weight INTEGER NOT NULL, pinned INTEGER NOT NULL, created INTEGER NOT NULL, "
            "updated INTEGER NOT NULL, expires INTEGER, valid_from INTEGER, valid_to INTEGER, "
            "PRIMARY KEY (stream_id, seq), UNIQUE (stream_id, key))"
        )
        self.raw.execute("CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter')")
        self.full_text = full_text
        self.numbers = count(1)
        self.insert = f"INSERT INTO records VALUES ({', '.join('?' * len(COLUMNS[RECORDS]))})"

    def row(self, n: int) -> tuple[object, ...]:
        """Return the row that Mnemic writes for the same message."""
        now = int(time.time() * 1_000_000)
        role = '{"role":"user"}'
        return (1, n, new_id(), n, text(n), None, role, None, None, None, 24, False, now, now, None, None, None)

    def append(self) -> None:
        """Write one message in a transaction of its own."""
        n = next(self.numbers)
        self.raw.execute("BEGIN IMMEDIATE")
        self.raw.execute(self.insert, self.row(n))
        if self.full_text:
            self.raw.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (n, text(n)))
        self.raw.execute("COMMIT")

    def batch(self, size: int) -> None:
        """Write many messages in one transaction."""
        numbers = [next(self.numbers) for _ in range(size)]
        self.raw.execute("BEGIN IMMEDIATE")
        self.raw.executemany(self.insert, [self.row(n) for n in numbers])
        if self.full_text:
            rows = [(n, text(n)) for n in numbers]
            self.raw.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
        self.raw.execute("COMMIT")


@contextmanager
def session(path: Path, **limits: int) -> Iterator[mnemic.Session]:
    """Open a session in a new file, as relaxed as the bare one."""
    with mnemic.open(f"sqlite:///{path}?synchronous=normal") as memory:
        yield memory.scope("acme", "alice").session("chat", **limits)  # type: ignore[arg-type]


def _add_next(chat: mnemic.Session, numbers: Iterator[int]) -> None:
    chat.add("user", text(next(numbers)))


def _add_thousand(chat: mnemic.Session, numbers: Iterator[int]) -> None:
    chat.add_many([Message("user", text(next(numbers))) for _ in range(1000)])


def appends(folder: Path) -> list[Result]:
    """Measure one message at a time, and a thousand."""
    results = []
    for full_text, least_one, least_many in ((True, 0.4, 0.5), (False, None, None)):
        bare = Bare(folder / f"bare-{full_text}.db", full_text=full_text)
        against = "bare row and full-text entry" if full_text else "bare row alone"
        with session(folder / f"ours-{full_text}.db") as chat:
            numbers = count()
            one, many = partial(_add_next, chat, numbers), partial(_add_thousand, chat, numbers)
            ours, theirs = in_turns(one, bare.append, calls=300)
            results.append(rate_share(f"append one message, against a {against}", least_one, ours, theirs))
            ours, theirs = in_turns(many, partial(bare.batch, 1000), calls=1)
            what = f"append 1,000 messages at once, against `executemany` of a {against}"
            results.append(rate_share(what, least_many, ours / 1000, theirs / 1000))
        bare.raw.close()
    return results


def last_ten(folder: Path, messages: int = 1_000_000) -> list[Result]:
    """Measure the last ten messages of a long session."""
    path = folder / "long.db"
    with session(path) as chat:
        for start in range(0, messages, 10_000):
            chat.add_many([Message("user", text(n)) for n in range(start, start + 10_000)])
        raw = sqlite3.connect(path)
        columns = ", ".join(COLUMNS[RECORDS])
        (stream,) = raw.execute("SELECT id FROM mnemic_streams ORDER BY count DESC").fetchone()
        select = f"SELECT {columns} FROM mnemic_records WHERE stream_id = {stream} ORDER BY seq DESC LIMIT 10"
        ours, bare = in_turns(lambda: chat.recent(10), lambda: raw.execute(select).fetchall(), calls=500, rounds=21)
        assert [m.text for m in chat.recent(10)] == [text(n) for n in range(messages - 10, messages)]
        raw.close()
    return [time_ratio(f"last 10 of {messages:,} messages, against the bare SELECT", 3, ours, bare)]


def limited(folder: Path) -> list[Result]:
    """Measure what an add costs when each one makes the oldest message go, in a short and a long log."""
    sessions: list[tuple[mnemic.Memory, Callable[[], object]]] = []
    for size in (100_000, 1_000):
        memory = mnemic.open(f"sqlite:///{folder / f'limited-{size}.db'}?synchronous=normal")
        space = memory.scope("acme", "alice")
        space.session("chat").add_many([Message("user", text(n)) for n in range(size)])
        info = space.session("chat").info()
        assert info is not None
        chat = space.session("chat", max_tokens=info.tokens)
        sessions.append((memory, partial(_add_next, chat, count(size))))
    long, short = in_turns(sessions[0][1], sessions[1][1], calls=200)
    for memory, _ in sessions:
        memory.close()
    what = "add to a full, token-limited session of 100,000 messages, against one of 1,000"
    return [time_ratio(what, 1.5, long, short)]


def imports() -> list[Result]:
    """Measure what importing the package costs, against pydantic."""

    def run(program: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True)

    empty = in_turns(run("pass"), run("pass"), calls=3)[0]
    ours, theirs = in_turns(run("import mnemic"), run("import pydantic"), calls=3)
    used, theirs_used = in_turns(run("import mnemic; mnemic.open"), run("from pydantic import BaseModel"), calls=3)
    return [
        time_ratio("`import mnemic`, against `import pydantic`", 1.5, ours - empty, theirs - empty),
        time_ratio(
            "with the first public name used, against `from pydantic import BaseModel`",
            1.5,
            used - empty,
            theirs_used - empty,
        ),
    ]


def processes(folder: Path, writers: int = 8, each: int = 1000) -> list[Result]:
    """Let several processes append to one session, and count what is there and in which order."""
    url = f"sqlite:///{folder / 'shared.db'}"
    command = [sys.executable, "-c", RUN_APPENDS, url]
    running = [subprocess.Popen([*command, str(n), str(each)], stdout=subprocess.DEVNULL) for n in range(writers)]
    codes = [process.wait() for process in running]
    with mnemic.open(url) as memory:
        texts = [message.text or "" for message in memory.scope("acme").session("shared").messages()]
    ordered = all(
        [t for t in texts if t.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(each)] for n in range(writers)
    )
    holds = codes == [0] * writers and len(texts) == writers * each and ordered
    reached = f"{len(texts):,} there, order {'kept' if ordered else 'lost'}, {sum(map(bool, codes))} errors"
    what = f"{writers} processes append {each:,} messages each to one session"
    return [Result(what, f"{writers * each:,} there, each writer's order kept", reached, holds)]


def kills(folder: Path, times: int = 50) -> list[Result]:
    """Kill a process that appends, at random moments, and look for what it had acknowledged."""
    url = f"sqlite:///{folder / 'killed.db'}"
    rng = random.Random(11)
    acknowledged: set[str] = set()
    for round_number in range(times):
        command = [sys.executable, "-c", RUN_APPENDS, url, str(round_number), "1000000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        acknowledged.add(f"{round_number}-0")
        time.sleep(rng.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        lines = process.stdout.read().split("\n")[:-1]
        acknowledged |= {f"{round_number}-{n}" for n in lines}
        process.wait()
        process.stdout.close()
    with mnemic.open(url) as memory:
        texts = [message.text or "" for message in memory.scope("acme").session("shared").messages()]
    order = [[t for t in texts if t.startswith(f"{n}-")] for n in range(times)]
    ordered = all(own == [f"{n}-{i}" for i in range(len(own))] for n, own in enumerate(order))
    lost = len(acknowledged - set(texts))
    reached = f"{len(acknowledged):,} acknowledged, {lost} lost, order {'kept' if ordered else 'lost'}"
    return [Result(f"kill -9 during appends, {times} times", "nothing lost", reached, not lost and ordered)]


def run(folder: Path) -> list[Result]:
    """Run all of them."""
    return [*appends(folder), *last_ten(folder), *limited(folder), *imports(), *processes(folder), *kills(folder)]
