"""The command scan: personal data and secrets in what is stored already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import StoreChoice, filled_scope, json_option, open_store, store_options
from .output import count, print_json, progress, table
from .param_types import SCOPE

if TYPE_CHECKING:
    from ..records import ScopePath


@click.command()
@click.argument("scope", type=SCOPE, default="/")
@click.option("--mend", is_flag=True, help="Redact what is found, in place.")
@json_option
@store_options
def scan(store: StoreChoice, scope: ScopePath, mend: bool, as_json: bool) -> None:
    """Find personal data and secrets in what is stored.

    It counts them by kind and type, and never prints them. With --mend it redacts them in place: masked, or as
    --redact-file says. The store stays in use meanwhile. Interrupted, it continues where it was when it is run again.
    """
    with open_store(store) as memory, progress("scan") as show:
        found = filled_scope(memory, scope).scan(mend=mend, progress=show)
    if as_json:
        print_json(found)
        return
    if found.found:
        rows = [(one.kind, one.recognizer, f"{one.findings:,}", f"{one.records:,}") for one in found.found]
        click.echo("\n".join(table(("kind", "type", "findings", "records"), rows)))
    click.echo(f"{found.matched:,} of {count(found.records, 'record')} hold personal data or secrets")
    if mend:
        click.echo(f"{count(found.mended, 'record')} redacted")
    if found.left:
        click.echo(f"{count(found.left, 'record')} left, since others kept changing them: run it again", err=True)
