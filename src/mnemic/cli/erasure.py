"""The commands `erase` and `hold`: erasing a scope with a certificate, and legal holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ..errors import NotFoundError
from .audit import log_options
from .options import StoreChoice, dry_run_option, existing_log, json_option, open_store
from .output import count, path, print_json, printable, table, time
from .param_types import SCOPE, STORE, TIME

if TYPE_CHECKING:
    from ..features.certificate import ErasureCertificate
    from ..records import ScopePath
    from ..sync import Memory


@contextmanager
def opened(store: StoreChoice, opening: dict[str, Any]) -> Iterator[Memory]:
    """Open a store, with its audit log if it has one."""
    log = opening["audit"]
    with open_store(store, **{**opening, "audit": existing_log(None if log is True else log)}) as memory:
        yield memory


@click.command()
@click.argument("scope", type=SCOPE, required=False)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@click.option("--archive", "archives", type=STORE, multiple=True, help="Erase it in this archive, too; repeatable.")
@click.option("--pseudonym", metavar="NAME", help="Name the scope like this in the certificate.")
@click.option("--certificate", metavar="FILE", help="Write the signed certificate to a JSON file.")
@click.option("--finish", metavar="CERTIFICATE", help="Remove what an earlier erasure could not reach.")
@json_option
@log_options
def erase(
    store: StoreChoice,
    opening: dict[str, Any],
    scope: ScopePath | None,
    yes: bool,
    dry_run: bool,
    archives: tuple[str, ...],
    pseudonym: str | None,
    certificate: str | None,
    finish: str | None,
    as_json: bool,
) -> None:
    """Delete everything in a scope, with every trace.

    That is SCOPE and everything below it, and what was derived from it elsewhere; / is the whole store. It asks for
    confirmation first, and says what remains somewhere, and until when. A scope that holds nothing is an error. With
    --finish it has no SCOPE, and may take long.
    """
    if (scope is None) == (finish is None):
        raise click.UsageError("Give a SCOPE, or --finish CERTIFICATE.")
    if finish is not None and (dry_run or archives or pseudonym is not None):
        raise click.UsageError(
            "--finish goes on with what its certificate says: it takes no --dry-run, --archive or --pseudonym."
        )
    from ..features.certificate import ErasureCertificate
    from ..files import check_writable

    if certificate is not None:
        check_writable(certificate)
    with opened(store, opening) as memory:
        if finish is not None:
            made = memory.finish_erasure(ErasureCertificate.load(finish))
        else:
            place = memory.scope(scope)  # type: ignore[arg-type]
            made = place.erase(dry_run=True, archives=archives, pseudonym=pseudonym)
            left = made.records or made.derived or made.erased or made.removed or made.interrupted
            if not (left or any(one.records for one in made.archives)):
                raise NotFoundError(f"nothing is stored in the scope {path(scope)!r}")
            if not dry_run:
                if not yes:
                    asked = f"Erase {_counts(made)} in {path(scope)} of {memory.url}?"
                    click.confirm(asked, abort=True, err=True)
                made = place.erase(archives=archives, pseudonym=pseudonym)
    if certificate is not None:
        made.save(certificate)
    if as_json:
        print_json(made)
        return
    if finish is None:
        click.echo(f"{_counts(made)} {'would be erased' if dry_run else 'erased'}")
    elif made.complete:
        click.echo("nothing remains")
    for one in made.unreached:
        click.echo(f"Remains {one.until}: {printable(one.what)}. To finish: {printable(one.finish)}")


def _counts(made: ErasureCertificate) -> str:
    said = count(made.records, "record")
    if elsewhere := sum(one.dropped + one.rebuilt for one in made.derived):
        said += f", and {elsewhere:,} derived elsewhere"
    if made.archives:
        said += f", {sum(one.records for one in made.archives):,} in archives"
    return said


@click.group()
def hold() -> None:
    """Set, list and release legal holds.

    Nothing in a scope under a hold is deleted, evicted by limits, or expires.
    """


@hold.command("set")
@click.argument("scope", type=SCOPE)
@click.option("--reason", required=True, metavar="TEXT", help="Why; the error of a refused deletion says it.")
@click.option("--until", type=TIME, help="When it ends by itself.")
@json_option
@log_options
def set_(
    store: StoreChoice, opening: dict[str, Any], scope: ScopePath, reason: str, until: datetime | None, as_json: bool
) -> None:
    """Put a scope and everything below it under a hold, and print its id."""
    with opened(store, opening) as memory:
        made = memory.scope(scope).hold(reason, until=until)
    if as_json:
        print_json(made)
    else:
        click.echo(made.id)


@hold.command("list")
@click.argument("scope", type=SCOPE, default="/")
@json_option
@log_options
def list_(store: StoreChoice, opening: dict[str, Any], scope: ScopePath, as_json: bool) -> None:
    """List the holds that are in force in a scope, above or below it."""
    with opened(store, opening) as memory:
        found = memory.scope(scope).holds()
    if as_json:
        print_json(found)
        return
    rows = [(one.id, path(one.scope), time(one.created), time(one.until), printable(one.reason)) for one in found]
    for line in table(("id", "scope", "since", "until", "reason"), rows, (0, 1, 2, 3, 4)):
        click.echo(line)


@hold.command()
@click.argument("id")
@click.option("--scope", type=SCOPE, default="/", help="Where it is; by default anywhere.")
@json_option
@log_options
def release(store: StoreChoice, opening: dict[str, Any], id: str, scope: ScopePath, as_json: bool) -> None:
    """End a hold; what would have expired meanwhile expires then."""
    with opened(store, opening) as memory:
        ended = memory.scope(scope).release(id)
    if as_json:
        print_json(ended)
    else:
        click.echo(f"{path(ended.scope)} is no longer under the hold {ended.id}")
