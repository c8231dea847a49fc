"""The story of `mnemic demo`: two processes on one file, `python -m mnemic.cli.demo_story talk|remember URL`."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from .output import count

if TYPE_CHECKING:
    from ..sync import Scope

COLOR = "MNEMIC_DEMO_COLOR"
"""The environment variable that allows colors."""
QUESTION = "What is her sister allergic to?"
"""Question that the dashboard is opened with."""
SCOPE = "acme/alice"

CONVERSATIONS: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("alice", 96, "first-trip", (
        "Hello! I am planning a weekend in Ghent. Can you find a quiet hotel?",
        "The Canal House is quiet and central. Shall I hold a room for two nights?",
        "Please. I always travel by train, flying makes me anxious.",
        "Then I suggest the 08:12, which needs no change.",
    )),
    ("alice", 61, "passport", (
        "Remind me: when does my passport expire?",
        "In August. An appointment for a new one takes about six weeks.",
        "Then let us book one in June. Mornings are best for me.",
        "Noted: an appointment in June, in the morning.",
    )),
    ("alice", 33, "moving", (
        "I have moved from Rome to Oslo! My new address is Storgata 12.",
        "Congratulations! I have changed the address for invoices and tickets.",
        "Thanks. My sister Ines visits me at Easter.",
        "Shall I look for something to do for the two of you?",
        "A walk by the fjord would be nice, nothing with boats.",
    )),
    ("bob", 48, "lost-parcel", (
        "Parcel 4410 has not arrived. It should have been here on Monday.",
        "It was last seen in Lyon and counts as lost. A new one is on its way.",
        "Leave it with my neighbor, Mrs. Duarte, please.",
        "Noted: parcels go to Mrs. Duarte.",
    )),
    ("bob", 12, "refund", (
        "Was the refund for parcel 4410 paid?",
        "Yes, 40 euros, on Tuesday.",
        "Good. Write to me next time, I do not like phone calls.",
    )),
)  # fmt: skip
"""Users, days ago, names, and what user and assistant said in turn."""
MEMORIES: tuple[tuple[str, int, str, float, bool], ...] = (
    ("alice", 95, "Alice wants quiet hotels", 3, False),
    ("alice", 94, "Flying makes Alice anxious", 6, False),
    ("alice", 90, "The password of the wifi in Ghent was canal28", 0.5, False),
    ("alice", 60, "Alice's passport expires in August", 8, True),
    ("alice", 59, "Alice prefers appointments in the morning", 4, False),
    ("alice", 32, "Alice does not want tours by boat", 2, False),
    ("bob", 47, "Bob's parcels go to his neighbor, Mrs. Duarte", 7, False),
    ("bob", 11, "Bob dislikes phone calls; write to him", 5, True),
)
"""Users, days ago, texts, importance, and whether they are pinned."""
FACTS: tuple[tuple[str, int, str, str, str], ...] = (
    ("alice", 120, "Alice", "lives_in", "Rome"),
    ("alice", 118, "Alice", "works_for", "Initech"),
    ("alice", 115, "Alice", "sister_of", "Ines"),
    ("alice", 110, "Ines", "lives_in", "Turin"),
    ("alice", 100, "Ines", "plays", "cello"),
    ("alice", 95, "Alice", "stayed_at", "Canal House"),
    ("alice", 95, "Canal House", "located_in", "Ghent"),
    ("alice", 60, "Alice", "works_for", "Globex"),
    ("alice", 58, "Globex", "based_in", "Oslo"),
    ("alice", 40, "Ines", "lives_in", "Lisbon"),
    ("alice", 33, "Alice", "owns", "bicycle"),
    ("bob", 80, "Bob", "lives_in", "Lyon"),
    ("bob", 48, "Bob", "neighbor_of", "Mrs. Duarte"),
)
"""Users, days ago, subjects, predicates and objects; one is true at a time of where somebody lives and works."""
NOTES: tuple[tuple[str, int, str, object, str], ...] = (
    ("alice", 33, "address", {"street": "Storgata 12", "city": "Oslo"}, "Where invoices go"),
    ("alice", 61, "plans/passport", ["book an appointment in June", "new photo"], "What is left to do"),
    ("alice", 20, "plans/easter", "A walk by the fjord with Ines. Nothing with boats.", "When her sister visits"),
    ("bob", 47, "delivery", {"neighbor": "Mrs. Duarte", "floor": 2}, "How parcels reach him"),
)


def paint(text: str, code: str) -> str:
    """Return text in a color, where the terminal allows it."""
    return f"\x1b[{code}m{text}\x1b[0m" if os.environ.get(COLOR) else text


def title(text: str) -> None:
    """Print a heading."""
    click.echo(f"\n{paint('●', '35')} {paint(text, '1')}")


def line(label: str, text: str, code: str = "36") -> None:
    """Print a label and what belongs to it."""
    click.echo(f"  {paint(f'{label:<10}', code)} {text}")


def talk(url: str) -> None:
    """Hold a conversation, keep notes, remember facts."""
    from ..api import Message, open

    title(f"Process {os.getpid()} talks, and goes away")
    moment = [datetime.now(UTC)]
    with open(url, audit=True, clock=lambda: moment[0]) as memory, memory.acting(actor="assistant"):
        now = moment[0]
        users = {name: memory.scope("acme", name) for name in ("alice", "bob")}
        for days in range(120, 0, -1):
            moment[0] = now - timedelta(days=days)
            live_through(users, days, moment)
        moment[0] = now
        told = (CONVERSATIONS, "earlier conversation"), (MEMORIES, "memory"), (FACTS, "fact"), (NOTES, "note")
        nouns = [count(len(rows), noun, "memories" if noun == "memory" else None) for rows, noun in told]
        line("before", f"{', '.join(nouns[:-1])} and {nouns[-1]}, over four months", "33")
        alice = users["alice"]
        chat = alice.session("monday", max_tokens=2_000)
        chat.set_system("You are a helpful travel assistant.")
        for message in (
            Message("user", "Hi, it's Alice. I'm off to Lisbon in May, to see my sister."),
            Message("assistant", "Lovely! Shall I look for somewhere to stay?"),
            Message("user", "Yes, near the river. And no seafood: my sister is allergic to shellfish."),
        ):
            chat.add(message)
            line(message.role, str(message.content), "36" if message.role == "user" else "32")
        note = {"unit": "celsius", "budget": 120}
        alice.notes.write("preferences", note, description="How Alice likes things")
        line("note", f"preferences = {note}", "33")
        text = "Alice prefers trains to planes"
        alice.remember(text, importance=3, source="monday")
        line("remember", text, "33")
        alice.facts.add("Alice", "lives_in", "Oslo", single=True, source="moving")
        alice.facts.add("Ines", "allergic_to", "shellfish", source="monday")
        line("facts", "Alice lives_in Oslo, no longer Rome; Ines allergic_to shellfish", "33")


def live_through(users: dict[str, Scope], days: int, moment: list[datetime]) -> None:
    """Write what happened so many days ago; the clock is at `moment`."""
    for user, _, name, said in [one for one in CONVERSATIONS if one[1] == days]:
        chat = users[user].session(name)
        for n, text in enumerate(said):
            chat.add("assistant" if n % 2 else "user", text)
            moment[0] += timedelta(seconds=40)
    for user, _, text, importance, pinned in [one for one in MEMORIES if one[1] == days]:
        users[user].remember(text, importance=importance, pinned=pinned)
    for user, _, subject, predicate, object in [one for one in FACTS if one[1] == days]:
        users[user].facts.add(subject, predicate, object, single=predicate in ("lives_in", "works_for"), confidence=0.9)
    for user, _, key, value, description in [one for one in NOTES if one[1] == days]:
        users[user].notes.write(key, value, description=description)


def remember(url: str) -> None:
    """Open the file again and ask."""
    from ..api import open

    title(f"Process {os.getpid()} opens the same file, and remembers")
    with open(url) as memory:
        alice = memory.scope("acme", "alice")
        for question in (QUESTION, "Where is she going in May?", "train or plane?"):
            best = alice.recall(question, k=1)[0]
            line("asked", question)
            line("", f"{best.text}  {paint(f'{best.kind}, {best.score:.1f}', '2')}")
        note = next(note for note in alice.notes.list() if note.key == "preferences")
        line("notes", f"{note.key}: {note.description}, {note.size} bytes", "33")
        now, past = alice.facts.ask("Alice", "lives_in"), alice.facts.ask("Alice", "lives_in", history=True)
        line("facts", f"Alice lives_in {now[0].object}; before that {past[0].object}", "33")
        window = alice.session("monday").window(max_tokens=60)
        line("window", f"{len(window)} of 4 messages fit 60 tokens, the system message always in", "33")


if __name__ == "__main__":
    {"talk": talk, "remember": remember}[sys.argv[1]](sys.argv[2])
