"""The cost of encryption: the same calls with and without a key, on a file and on PostgreSQL if one is given."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import mnemic

from .measuring import Result, in_turns, time_ratio

KEY = bytes(range(32))


def run(folder: Path) -> list[Result]:
    """Return what encryption adds to appends, facts, recall and reading; PG_URL adds PostgreSQL."""
    urls = {"SQLite": f"sqlite:///{folder}/{{}}.db?synchronous=normal"}
    if server := os.environ.get("PG_URL"):
        urls["PostgreSQL"] = f"{server}?schema=bench_{{}}"
    found: list[Result] = []
    for name, url in urls.items():
        with ExitStack() as stack:
            pair = [
                stack.enter_context(mnemic.open(url.format(kind), encryption_key=key))
                for kind, key in (("encrypted", KEY), ("plain", None))
            ]
            found += _compared(name, *pair)
    return found


def _compared(name: str, *pair: mnemic.Memory) -> list[Result]:
    scopes = [memory.scope("acme", "alice") for memory in pair]
    chats = [scope.session("monday") for scope in scopes]
    numbers = iter(range(10**9))
    for scope in scopes:
        scope.remember_many(f"{n}: Alice drinks green tea in Lisbon" for n in range(1_000))
        scope.recall("tea")
    works = {
        "append one message": ([lambda c=c: c.add("user", f"text {next(numbers)}") for c in chats], 50, 2.0),
        "first message of a session": (
            [lambda s=s: s.session(f"s{next(numbers)}").add("user", "text") for s in scopes],
            10,
            3.0,
        ),
        "remember one": ([lambda s=s: s.remember(f"Item {next(numbers)} is blue") for s in scopes], 10, 2.0),
        "add a fact": ([lambda s=s: s.facts.add(f"s{next(numbers)}", "is", "here") for s in scopes], 10, 2.0),
        "read 50 messages": ([lambda c=c: c.recent(50) for c in chats], 10, 2.0),
        "recall among 1,000 memories": ([lambda s=s: s.recall("What does she drink?") for s in scopes], 3, 1.5),
    }
    return [
        time_ratio(f"{what}, {name}", most, *in_turns(*work, calls=calls))
        for what, (work, calls, most) in works.items()
    ]
