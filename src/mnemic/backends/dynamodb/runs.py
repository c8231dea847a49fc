"""Compact ranges of the seqs that may exist in a stream, stored with the head where there is no index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST = 200
"""Maximum number of ranges; beyond it the narrowest gaps are closed."""

Runs = list[tuple[int, int]]
"""First and last seq of each range, in order."""


def parse(text: str) -> Runs:
    """Parse ranges."""
    pairs = (run.partition("-") for run in text.split(",") if run)
    return [(int(first), int(last or first)) for first, _, last in pairs]


def text(runs: Runs) -> str:
    """Format ranges, such as `1-40,43`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def change(runs: Runs, added: Iterable[int], removed: Iterable[int]) -> Runs:
    """Return ranges without some seqs and with others, which are newer than all existing ones."""
    gone = sorted(set(removed))
    kept: Runs = []
    at = 0
    for first, last in runs:
        while at < len(gone) and gone[at] < first:
            at += 1
        while at < len(gone) and gone[at] <= last:
            if gone[at] > first:
                kept.append((first, gone[at] - 1))
            first = gone[at] + 1
            at += 1
        if first <= last:
            kept.append((first, last))
    for seq in sorted(added):
        if kept and kept[-1][1] == seq - 1:
            kept[-1] = (kept[-1][0], seq)
        elif not kept or kept[-1][1] < seq:
            kept.append((seq, seq))
    return _fewer(kept)


def seqs(runs: Runs, after: int | None, *, reverse: bool) -> Iterator[int]:
    """Yield the seqs of ranges in order or in reverse, after a start."""
    for first, last in reversed(runs) if reverse else runs:
        if reverse:
            yield from range(last if after is None else min(last, after - 1), first - 1, -1)
        else:
            yield from range(first if after is None else max(first, after + 1), last + 1)


def _fewer(runs: Runs) -> Runs:
    while len(runs) > MOST:
        gap = min(range(1, len(runs)), key=lambda n: runs[n][0] - runs[n - 1][1])
        runs[gap - 1 : gap + 1] = [(runs[gap - 1][0], runs[gap][1])]
    return runs
