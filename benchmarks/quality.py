"""How much recall finds: a recall set through `mnemic.evaluate`, with each embedder that Mnemic brings."""

from __future__ import annotations

import os
from pathlib import Path

import mnemic
from mnemic.evaluate import Report, evaluate
from mnemic.recallset import read_recall_set, with_categories

EMBEDDERS = {"none": "words alone", "static": "static vectors (default)", "transformer": "`mnemic[transformer]`"}
ASKED = ("1", "2", "3", "4")
"""The categories that have an answer in the conversation; the fifth asks for what was never said."""
TARGETS = {"static": 80.0, "transformer": 83.0}
SESSION_TARGET = 88.0


def run(folder: Path) -> tuple[str, bool]:
    """Return the table, and whether every target is met."""
    everything = read_recall_set(os.environ["RECALL_SET"])
    asked = with_categories(everything, ASKED)
    questions = sum(len(one.questions) for one in asked)
    count = sum(len(one.questions) for one in everything)
    lines = [
        f"| embedder | turns found in 10, mean of {questions:,} | all of them | any | nDCG@10 "
        f"| all sessions in 5, of {count:,} | store | recall p50 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    holds = True
    for embedder, name in EMBEDDERS.items():
        reports: list[Report] = []
        for number, conversations in enumerate((asked, everything)):
            url = f"sqlite:///{folder / f'{embedder}-{number}.db'}"
            with mnemic.open(url, embedder=embedder) as memory:
                reports.append(evaluate(memory, conversations))
        turn, session = reports[0].turn, reports[1].session
        mean, all_in_5 = 100 * turn.mean["10"], 100 * session.all["5"]
        holds &= mean >= TARGETS.get(embedder, 0) and all_in_5 >= SESSION_TARGET * (embedder in TARGETS)
        lines.append(
            f"| {name} | {mean:.1f} | {100 * turn.all['10']:.1f} | {100 * turn.any['10']:.1f} "
            f"| {100 * turn.ndcg10:.1f} | {all_in_5:.1f} "
            f"| {reports[1].store_s:.1f} s | {reports[1].recall_ms.p50:.1f} ms |"
        )
    return "\n".join(lines), holds
