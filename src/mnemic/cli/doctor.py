"""The command doctor: what a store is, what is wrong with it, and what repairs that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .options import StoreChoice, json_option, run, store_options
from .output import count, print_json, printable, progress, table
from .param_types import STORE

if TYPE_CHECKING:
    from ..doctor import Examination
    from ..salvage import Salvaged

NAMES = {
    "archived": ("archived message",),
    "audit": ("audit entry", "audit entries"),
    "journal": ("journal entry", "journal entries"),
    "memory": ("memory", "memories"),
    "pruned": ("pruned memory", "pruned memories"),
    "summary": ("summary", "summaries"),
}
"""Names of the kinds whose own name, with an s, is not their plural."""


@click.command()
@click.option("--deep", is_flag=True, help="Read every record, not only the first 100,000.")
@click.option(
    "--salvage", "target", type=STORE, metavar="TARGET", help="Save what can be read into a new store at this URL."
)
@json_option
@store_options
@click.pass_context
def doctor(ctx: click.Context, store: StoreChoice, deep: bool, target: str | None, as_json: bool) -> None:
    """Find what is wrong with a store, and what repairs it.

    It changes nothing, and works with a store that cannot be opened. The exit code is 1 if there are errors; there may
    be warnings with 0. With --salvage it saves what can be read into a new store instead, and the exit code is 1 if
    anything was lost. An encrypted store is saved encrypted; with its key, what does not decrypt is left out.
    """
    if target is not None:
        from ..salvage import salvage

        with progress("salvage") as show:
            saved = run(salvage(store.url, target, store.keys, progress=show))
        if as_json:
            print_json(saved)
        else:
            click.echo("\n".join(map(printable, _salvaged(saved))))
        ctx.exit(0 if saved.complete else 1)
    from ..doctor import examine

    found = run(examine(store.url, store.keys, deep=deep))
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(map(printable, _lines(found, store.keys is not None, deep))))
    ctx.exit(0 if found.healthy else 1)


def _salvaged(saved: Salvaged) -> Iterator[str]:
    kinds = ", ".join(count(number, *NAMES.get(kind, (kind,))) for kind, number in saved.records.items())
    yield f"{count(sum(saved.records.values()), 'record')} saved in {saved.target}: {kinds}"
    least = "at least " if saved.uncounted else ""
    if saved.uncounted and not saved.lost:
        yield "an unknown number of records lost"
    if saved.lost:
        yield f"{least}{count(sum(lost.records for lost in saved.lost), 'record')} lost:"
        rows = [(lost.scope.path or "/", lost.kind, f"{lost.records:,}", lost.why) for lost in saved.lost]
        yield from table(("scope", "kind", "records", "why"), rows, left=(0, 1, 3))
    if saved.erased:
        yield f"{count(saved.erased, 'erased record')} left out: their data key was destroyed"
    yield from (f"also damaged: {remark}" for remark in saved.remarks)
    if saved.complete:
        yield "nothing was lost"


def _lines(found: Examination, keyed: bool, deep: bool) -> Iterator[str]:
    yield found.url
    rows: dict[str, Any] = {"engine": found.engine or None, "schema": found.schema}
    rows |= {name: _yes(getattr(found, name)) for name in ("durable", "shared", "encrypted")}
    if found.encrypted and not keyed:
        rows["encrypted"] = "yes; without the key, the content was not checked"
    unknown = found.records is None or (found.encrypted and not keyed)
    rows["embedder"] = found.embedder or (None if unknown else "none is recorded yet")
    if found.without_vectors:
        rows["embedder"] = (
            f"{found.embedder}; {count(found.without_vectors, 'text')} without vectors until the next recall"
        )
    if found.records is not None:
        kinds = ", ".join(count(number, *NAMES.get(kind, (kind,))) for kind, number in found.records.items())
        rows["records"] = f"{sum(found.records.values()):,} in {count(found.scopes or 0, 'scope')}: {kinds or 'none'}"
        if found.read is not None and found.read < sum(found.records.values()) and not deep:
            rows["records"] += f"; {found.read:,} of them were read, --deep reads all"
    rows |= {name.replace("_", " "): _figure(name, value) for name, value in found.facts.items()}
    rows = {name: value for name, value in rows.items() if value is not None}
    width = max(map(len, rows), default=0)
    for name, value in rows.items():
        yield f"  {name.ljust(width)}  {value}"
    for problem in sorted(found.problems, key=lambda one: one.severity):
        yield f"{problem.severity} {problem.code}: {problem.text}"
        yield f"  repair: {problem.repair}"
    if not found.problems:
        yield "no problems found"


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _figure(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return _yes(value)
    if name.endswith("bytes") and isinstance(value, int):
        return f"{value:,}"
    return None if value is None else str(value)
