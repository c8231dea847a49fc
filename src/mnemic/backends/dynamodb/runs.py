"""Which seqs of a stream may hold records, in few words: kept with the head where no index tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST = 200
"""The most runs that are kept; beyond it the narrowest gaps are forgotten, and looked into in vain."""

Runs = list[tuple[int, int]]
"""The first and last seq of each run, in order."""


def parse(text: str) -> Runs:
    """Return runs from their text."""
    pairs = (run.partition("-") for run in text.split(",") if run)
    return [(int(first), int(last or first)) for first, _, last in pairs]


def text(runs: Runs) -> str:
    """Return runs as text, such as `1-40,43`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def change(runs: Runs, added: Iterable[int], removed: Iterable[int]) -> Runs:
    """Return runs without some seqs and with others, which are all newer than any before."""
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
    """Yield the seqs of runs in order, or in reverse; those after one of them, or before it in reverse."""
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
