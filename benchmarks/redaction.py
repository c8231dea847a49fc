"""Precision and recall of redaction on the labelled set of the tests, and its cost."""

from __future__ import annotations

import time
from pathlib import Path

import mnemic
from redaction_set import PARTS, Score, counts, measure

from .measuring import Result, in_turns, table, time_ratio

CHAT = "{n}: My sister is allergic to shellfish, so on 12 May we eat at the harbour at 19:30. A table for 4, please."
FOUND = "{n}: Write to ann.lee{n}@example.com or call +49 30 1234567, the card is 4111 1111 1111 1111."
LOG = (
    "2024-05-01T10:00:{n}.123Z INFO api req=6ba7b810-9dad-11d1-80b4-00c04fd430c8 GET /v1/items?limit=100 200 0.123s "
    "user=1234567 order 4500012345\n"
)


def run(folder: Path) -> tuple[str, bool]:
    """Return the table of recognizers and that of costs, and whether the targets are met."""
    costs = cost(folder)
    return f"{quality()}\n\n{table(costs)}", all(result.holds for result in costs)


def quality() -> str:
    """Return precision and recall by recognizer, on both parts of the set."""
    scores = {part: measure(part) for part in PARTS}
    texts = {part: counts(part)[""] for part in PARTS}
    head = [f"{part.replace('_', '-')} ({texts[part]} texts)" for part in PARTS]
    lines = [
        f"| type | {head[0]}: findings | precision | recall | {head[1]}: findings | precision | recall |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| `{name}` | {' | '.join(_cells(scores[part].get(name, Score())) for part in PARTS)} |"
        for name in sorted(set().union(*scores.values()))
    ]
    lines.append(f"| all | {' | '.join(_cells(total(scores[part])) for part in PARTS)} |")
    return "\n".join(lines)


def total(scores: dict[str, Score]) -> Score:
    """Return the score of all recognizers together."""
    found = Score()
    for score in scores.values():
        found.right += score.right
        found.wrong += score.wrong
        found.missing += score.missing
    return found


def _cells(score: Score) -> str:
    return f"{score.right + len(score.missing)} | {score.precision:.1%} | {score.recall:.1%}"


def cost(folder: Path) -> list[Result]:
    """Return what redaction adds to an append, and to reading a long text, in one process."""
    results = []
    plain_url, redacted_url = (f"sqlite:///{folder}/{name}.db?synchronous=normal" for name in ("plain", "redacted"))
    with mnemic.open(plain_url) as plain, mnemic.open(redacted_url, redact=True) as redacted:
        sessions = [memory.scope("acme").session("monday") for memory in (redacted, plain)]
        numbers = iter(range(10**9))
        for what, text in (
            ("a message without findings", CHAT),
            ("a message with three findings", FOUND),
            ("a tool result of 100 log lines", LOG * 100),
        ):
            many = 3 if text.startswith(LOG) else 100
            ours, baseline = in_turns(
                lambda text=text: sessions[0].add("user", text.replace("{n}", str(next(numbers)))),  # type: ignore[misc]
                lambda text=text: sessions[1].add("user", text.replace("{n}", str(next(numbers)))),  # type: ignore[misc]
                calls=many,
            )
            results.append(
                time_ratio(f"append {what}, against without redaction", 2 if text == CHAT else None, ours, baseline)
            )
    results.append(_speed())
    return results


def _speed() -> Result:
    from redaction_set import redactor

    text, finder = (CHAT + " ") * 2_000, redactor()
    started = time.process_time()
    finder.find(text)
    took = time.process_time() - started
    return Result(
        "looking through a long text", "(to know)", f"{len(text) / took / 1e6:.1f} million characters a second", True
    )
