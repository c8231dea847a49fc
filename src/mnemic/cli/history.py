"""Commands of the history: its versions of an item or a session, and bringing one back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import Decorated, StoreChoice, json_option, open_store, store_options
from .output import brief, count, path, print_json, printable, table, time
from .param_types import SCOPE

if TYPE_CHECKING:
    from ..features.versions import Version
    from ..records import ScopePath


def session_option(command: Decorated) -> Decorated:
    """Add the option --session."""
    return click.option("--session", is_flag=True, help="ITEM is the name of a session.")(command)


def kind_option(command: Decorated) -> Decorated:
    """Add the option --kind."""
    kinds = click.Choice(("message", "memory", "note", "fact"))
    return click.option("--kind", type=kinds, help="Its kind, if others have or had the same id.")(command)


@click.command()
@click.argument("scope", type=SCOPE)
@click.argument("item")
@kind_option
@session_option
@json_option
@store_options
def history(store: StoreChoice, scope: ScopePath, item: str, kind: str | None, session: bool, as_json: bool) -> None:
    """Show the versions of an item, newest first.

    ITEM, in SCOPE or below, is the id of a message, memory or fact, or the key of a note. With --session it is a
    session, of which the replaced and deleted messages are shown. Versions are kept if the store is opened with a
    history.
    """
    with open_store(store) as memory:
        place = memory.scope(scope)
        versions = place.session(item).history() if session else place.history(item, kind=kind)
    if as_json:
        print_json(versions)
        return
    head = ["version", "written", "by", "until", "ended by", "text"]
    rows = [
        [
            str(one.version),
            time(one.written),
            printable(one.by or ""),
            "now" if one.ended is None else f"{time(one.ended)}{' deleted' if one.deleted else ''}",
            printable(one.ended_by or ""),
            brief(_text(one)),
        ]
        for one in versions
    ]
    click.echo("\n".join(table(head, rows, left=(1, 2, 3, 4, 5))) if rows else "nothing was replaced or deleted")


def _text(version: Version) -> str:
    from ..features.fact_items import Fact
    from ..features.notes import Note

    item = version.item
    if isinstance(item, Note):
        from msgspec import json

        return item.value if isinstance(item.value, str) else json.encode(item.value).decode()
    if isinstance(item, Fact):
        return f"{item.subject} {item.predicate} {item.object}"
    return item if isinstance(item, str) else item.text or ""


@click.command()
@click.argument("scope", type=SCOPE)
@click.argument("item")
@click.option(
    "--version", type=click.IntRange(min=1), metavar="N", help="Its number; by default the one before the last."
)
@kind_option
@session_option
@json_option
@store_options
def restore(
    store: StoreChoice, scope: ScopePath, item: str, version: int | None, kind: str | None, session: bool, as_json: bool
) -> None:
    """Bring back an earlier version of an item, or what was deleted.

    ITEM is as in history. With --session, what the last clearing or deletion of the session removed comes back.
    """
    if session and version is not None:
        raise click.UsageError("--version is for an item, not for a session.")
    with open_store(store) as memory:
        place = memory.scope(scope)
        if session:
            restored = place.session(item).restore()
            said, value = f"{count(restored, 'message')} restored", {"session": item, "messages": restored}
        else:
            value = {"id": item, "item": place.restore(item, version, kind=kind)}
            said = f"{brief(item)} in {path(scope)} is as it was"
    print_json(value) if as_json else click.echo(said)
