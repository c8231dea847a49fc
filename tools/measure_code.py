"""Measure the size of the code, and the calls that one `chat.add` and one `recall` pass through.

python tools/measure_code.py            # lines and files of every room, and the calls on SQLite
python tools/measure_code.py --calls    # every call of an add, in order
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SOURCE = Path(__file__).parent.parent / "src" / "mnemic"


def rooms() -> dict[str, tuple[int, int]]:
    """Return the number of files and of lines of each folder of the package."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        within = path.relative_to(SOURCE)
        names = {"total", within.parts[0] if len(within.parts) > 1 else "(top)"}
        if within.parts[0] == "backends" and len(within.parts) > 2:
            names.add(f"backends/{within.parts[1]}")
        count = len(path.read_text().splitlines())
        for name in names:
            files[name] += 1
            lines[name] += count
    return {name: (files[name], lines[name]) for name in sorted(files, key=lambda name: (name == "total", name))}


@contextmanager
def calls() -> Iterator[list[tuple[str, str]]]:
    """Give a list that gets file and function of every call within the package, in this thread."""
    found: list[tuple[str, str]] = []
    root = str(SOURCE.resolve())

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # A comprehension is not a call that a reader follows, and from Python 3.12 on none at all.
        if event == "call" and code.co_filename.startswith(root) and not code.co_name.endswith(("comp>", "genexpr>")):
            found.append((str(Path(code.co_filename).relative_to(root)), code.co_qualname))

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def calls_of(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return file and function of every call within the package while `work` runs in this thread."""
    with calls() as found:
        work()
    return found


TEXTS = ("I moved to Lisbon in May.", "The flat has a view of the river.")


def traced(url: str) -> dict[str, list[tuple[str, str]]]:
    """Return the calls of one `chat.add` and of one `recall`, in a memory that was used before."""
    import mnemic

    with mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday")
        for text in TEXTS:
            chat.add("user", text)
        alice.recall("Where does she live?")
        return {
            "chat.add": calls_of(lambda: chat.add("user", "My sister visits in June.")),
            "recall": calls_of(lambda: alice.recall("Who visits in June?")),
        }


def traced_async(url: str) -> dict[str, list[tuple[str, str]]]:
    """Return the same for the async API, of a back-end that works on the event loop."""
    import asyncio

    import mnemic

    async def work() -> dict[str, list[tuple[str, str]]]:
        async with mnemic.open_async(url) as memory:
            alice = memory.scope("acme", "alice")
            chat = alice.session("monday")
            for text in TEXTS:
                await chat.add("user", text)
            await alice.recall("Where does she live?")
            return {
                "chat.add": await awaited(chat.add("user", "My sister visits in June.")),
                "recall": await awaited(alice.recall("Who visits in June?")),
            }

    async def awaited(call: Awaitable[object]) -> list[tuple[str, str]]:
        with calls() as found:
            await call
        return found

    return asyncio.run(work())


def files_in(calls: list[tuple[str, str]]) -> list[str]:
    """Return the files of these calls, in the order in which they are entered first."""
    return list(dict.fromkeys(file for file, _ in calls))


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="show every call of an add")
    parser.add_argument("--trace", metavar="URL", help="print, as JSON, the calls on this store by the sync API")
    parser.add_argument("--trace-async", metavar="URL", help="the same by the async API")
    options = parser.parse_args()
    if options.trace or options.trace_async:
        print(json.dumps(traced(options.trace) if options.trace else traced_async(options.trace_async)))
        return
    for name, (files, lines) in rooms().items():
        print(f"{name:22} {files:4} files {lines:7,} lines")
    with tempfile.TemporaryDirectory() as folder:
        for what, found in traced(f"sqlite:///{folder}/memory.db").items():
            print(f"{what} on SQLite: {len(found)} calls in {len(files_in(found))} files: {', '.join(files_in(found))}")
            if options.calls and what == "chat.add":
                print(*(f"  {file}: {function}" for file, function in found), sep="\n")


if __name__ == "__main__":
    main()
