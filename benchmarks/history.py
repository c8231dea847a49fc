"""The cost of a history: the same calls on stores that keep earlier versions, and that do not."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path

import mnemic

from .embedded import text
from .measuring import Result, Work, in_turns, time_ratio

MONTH = timedelta(days=30)


def run(folder: Path) -> list[Result]:
    """Return how much longer each call takes with a history."""
    urls = [f"sqlite:///{folder}/{name}.db?synchronous=normal" for name in ("kept", "plain")]
    numbers = count()
    with mnemic.open(urls[0], history=MONTH, embedder=None) as kept, mnemic.open(urls[1], embedder=None) as plain:
        works: dict[str, list[Work]] = {}
        for memory in (kept, plain):
            alice = memory.scope("acme", "alice")
            chat, short = alice.session("monday"), alice.session("short", max_messages=50, overflow="drop")

            def append(chat: mnemic.Session = chat) -> object:
                return chat.add("user", text(next(numbers)))

            def evict(chat: mnemic.Session = short) -> object:
                return chat.add("user", text(next(numbers)))

            def remember(alice: mnemic.Scope = alice) -> object:
                return alice.remember(text(next(numbers)))

            def update(alice: mnemic.Scope = alice) -> object:
                return alice.notes.write("note", text(next(numbers)))

            def clear(alice: mnemic.Scope = alice) -> object:
                chat = alice.session("cleared")
                chat.add_many([{"role": "user", "content": text(n)} for n in range(1000)])
                chat.clear()
                return chat

            named: dict[str, Work] = {
                "append a message": append,
                "remember a text": remember,
                "append to a full session, which drops the oldest": evict,
                "write a note again": update,
                "add 1,000 messages and clear the session": clear,
            }
            for name, work in named.items():
                works.setdefault(name, []).append(work)
        most: dict[str, float] = {"append a message": 1.1, "remember a text": 1.1}
        results = []
        for name, (ours, baseline) in works.items():
            calls = 1 if "1,000" in name else 100
            times = in_turns(ours, baseline, calls=calls, rounds=5 if calls == 1 else 15)
            results.append(time_ratio(f"{name}, with a history", most.get(name), *times))
        return results
