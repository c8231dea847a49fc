"""The cost of the audit log: the same appends without one, with one in the same store, and in another store."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mnemic

from .measuring import Result, in_turns, per_call, time_ratio

ENTRIES = 5_000


def run(folder: Path) -> list[Result]:
    """Return what the audit log adds to appends, and what verifying an entry takes, against appending it."""
    url = f"sqlite:///{folder}/{{}}.db?synchronous=normal"
    audits: dict[str, Any] = {"plain": None, "same": True, "other": url.format("log")}
    numbers = iter(range(10**9))
    with ExitStack() as stack:
        memories = {
            name: stack.enter_context(mnemic.open(url.format(name), audit=audit)) for name, audit in audits.items()
        }
        chats = {name: memory.scope("acme", "alice").session("monday") for name, memory in memories.items()}

        def add(name: str) -> object:
            return chats[name].add("user", f"text {next(numbers)}")

        def begin(name: str) -> object:
            return memories[name].scope("acme").session(f"s{next(numbers)}").add("user", "text")

        found = [
            time_ratio(what, most, *in_turns(partial(work, name), partial(work, "plain"), calls=calls))
            for what, name, work, calls, most in (
                ("append one message, log in the same store", "same", add, 50, 2.5),
                ("append one message, log in another store", "other", add, 50, 3.5),
                ("first message of a session, log in the same store", "same", begin, 10, 5.0),
            )
        ]
        append = per_call(lambda: add("same"), ENTRIES)
        entries = memories["same"].audit_verify().entries
        verify = per_call(memories["same"].audit_verify, 1) / entries
    return [*found, time_ratio(f"verify, per entry of {entries:,}, against an append", 1.0, verify, append)]
