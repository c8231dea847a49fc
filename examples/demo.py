"""Two processes, one after the other, on one file: the first talks, the second remembers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mnemic
from mnemic import Message

COLOR = "MNEMIC_DEMO_COLOR"


def paint(text: str, code: str) -> str:
    """Return text in a color, where the terminal allows it."""
    return f"\x1b[{code}m{text}\x1b[0m" if os.environ.get(COLOR) else text


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n{paint('●', '35')} {paint(text, '1')}")


def line(label: str, text: str, code: str = "36") -> None:
    """Print a label and what belongs to it."""
    print(f"  {paint(f'{label:<10}', code)} {text}")


def first(url: str) -> None:
    """Hold a conversation, keep notes, remember facts."""
    title(f"Process {os.getpid()} talks, and goes away")
    with mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday", max_tokens=2_000)
        chat.set_system("You are a helpful travel assistant.")
        for message in (
            Message("user", "Hi, I'm Alice. I'm off to Lisbon in May with my sister."),
            Message("assistant", "Lovely! Shall I look for somewhere to stay?"),
            Message("user", "Yes, near the river. And no seafood: my sister is allergic to shellfish."),
        ):
            chat.add(message)
            line(message.role, str(message.content), "36" if message.role == "user" else "32")
        note = {"unit": "celsius", "budget": 120}
        alice.notes.write("preferences", note, description="How Alice likes things")
        line("note", f"preferences = {note}", "33")
        fact = "Alice prefers trains to planes"
        alice.remember(fact, importance=3, source="monday")
        line("remember", fact, "33")
        for city in ("Rome", "Oslo"):
            alice.facts.add("Alice", "lives_in", city, single=True)
        line("facts", "Alice lives_in Rome, then Oslo", "33")


def second(url: str) -> None:
    """Open the file again and ask."""
    title(f"Process {os.getpid()} opens the same file, and remembers")
    with mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        for question in ("What is her sister allergic to?", "Where is she going in May?", "train or plane?"):
            best = alice.recall(question, k=1)[0]
            line("asked", question)
            line("", f"{best.text}  {paint(f'{best.kind}, {best.score:.1f}', '2')}")
        (entry,) = alice.notes.list()
        line("notes", f"{entry.key}: {entry.description}, {entry.size} bytes", "33")
        line("", f"unit = {alice.notes.read('preferences')['unit']}")
        now, past = alice.facts.ask("Alice", "lives_in"), alice.facts.ask("Alice", history=True)
        line("facts", f"Alice lives_in {now[0].object}; before that {past[0].object}", "33")
        window = alice.session("monday").window(max_tokens=60)
        line("window", f"{len(window)} of 4 messages fit 60 tokens, the system message always in", "33")


def main() -> None:
    """Run both in processes of their own."""
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    environment = {**os.environ, COLOR: "1" if color else ""}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.db"
        for part in ("first", "second"):
            command = [sys.executable, __file__, part, f"sqlite:///{path}"]
            subprocess.run(command, env=environment, check=True)
        size = path.stat().st_size / 1024
    os.environ[COLOR] = environment[COLOR]
    print(f"\n  {paint(f'One file of {size:.0f} KB; no key, no server, no download.', '2')}\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        {"first": first, "second": second}[sys.argv[1]](sys.argv[2])
    else:
        main()
