"""`python -m benchmarks.peers [FILE] [--conversations N]`: print Mnemic and its peers as one table."""

from __future__ import annotations

import argparse
import sys

from . import recall_set
from .comparison import CONVERSATIONS, table


def main() -> int:
    """Run the comparison; return 2 without a recall set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("file", nargs="?", help=f"a recall set (JSONL); else ${recall_set.VARIABLE}")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS, help="how many of it to use")
    given = parser.parse_args()
    try:
        source = recall_set.find(given.file)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(source, given.conversations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
