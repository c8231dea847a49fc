"""Measure the size of the code, and the calls that one `chat.add` and one `recall` pass through.

python tools/measure_code.py            # lines and files of every room, and the calls on SQLite
python tools/measure_code.py --calls    # every call of an add, in order
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
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


def calls_of(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return file and function of every call within the package while `work` runs in this thread."""
    found: list[tuple[str, str]] = []
    root = str(SOURCE.resolve())

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(root):
                found.append((str(Path(code.co_filename).relative_to(root)), code.co_qualname))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def traced(url: str) -> dict[str, list[tuple[str, str]]]:
    """Return the calls of one `chat.add` and of one `recall`, in a memory that was used before."""
    import mnemic

    with mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        chat = alice.session("monday")
        for text in ("I moved to Lisbon in May.", "The flat has a view of the river."):
            chat.add("user", text)
        alice.recall("Where does she live?")
        return {
            "chat.add": calls_of(lambda: chat.add("user", "My sister visits in June.")),
            "recall": calls_of(lambda: alice.recall("Who visits in June?")),
        }


def files_in(calls: list[tuple[str, str]]) -> list[str]:
    """Return the files of these calls, in the order in which they are entered first."""
    return list(dict.fromkeys(file for file, _ in calls))


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="show every call of an add")
    options = parser.parse_args()
    for name, (files, lines) in rooms().items():
        print(f"{name:22} {files:4} files {lines:7,} lines")
    with tempfile.TemporaryDirectory() as folder:
        for what, calls in traced(f"sqlite:///{folder}/memory.db").items():
            print(f"{what} on SQLite: {len(calls)} calls in {len(files_in(calls))} files: {', '.join(files_in(calls))}")
            if options.calls and what == "chat.add":
                print(*(f"  {file}: {function}" for file, function in calls), sep="\n")


if __name__ == "__main__":
    main()
