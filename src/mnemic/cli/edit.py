"""Commands that change what is stored: remember and forget."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..checks import shown
from ..errors import InvalidValueError, NotFoundError
from .options import (
    StoreChoice,
    dry_run_option,
    filled_scope,
    filter_options,
    json_option,
    metadata_option,
    open_store,
    store_options,
)
from .output import count, print_json
from .param_types import DURATION, SCOPE, STORE

if TYPE_CHECKING:
    from ..records import ScopePath


@click.command()
@click.argument("scope", type=SCOPE)
@click.argument("text")
@click.option("--id", metavar="ID", help="Its id; by default a new one.")
@click.option("--importance", type=float, default=1.0, show_default=True, metavar="N", help="0 or more.")
@metadata_option("Metadata, by which it can be filtered.")
@click.option("--source", metavar="NAME", help="Where it is from.")
@click.option("--ttl", type=DURATION, help="Forget it after this time.")
@click.option("--pinned", is_flag=True, help="Never let it fade.")
@json_option
@store_options
def remember(
    store: StoreChoice,
    scope: ScopePath,
    text: str,
    id: str | None,
    importance: float,
    metadata: dict[str, Any] | None,
    source: str | None,
    ttl: timedelta | None,
    pinned: bool,
    as_json: bool,
) -> None:
    """Remember a text in a scope, and print its id.

    As TEXT, - reads from stdin. A store that is not there yet is created.
    """
    if text == "-":
        text = sys.stdin.read().strip()
    if not text:
        raise InvalidValueError("there is no text to remember")
    with open_store(store, create=True) as memory:
        item = memory.scope(scope).remember(
            text, id=id, importance=importance, metadata=metadata, source=source, ttl=ttl, pinned=pinned
        )
    if as_json:
        print_json(item)
    else:
        click.echo(item.id)


@click.command()
@click.argument("scope", type=SCOPE)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@click.option("--older-than", type=DURATION, help="Only what is older than this.")
@click.option("--faded-below", type=float, metavar="N", help="Only memories with less than N of importance left.")
@click.option("--source", metavar="NAME", help="Only what is from this source.")
@click.option("--archive", type=STORE, help="Another store, to which it is moved instead of deleted.")
@dry_run_option
@json_option
@store_options
def forget(
    store: StoreChoice,
    scope: ScopePath,
    ids: tuple[str, ...],
    kinds: tuple[str, ...],
    metadata: dict[str, Any] | None,
    since: datetime | None,
    until: datetime | None,
    older_than: timedelta | None,
    faded_below: float | None,
    source: str | None,
    archive: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Forget by id, or everything that passes every filter.

    It looks in SCOPE and below it. The ids are those that ls, recall and remember print. An id that is not there
    is an error, and then nothing is deleted.
    """
    filters = (metadata, since, until, older_than, faded_below, source)
    if not ids and all(given is None for given in filters):
        raise click.UsageError(
            "Say what to forget: ids, or --older-than, --since, --until, --metadata, --source or --faded-below. "
            "'mnemic erase' deletes everything."
        )
    with open_store(store) as memory:
        place = filled_scope(memory, scope)
        for id in ids:
            if not place.forget(id, dry_run=True).matched:
                raise NotFoundError(f"{scope.path!r} has nothing with the id {shown(id)}")
        did = place.forget(
            *ids,
            kinds=kinds or None,
            metadata=metadata,
            since=since,
            until=until,
            older_than=older_than,
            faded_below=faded_below,
            source=source,
            archive=archive or False,
            dry_run=dry_run,
        )
    if as_json:
        print_json(did)
    elif dry_run:
        click.echo(f"{count(did.matched, 'record')} would be forgotten")
    else:
        archived = f", {did.archived:,} archived" if archive else ""
        click.echo(f"{count(did.deleted, 'record')} forgotten{archived}")
