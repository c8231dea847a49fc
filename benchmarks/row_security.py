"""What PostgreSQL's row-level security costs: calls of a restricted memory with and without it, in turns.

python -m benchmarks.row_security
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count

import mnemic
from servers import postgres

TENANTS, TEXTS = 200, 2000
"""How many tenants the store has, and how many texts the measured one."""
CALLS = 300


def filled(url: str) -> mnemic.Memory:
    """Fill a store, and return the memory of one tenant."""
    memory = mnemic.open(url)
    for n in range(TENANTS):
        memory.scope(f"t{n}").remember_many([f"text {m} of tenant {n}" for m in range(20)])
    mine = memory.restricted("mine")
    mine.scope("mine").remember_many([f"text {m} about topic {m % 50}" for m in range(TEXTS)])
    mine.scope("mine").remember("the one", id="k")
    return mine


def calls(memory: mnemic.Memory, numbers: count[int]) -> dict[str, Callable[[], object]]:
    """Return what is measured."""
    here = memory.scope("mine")
    return {
        "append a message": lambda: here.session("s").add("user", "hello"),
        "remember": lambda: here.remember("a new text", id=f"n{next(numbers)}"),
        "get by id": lambda: here.memories.get("k"),
        "recall (index in memory)": lambda: here.recall("topic 7", uses=False),
        f"list {TEXTS:,} memories": lambda: here.memories.list(),
    }


def main() -> None:
    """Print the time of each call without row-level security, and the ratio with it."""
    with postgres.confined_database() as plain, postgres.confined_database() as secured:
        memories = [filled(plain.partition("?")[0]), filled(secured)]
        ways = [calls(memory, count()) for memory in memories]
        for name in ways[0]:
            times: list[list[float]] = [[], []]
            for _ in range(20 if "list" in name else CALLS):
                for way, found in zip(ways, times, strict=True):
                    start = time.perf_counter()
                    way[name]()
                    found.append(time.perf_counter() - start)
            # Of other work on the machine, the fastest fifth shows least.
            without, with_it = (statistics.quantiles(found, n=5)[0] for found in times)
            print(f"{name:26} {1000 * without:8.2f} ms  {with_it / without:.2f}×")


if __name__ == "__main__":
    main()
