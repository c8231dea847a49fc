"""The command eval: recall measured on a file of conversations and questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .key_options import key_options
from .options import StoreChoice, debug_option, find_store, json_option, names_option, weight_option
from .output import print_json, table
from .param_types import STORE

if TYPE_CHECKING:
    from ..evaluate import Level, Report
    from ..layers.master_key import EncryptionKeys
    from ..recallset import Conversation


@click.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--categories", callback=names_option, metavar="1,2,…", help="Ask the questions of these alone.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N conversations.")
@click.option("--compare", callback=names_option, metavar="SIGNAL,…", help="Ask with one signal alone too.")
@weight_option
@click.option("--embedder", metavar="NAME", help="What makes vectors: auto, static, transformer or none.")
@click.option("--store", "-s", type=STORE, help="Where to store the conversations, or what to ask.")
@key_options()
@click.option("--keep", is_flag=True, help="Leave the conversations in the store, under 'eval'.")
@json_option
@debug_option
def evaluation(
    file: Path,
    categories: tuple[str, ...],
    limit: int | None,
    compare: tuple[str, ...],
    weights: dict[str, float] | None,
    embedder: str | None,
    store: str | None,
    keys: EncryptionKeys | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Measure recall on a file of conversations and questions.

    FILE has one JSON object per line, or is an array of them, in the form of Mnemic or of LoCoMo, or has questions
    about scopes of the --store, as the dashboard's Recall lab writes them.
    """
    from msgspec import to_builtins

    from ..api import open
    from ..evaluate import evaluate, steps
    from ..recallset import read_recall_set, with_categories

    if keep and store is None:
        raise click.UsageError("--keep needs --store, since the temporary file is removed.")
    conversations = read_recall_set(file)[:limit]
    if categories:
        conversations = with_categories(conversations, categories)
    if any(one.scope is not None for one in conversations):
        if store is None:
            raise click.UsageError("The questions are about what a store holds: name it with --store.")
        find_store(StoreChoice(store, keys))
    options: dict[str, Any] = {} if embedder is None else {"embedder": embedder}
    bar = click.progressbar(
        length=steps(conversations, compare),
        label=file.name,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
        update_min_steps=20,
    )
    with _url(store) as url, open(url, encryption_key=keys, **options) as memory, bar:
        report = evaluate(
            memory, conversations, compare=compare, weights=weights, keep=keep or store is None, progress=bar.update
        )
    if as_json:
        print_json(to_builtins(report))
    else:
        click.echo("\n".join(_printed(report, conversations)))


@contextmanager
def _url(store: str | None) -> Iterator[str]:
    """Give the URL of the store, or of a temporary file that is removed afterwards."""
    if store is not None:
        yield store
        return
    from tempfile import TemporaryDirectory

    from ..store.registry import sqlite_url

    with TemporaryDirectory(prefix="mnemic-eval-") as folder:
        yield sqlite_url(Path(folder) / "eval.db")


def _printed(report: Report, conversations: Sequence[Conversation]) -> Iterator[str]:
    """Yield the lines that show a report; shares are in percent."""
    turns = sum(one.turns for one in conversations)
    left_out = sum(one.left_out for one in conversations)
    yield f"conversations: {len(conversations):,}, turns: {turns:,}, questions: {report.questions:,}" + (
        f" ({left_out:,} without evidence left out)" if left_out else ""
    )
    at = [f"@{k}" for k in report.turn.mean]
    levels = {"turn": report.turn, "session": report.session}
    yield ""
    yield from _grouped(
        ["found, %", "", *at],
        [
            [name, kind, *map(_percent, getattr(level, kind).values())]
            for name, level in levels.items()
            for kind in ("any", "all", "mean")
        ],
    )
    yield ""
    yield from _grouped(
        ["mean found, %", "", *at, "nDCG@10", "MRR", "questions"],
        [
            [label, name, *_means(level), f"{questions:,}"]
            for label, found, questions in [
                ("all", levels, report.questions),
                *(
                    (f"category {name}", {"turn": part.turn, "session": part.session}, part.questions)
                    for name, part in report.categories.items()
                ),
            ]
            for name, level in found.items()
        ],
    )
    if report.compare:
        yield ""
        yield from _side_by_side({"all signals": report} | report.compare)
    yield ""
    yield (
        f"stored in {report.store_s:.2f} s; "
        f"a recall took {report.recall_ms.p50:.2f} ms (p50), {report.recall_ms.p95:.2f} ms (p95)"
    )


def _side_by_side(reports: dict[str, Report]) -> Iterator[str]:
    rows = []
    for name in ("turn", "session"):
        levels: list[Level] = [getattr(report, name) for report in reports.values()]
        for kind in ("any", "all", "mean"):
            shares: list[dict[str, float]] = [getattr(level, kind) for level in levels]
            rows += [[name, f"{kind}@{k}", *(_percent(share[k]) for share in shares)] for k in shares[0]]
        rows.append([name, "nDCG@10", *(_percent(level.ndcg10) for level in levels)])
        rows.append([name, "MRR", *(_percent(level.mrr) for level in levels)])
    rows.append(["recall", "p50, ms", *(f"{report.recall_ms.p50:.2f}" for report in reports.values())])
    rows.append(["recall", "p95, ms", *(f"{report.recall_ms.p95:.2f}" for report in reports.values())])
    yield from _grouped(["by signal, %", "", *reports], rows)


def _means(level: Level) -> list[str]:
    return [_percent(share) for share in (*level.mean.values(), level.ndcg10, level.mrr)]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _grouped(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in which a first cell that repeats the one above is left blank."""
    firsts = ["", *(row[0] for row in rows)]
    blanked = [["" if row[0] == before else row[0], *row[1:]] for before, row in zip(firsts, rows, strict=False)]
    return table(head, blanked)
