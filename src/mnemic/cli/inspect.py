"""Commands that look and change nothing: ls, show, stats, recall, ping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .options import (
    StoreChoice,
    at_option,
    filled_scope,
    filter_options,
    json_option,
    open_store,
    store_options,
    weight_option,
)
from .output import brief, count, indented, path, print_json, table, time
from .param_types import SCOPE, TIME
from .show import show as show

if TYPE_CHECKING:
    from ..features.hits import Hit
    from ..features.listing import Stats
    from ..records import ScopePath
    from ..sync import Scope

ROLES = ("system", "user", "assistant", "tool")


@click.command()
@click.argument("scope", type=SCOPE, required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="List at most N of each part, the newest; 0 is all.",
)
@at_option
@json_option
@store_options
def ls(store: StoreChoice, scope: ScopePath | None, limit: int, at: datetime | None, as_json: bool) -> None:
    """List the scopes; with a SCOPE, what is in it.

    A scope shows its sessions, notes, memories and facts, and the scopes below it.
    """
    with open_store(store) as memory:
        if scope is None:
            scopes = memory.scopes() if at is None else memory.scope().as_of(at).scopes()
            shown = scopes[: limit or None]
            if as_json:
                print_json(shown)
            elif scopes:
                click.echo("\n".join(_table_of_scopes(shown)))
            else:
                click.echo("the store is empty")
            if len(shown) < len(scopes):
                click.echo(f"the first {limit:,} of {len(scopes):,} scopes; --limit 0 lists all", err=True)
            return
        contents = _contents(filled_scope(memory, scope, at), limit or None)
    if as_json:
        print_json(contents)
    else:
        click.echo("\n".join(_listed(contents)))


def _contents(scope: Scope, limit: int | None) -> dict[str, Any]:
    """Return the content of a scope: the newest of each part, and all counts."""
    from ..features.listing import Stats

    sessions = [one for one in scope.sessions.list() if scope.path in (one.scope.parent, one.scope)]
    sessions.sort(key=lambda one: one.last_activity)
    scopes = {one.scope: one for one in scope.scopes()}
    here = scopes.pop(scope.path, Stats(scope=scope.path))
    last = slice(-limit if limit else None, None)
    return {
        "scope": scope.path,
        "stats": here,
        "sessions": sessions[last],
        "notes": scope.notes.list()[last],
        "memories": scope.memories.list(limit=limit),
        "facts": scope.facts.ask(history=True)[last],
        "scopes": list(scopes.values())[:limit],
    }


def _listed(contents: dict[str, Any]) -> Iterator[str]:
    stats: Stats = contents["stats"]
    yield f"{path(stats.scope)}: {_counted(stats)}"
    parts: list[tuple[str, int, list[str], list[list[str]], tuple[int, ...]]] = [
        (
            "sessions",
            stats.sessions,
            ["name", "messages", "tokens", "last activity", "title"],
            [
                [
                    brief(one.name),
                    f"{one.messages:,}",
                    f"{one.tokens:,}",
                    time(one.last_activity),
                    brief(one.title or ""),
                ]
                for one in contents["sessions"]
            ],
            (0, 3, 4),
        ),
        (
            "notes",
            stats.notes,
            ["key", "bytes", "updated", "description"],
            [
                [brief(one.key), f"{one.size:,}", time(one.updated), brief(one.description or "")]
                for one in contents["notes"]
            ],
            (0, 2, 3),
        ),
        (
            "memories",
            stats.memories,
            ["id", "importance", "created", "text"],
            [[one.id, f"{one.importance:.2f}", time(one.created), brief(one.text)] for one in contents["memories"]],
            (0, 2, 3),
        ),
        (
            "facts",
            stats.facts,
            ["id", "from", "until", "fact"],
            [
                [one.id, time(one.valid_from), time(one.valid_to), brief(f"{one.subject} {one.predicate} {one.object}")]
                for one in contents["facts"]
            ],
            (0, 1, 2, 3),
        ),
    ]
    for name, total, head, rows, left in parts:
        if rows:
            more = f", the newest {len(rows):,} of {total:,}" if len(rows) < total else ""
            yield f"\n{name}{more}"
            yield from (f"  {line}" for line in table(head, rows, left))
    if contents["scopes"]:
        yield "\nscopes below"
        yield from (f"  {line}" for line in _table_of_scopes(contents["scopes"]))


def _counted(stats: Stats) -> str:
    return ", ".join(
        (
            count(stats.sessions, "session"),
            count(stats.messages, "message"),
            count(stats.notes, "note"),
            count(stats.memories, "memory", "memories"),
            count(stats.facts, "fact"),
            *([count(stats.state, "value of state", "values of state")] if stats.state else []),
        )
    )


def _table_of_scopes(scopes: Sequence[Stats]) -> Iterator[str]:
    return table(
        ["scope", "sessions", "messages", "notes", "memories", "facts", "last activity"],
        [
            [
                path(one.scope),
                *(f"{n:,}" for n in (one.sessions, one.messages, one.notes, one.memories, one.facts)),
                time(one.last_activity),
            ]
            for one in scopes
        ],
        left=(0,),
    )


@click.command()
@click.argument("scope", type=SCOPE, default="/")
@at_option
@json_option
@store_options
def stats(store: StoreChoice, scope: ScopePath, at: datetime | None, as_json: bool) -> None:
    """Count what the store, or a SCOPE and those below it, holds."""
    with open_store(store) as memory:
        found = filled_scope(memory, scope, at).stats()
    if as_json:
        print_json(found)
        return
    rows = [
        [name.replace("_", " "), f"{value:,}" if isinstance(value, int) else time(value)]
        for name in found.__struct_fields__
        if (value := getattr(found, name)) is not None and name != "scope"
    ]
    click.echo("\n".join(table(["scope", path(found.scope)], rows, left=(0,))))


@click.command()
@click.argument("scope", type=SCOPE)
@click.argument("query")
@click.option("-k", type=click.IntRange(min=1), default=5, show_default=True, help="Return at most this many.")
@filter_options
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), help="Only messages of this role.")
@click.option("--as-of", type=TIME, help="Only what was true at this time, instead of now.")
@click.option("--min-score", type=float, metavar="SCORE", help="Leave out what answers less well.")
@weight_option
@click.option("--neighbors", type=click.IntRange(min=0), default=0, metavar="N", help="Show N turns around each.")
@at_option
@json_option
@store_options
def recall(
    store: StoreChoice,
    scope: ScopePath,
    query: str,
    k: int,
    kinds: tuple[str, ...],
    metadata: dict[str, Any] | None,
    since: datetime | None,
    until: datetime | None,
    roles: tuple[Any, ...],
    as_of: datetime | None,
    min_score: float | None,
    weights: dict[str, float] | None,
    neighbors: int,
    at: datetime | None,
    as_json: bool,
) -> None:
    """Search a scope, and show why each hit was found.

    The scopes below SCOPE are searched too. It does not count as a use of what it finds.
    """
    with open_store(store) as memory:
        hits = filled_scope(memory, scope, at).recall(
            query,
            k,
            kinds=kinds or None,
            metadata=metadata,
            roles=roles or None,
            since=since,
            until=until,
            as_of=as_of,
            min_score=min_score,
            weights=weights,
            neighbors=neighbors,
            uses=False,
        )
    if as_json:
        print_json(hits)
    else:
        click.echo("\n\n".join("\n".join(_explained(hit)) for hit in hits) or "nothing was found")


def _explained(hit: Hit) -> Iterator[str]:
    yield f"{hit.score:.2f}  {hit.kind} {brief(hit.id)} in {path(hit.scope)}, {time(hit.created)}"
    for message in hit.before:
        yield indented(f"({message.role}) {message.text or ''}")
    yield indented(hit.text)
    for message in hit.after:
        yield indented(f"({message.role}) {message.text or ''}")
    signals = sorted(hit.why.items(), key=lambda one: -abs(one[1]))
    yield f"  why: {', '.join(f'{name} {value:+.2f}' for name, value in signals)}"


@click.command()
@json_option
@store_options
def ping(store: StoreChoice, as_json: bool) -> None:
    """Check that the store answers, and how fast.

    The exit code is 1 if it does not.
    """
    with open_store(store) as memory:
        took = memory.ping()
        url = memory.url
    if as_json:
        print_json({"url": url, "seconds": took.total_seconds()})
    else:
        click.echo(f"{url} answered in {1000 * took.total_seconds():.1f} ms")
