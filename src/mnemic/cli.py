"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .errors import InvalidValueError, MnemicError

if TYPE_CHECKING:
    from .evaluate import Level, Report
    from .recallset import Conversation

Result = TypeVar("Result")

DEBUG = "mnemic.debug"
"""Where a click context keeps whether errors show where they came from."""


class Commands(click.Group):
    """The commands; an error of ours ends them with one line and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; with --debug an error of ours passes through."""
        try:
            return super().invoke(ctx)
        except MnemicError as error:
            if ctx.meta.get(DEBUG):
                raise
            click.echo(f"mnemic: {' '.join(str(error).split())}", err=True)
            ctx.exit(1)


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return the names between commas, each once; an empty one is an error of usage."""
    names = () if value is None else tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if "" in names:
        raise click.BadParameter(f"{value!r} holds an empty name.", ctx, param)
    return names


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show where an error came from."
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mnemic", prog_name="mnemic")
@debug_option
def main() -> None:
    """Memory for AI agents."""


@main.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--categories", callback=_names, metavar="1,2,…", help="Ask the questions of these alone.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N conversations.")
@click.option("--compare", callback=_names, metavar="SIGNAL,…", help="Ask with one signal alone too.")
@click.option("--embedder", metavar="NAME", help="What makes vectors: auto, static, transformer or none.")
@click.option("--store", metavar="URL", help="Where to store the conversations, instead of a temporary file.")
@click.option("--keep", is_flag=True, help="Leave the conversations in the store, under 'eval'.")
@debug_option
def evaluation(
    file: Path,
    as_json: bool,
    categories: tuple[str, ...],
    limit: int | None,
    compare: tuple[str, ...],
    embedder: str | None,
    store: str | None,
    keep: bool,
) -> None:
    """Measure recall on the conversations and questions of FILE, a recall set.

    It has one JSON object per line, or is an array of them, in the form of Mnemic or of LoCoMo.
    """
    from msgspec import json

    from .api import open
    from .evaluate import evaluate, steps
    from .recallset import read_recall_set, with_categories

    if keep and store is None:
        raise click.UsageError("--keep needs --store, since the temporary file is removed.")
    conversations = read_recall_set(file)[:limit]
    if categories:
        conversations = with_categories(conversations, categories)
    options: dict[str, Any] = {} if embedder is None else {"embedder": embedder}
    bar = click.progressbar(
        length=steps(conversations, compare),
        label=file.name,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
        update_min_steps=20,
    )
    with _url(store) as url, open(url, **options) as memory, bar:
        report = evaluate(
            memory, conversations, compare=compare, keep=keep or store is None, progress=bar.update
        )
    if as_json:
        click.echo(json.format(json.encode(report), indent=2))
    else:
        click.echo("\n".join(_printed(report, conversations)))


@main.command()
@click.argument("url")
@click.option("--embedder", required=True, metavar="NAME", help="What is to make the vectors from now on.")
@click.option("--key-env", metavar="NAME", help="The variable with the key of an encrypted store.")
@debug_option
def reembed(url: str, embedder: str, key_env: str | None) -> None:
    """Make the vectors of all that is stored at URL with another embedder.

    Recall goes on meanwhile with the old ones. Broken off, it goes on where it was.
    """
    from .api import open

    key = _key(key_env) if key_env else None
    _check_exists(url)
    with open(url, encryption_key=key) as memory, _progress(embedder) as show:
        made = memory.reembed(embedder, progress=show)
    click.echo(f"{made:,} texts embedded with {embedder}")


@main.command()
@click.argument("source")
@click.argument("target")
@click.option("--scope", metavar="PATH", help="Copy this scope and those below it alone, such as acme/alice.")
@click.option("--reembed", is_flag=True, help="Let the target's embedder make vectors of its own.")
@click.option("--merge", is_flag=True, help="Leave records in the target that the source does not have.")
@click.option("--source-key-env", metavar="NAME", help="The variable with the key of an encrypted source.")
@click.option(
    "--target-key-env", metavar="NAME", help="The variable with the key to encrypt the target with."
)
@debug_option
def copy(
    source: str,
    target: str,
    scope: str | None,
    reembed: bool,
    merge: bool,
    source_key_env: str | None,
    target_key_env: str | None,
) -> None:
    """Copy all that is stored at the URL SOURCE to the URL TARGET, and verify it.

    Broken off, it goes on where it was when it is run again. Keys are read from environment variables.
    """
    from .api import copy

    with _progress("copy") as show:
        copied = copy(
            source,
            target,
            scope=scope,
            reembed=reembed,
            merge=merge,
            source_key=_key(source_key_env) if source_key_env else None,
            target_key=_key(target_key_env) if target_key_env else None,
            progress=show,
        )
    click.echo(
        f"{copied.records:,} records in {copied.streams:,} streams are the same in both stores, "
        f"{copied.written:,} of them written now; digest {copied.digest}"
    )


@main.command()
@click.argument("url")
@click.option(
    "--index", required=True, metavar="URL", help="The companion index, such as qdrant://host/name."
)
@debug_option
def reindex(url: str, index: str) -> None:
    """Make the companion index of the store at URL anew from what is stored."""
    from .api import open

    _check_exists(url)
    with open(url, index=index) as memory, _progress("reindex") as show:
        made = memory.reindex(progress=show)
    click.echo(f"{made:,} texts in {index.partition('://')[0]}")


@main.command()
@click.argument("url")
@click.option(
    "--key-env",
    "variables",
    multiple=True,
    required=True,
    metavar="NAME",
    help="The variable with a key: the first encrypts from now on, others may be needed to read.",
)
@click.option(
    "--also",
    "archives",
    multiple=True,
    metavar="URL",
    help="Another store with the same keys: an audit trail, or an archive of what was cleaned up.",
)
@debug_option
def rotate(url: str, variables: tuple[str, ...], archives: tuple[str, ...]) -> None:
    """Encrypt all that is stored at URL anew, with the first of the keys.

    An audit trail or an archive at a URL of its own is covered only if it is named with --also. The stores
    stay in use meanwhile. Broken off, it goes on where it was when it is run again.
    """
    from .api import open
    from .store.registry import StoreURL

    _check_exists(url)
    with open(url, encryption_key=[_key(name) for name in variables]) as memory, _progress("rotate") as show:
        changed = memory.rotate(archives=archives, progress=show)
    covered = ", ".join(str(StoreURL.parse(one)) for one in (url, *archives))
    click.echo(f"{changed:,} records encrypted anew; {variables[0]} is the only key needed for {covered}")


def _key(variable: str) -> str:
    """Return the key in an environment variable: on a command line, others could see it."""
    from os import environ

    if not environ.get(variable):
        raise InvalidValueError(f"the environment variable {variable} is not set; it should hold a key")
    return environ[variable]


@main.command()
@click.argument("url")
@debug_option
def migrate(url: str) -> None:
    """Make what the store at URL needs, such as a table, or bring it to the newest schema."""
    from .store import registry

    async def prepared() -> str:
        parsed, backend = registry.find(url)
        if parsed.scheme == "sqlite":
            # A new file needs no preparation, so this one is a mistake.
            await registry.find_existing(url)
        did = await backend.prepare(parsed) if backend.prepare is not None else "is at the newest schema"
        store = await backend.open(parsed)
        await store.close()
        return f"{parsed} {did}"

    click.echo(_run(prepared()))


def _check_exists(url: str) -> None:
    """Raise NotFoundError if there is no store at a URL, which opening it would create."""
    from .store import registry

    _run(registry.find_existing(url))


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    from .driving import Portal

    driver = Portal()
    try:
        return driver.run(coroutine)
    finally:
        driver.close()


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Give what shows how many of how many are done, on a terminal."""
    bar = click.progressbar(
        length=0, label=label, file=sys.stderr, hidden=not sys.stderr.isatty(), update_min_steps=20
    )

    def show(done: int, total: int) -> None:
        bar.length = total
        bar.update(done - bar.pos)

    with bar:
        yield show


@contextmanager
def _url(store: str | None) -> Iterator[str]:
    """Give the URL of the store, or of a temporary file that is removed afterwards."""
    if store is not None:
        yield store
        return
    from tempfile import TemporaryDirectory
    from urllib.parse import quote

    with TemporaryDirectory(prefix="mnemic-eval-") as folder:
        yield f"sqlite:///{quote(str(Path(folder) / 'eval.db'))}"


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
    yield from _table(
        ["found, %", "", *at],
        [
            [name, kind, *map(_percent, getattr(level, kind).values())]
            for name, level in levels.items()
            for kind in ("any", "all", "mean")
        ],
    )
    yield ""
    yield from _table(
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
    yield from _table(["by signal, %", "", *reports], rows)


def _means(level: Level) -> list[str]:
    return [_percent(share) for share in (*level.mean.values(), level.ndcg10, level.mrr)]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, the first two columns to the left, a repeated first cell left blank."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    before = ""
    for row in (head, *rows):
        first = "" if row[0] == before else row[0]
        before = row[0]
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip((first, *row[1:]), widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
