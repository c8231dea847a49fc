"""`python -m benchmarks.peers.measure SYSTEM STEP FOLDER FILE COUNT`: one step of one system, as JSON.

The steps are processes of their own, so that what is asked for has come from the disk.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path

from .recall_set import Conversation, read
from .system import System

SYSTEMS = {
    "Mnemic": "ours:Mnemic",
    "Chroma": "chroma:Chroma",
    "LangGraph SqliteStore": "langgraph:LangGraph",
    "LlamaIndex VectorMemoryBlock": "llamaindex:LlamaIndex",
    "mem0, FAISS": "mem0:Mem0Faiss",
    "mem0, Qdrant": "mem0:Mem0Qdrant",
}
TIMED_ADDS = 300
K = 10


def load(name: str) -> type[System]:
    """Return the class of a system, whose library is imported only now."""
    module, _, attribute = SYSTEMS[name].partition(":")
    found: type[System] = getattr(import_module(f".{module}", __package__), attribute)
    return found


def add(system: System, conversations: Sequence[Conversation]) -> dict[str, float]:
    """Add the first turns, one at a time; return how many a second."""
    system.add("warm-up", conversations[0].turns[0])
    system.settle()
    turns = [(one.id, turn) for one in conversations for turn in one.turns][:TIMED_ADDS]
    start = time.perf_counter()
    for user, turn in turns:
        system.add(user, turn)
    system.settle()
    return {"adds_per_second": len(turns) / (time.perf_counter() - start)}


def fill(system: System, conversations: Sequence[Conversation]) -> dict[str, float]:
    """Add every turn, as fast as the library can."""
    for conversation in conversations:
        system.add_many(conversation.id, conversation.turns)
    return {}


def ask(system: System, conversations: Sequence[Conversation]) -> dict[str, float]:
    """Ask all questions; return the median milliseconds, and the mean share of the evidence found."""
    system.ask(conversations[0].id, conversations[0].questions[0].text, K)  # to warm up
    times, shares = [], []
    for conversation in conversations:
        for question in conversation.questions:
            start = time.perf_counter()
            found = system.ask(conversation.id, question.text, K)
            times.append(time.perf_counter() - start)
            shares.append(len(question.evidence & set(found[:K])) / len(question.evidence))
    return {"recall_ms": statistics.median(times) * 1000, "recall": statistics.mean(shares)}


STEPS = {"add": add, "fill": fill, "ask": ask}


def main(name: str, step: str, folder: str, file: str, count: str) -> None:
    """Open the system, take the step, and print what it gave."""
    conversations = read(Path(file), int(count))
    kind = load(name)
    system = kind(Path(folder), conversations)
    result = STEPS[step](system, conversations)
    system.close()
    print(json.dumps({"version": metadata.version(kind.package), "figures": result}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
