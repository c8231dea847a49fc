"""mem0's own clients for tests, for Python and for Node, each in a process of its own.

As a program, it makes the calls that it reads, a line of JSON each, with mem0's client for Python.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

INSTALLED = Path(sys.prefix) / "mem0"
"""What `make setup` installs by tests/mem0_requirements.txt."""
PACKAGES = Path(sys.prefix) / "npm" / "node_modules"
"""What `make setup` installs by tests/package.json."""
NODE_SCRIPT = """
const { MemoryClient } = require("mem0ai");
const client = new MemoryClient({ apiKey: process.argv[2], host: process.argv[1] });
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  const { name, args } = JSON.parse(line);
  let answer;
  try { answer = { result: await client[name](...args) }; }
  catch (error) { answer = { error: error.constructor.name, said: error.message }; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""


class ClientError(Exception):
    """An error that the client raised: its class and message."""


class Client:
    """Makes calls of a client that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"name": name, "args": args, "kwargs": kwargs}) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            if "error" in answer:
                raise ClientError(f"{answer['error']}: {answer['said']}")
            return answer.get("result")

        return call


@contextmanager
def running(*command: str, **variables: str) -> Iterator[Client]:
    """Start a client as a process; end it after use."""
    quiet = {"MEM0_TELEMETRY": "false"}
    environment = {**os.environ, **quiet, **variables}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Client(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(240)


def python_client(host: str, folder: Path, key: str = "none", *, kind: str = "MemoryClient") -> Any:
    """Run mem0's client for Python, which keeps its own settings in a folder."""
    path = os.pathsep.join((str(INSTALLED), os.environ.get("PYTHONPATH", "")))
    return running(sys.executable, __file__, host, key, kind, PYTHONPATH=path, MEM0_DIR=str(folder))


def node_client(host: str, node: str, key: str = "none") -> Any:
    """Run mem0's client for Node."""
    return running(node, "-e", NODE_SCRIPT, host, key, NODE_PATH=str(PACKAGES))


async def serve(host: str, key: str, kind: str) -> None:
    mem0 = import_module("mem0")
    client: Any = None
    for line in sys.stdin:
        call = json.loads(line)
        try:
            client = client or getattr(mem0, kind)(api_key=key, host=host)
            result = getattr(client, call["name"])(*call["args"], **call["kwargs"])
            answer = {"result": await result if inspect.isawaitable(result) else result}
        except Exception as error:
            answer = {"error": type(error).__name__, "said": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
