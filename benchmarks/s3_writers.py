"""Writers of different sessions on S3 at the same time: sessions of one tenant against sessions of as many tenants.

Each writer has its own store and connections, as if it were a process of its own. With `--against CHECKOUT`, the code
of another checkout does the same, in turns:

    python -m benchmarks.s3_writers [--against ../base]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mnemic

WRITERS = 50
MESSAGES = 6
"""How many messages each writer adds, one after the other."""
ROUNDS = 3
HERE = Path(__file__).parent.parent


async def measure(url: str, tenants: bool) -> dict[str, float]:
    """Let all writers add their messages; return the writes a second, and the requests for each."""
    from mnemic.backends.aws import Requests

    requests = 0
    send = Requests.send

    async def counted(self: Requests, operation: str, **parameters: Any) -> Any:
        nonlocal requests
        requests += 1
        return await send(self, operation, **parameters)

    async with AsyncExitStack() as stack:
        chats = []
        for n in range(WRITERS):
            memory = await stack.enter_async_context(mnemic.open_async(f"{url}&timeout=60", embedder=None))
            chats.append(memory.scope(f"tenant-{n}" if tenants else "acme").session(f"session-{n}"))
            await chats[-1].add("user", "the first message")
        Requests.send = counted  # type: ignore[method-assign]

        async def write(n: int) -> None:
            for m in range(MESSAGES):
                await chats[n].add("user", f"message {m} of writer {n}")

        start = time.perf_counter()
        await asyncio.gather(*map(write, range(WRITERS)))
        seconds = time.perf_counter() - start
        Requests.send = send  # type: ignore[method-assign]
        for chat in chats:
            assert len(await chat.messages()) == MESSAGES + 1
    writes = WRITERS * MESSAGES
    return {"rate": writes / seconds, "requests": requests / writes}


def main(against: Path | None) -> None:
    """Measure in turns, each time in a new process, and print the medians."""
    from servers.aws import empty_prefix

    checkouts = {"this code": HERE, **({"the other": against} if against is not None else {})}
    cases = [(name, tenants) for name in checkouts for tenants in (True, False)]
    found: dict[tuple[str, bool], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for name, tenants in cases:
            with empty_prefix() as url:
                environment = {**os.environ, "PYTHONPATH": f"{checkouts[name].resolve() / 'src'}"}
                command = [sys.executable, "-m", "benchmarks.s3_writers", "--measure", url]
                command += ["--tenants"] if tenants else []
                answer = subprocess.run(command, cwd=HERE, env=environment, check=True, stdout=subprocess.PIPE)
                found[name, tenants].append(json.loads(answer.stdout))
    for name in checkouts:
        rates = {}
        for tenants in (True, False):
            rates[tenants] = statistics.median(one["rate"] for one in found[name, tenants])
            requests = statistics.median(one["requests"] for one in found[name, tenants])
            what = f"{WRITERS} tenants" if tenants else f"{WRITERS} sessions of one tenant"
            print(f"{name}: {what}: {rates[tenants]:,.0f} writes a second, {requests:.2f} requests each")
        print(f"{name}: sessions of one tenant reach {rates[False] / rates[True]:.0%} of the rate of tenants")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of the project")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--tenants", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asyncio.run(measure(options.measure, options.tenants))))
    else:
        main(options.against)
