"""The command show: a session as a chat, or one note, memory, fact or message in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from heapq import merge
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidValueError, NotFoundError
from .options import StoreChoice, at_option, filled_scope, json_option, open_store, store_options
from .output import brief, count, indented, path, print_json, printable, table, time
from .param_types import SCOPE

if TYPE_CHECKING:
    from ..features.fact_items import Fact
    from ..features.memory_items import MemoryItem
    from ..features.notes import Note
    from ..messages import Message
    from ..records import ScopePath
    from ..sync import Scope


@click.command()
@click.argument("scope", type=SCOPE)
@click.argument("item")
@click.option("--kind", type=click.Choice(["session", "note", "memory", "fact", "message"]), help="What it is.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Show the newest N messages of a session; 0 is all.",
)
@click.option("--archived", is_flag=True, help="Show the archived messages of a session too.")
@at_option
@json_option
@store_options
def show(
    store: StoreChoice,
    scope: ScopePath,
    item: str,
    kind: str | None,
    limit: int,
    archived: bool,
    at: datetime | None,
    as_json: bool,
) -> None:
    """Show a session as a chat, or a note, memory, fact or message.

    ITEM, of SCOPE, is the name of a session, the key of a note, an id, or else a thing that facts are about.
    --kind is only needed if it could be more than one of these.
    """
    with open_store(store) as memory:
        place = filled_scope(memory, scope, at)
        try:
            found = {
                name: value
                for name, find in _FINDERS.items()
                if kind in (None, name) and (value := find(place, item)) is not None
            }
        except InvalidValueError as error:
            raise click.UsageError(f"{str(error).rpartition(': ')[0]}: give the scope of one as SCOPE.") from None
        if not found and kind in (None, "fact") and (about := _facts_about(place, item)):
            found = {"fact": about}
        if not found:
            raise NotFoundError(f"{path(scope)} has no {kind or 'session, note, memory, fact or message'} {item!r}")
        if len(found) > 1:
            raise click.UsageError(f"{item!r} is a {' and a '.join(found)}: say which with --kind.")
        ((what, value),) = found.items()
        if what == "session":
            value = _session(place, item, limit or None, archived)
    if as_json:
        print_json({"kind": what, what + ("s" if what == "fact" else ""): value})
    else:
        click.echo("\n".join(_PRINTERS[what](value)))


def _or_none(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except NotFoundError:
        return None


def _by_id(place: Scope, item: str, type_name: str) -> Any:
    found = _or_none(lambda: place.get(item))
    return found if type(found).__name__ == type_name else None


def _facts_about(place: Scope, thing: str) -> list[Fact]:
    about = place.facts.ask(thing, history=True)
    return about + [fact for fact in place.facts.ask(object=thing, history=True) if fact not in about]


_FINDERS: dict[str, Callable[[Scope, str], Any]] = {
    "session": lambda place, item: _or_none(lambda: place.sessions.get(item)),
    "note": lambda place, item: _or_none(lambda: place.notes.get(item)),
    "memory": lambda place, item: _by_id(place, item, "MemoryItem"),
    "fact": lambda place, item: None if (fact := _by_id(place, item, "Fact")) is None else [fact],
    "message": lambda place, item: _by_id(place, item, "Message"),
}


def _session(place: Scope, name: str, limit: int | None, archived: bool) -> dict[str, Any]:
    chat = place.session(name)
    older = chat.archived()
    return {
        "info": place.sessions.get(name),
        "summary": chat.summary(),
        "archived_count": len(older),
        "archived": older if archived else [],
        "messages": chat.messages(limit=limit),
    }


def _chat(session: dict[str, Any]) -> Iterator[str]:
    info, messages = session["info"], session["messages"]
    yield (
        f"{path(info.scope)}: {count(info.messages, 'message')}, {count(info.tokens, 'token')}, "
        f"{time(info.started)} to {time(info.last_activity)}"
    )
    if info.title:
        yield f"title: {brief(info.title)}"
    if session["archived_count"] and not session["archived"]:
        yield f"{count(session['archived_count'], 'message')} in the archive; --archived shows them"
    if session["summary"] is not None:
        yield "\nsummary"
        yield indented(session["summary"])
    missing = info.messages - len(messages)
    earlier = f"\n… {count(missing, 'earlier message')}; --limit 0 shows all"
    archived = ((message, " (archived)") for message in session["archived"])
    for message, mark in merge(archived, ((message, "") for message in messages), key=_turn):
        if missing and not mark and message.role != "system":
            yield earlier
            missing = 0
        yield from ("", *_message(message, mark))
    if missing:
        yield earlier


def _turn(turn: tuple[Message, str]) -> tuple[Any, ...]:
    from ..messages import turn_order

    message, _ = turn
    return turn_order(message.id, message.timestamp, message.role == "system")


def _message(message: Message, mark: str = "") -> Iterator[str]:
    from msgspec.structs import replace

    who = message.role if message.name is None else f"{message.role} {printable(message.name)}"
    yield f"{who}{mark}  {time(message.timestamp)}  {printable(message.id)}"
    if text := replace(message, tool_calls=[]).text:
        yield indented(text)
    for call in message.tool_calls:
        yield indented(f"→ {call.name}({call.arguments})")
    for image in message.images:
        yield indented(f"[image {image if len(image) <= 100 else f'{image[:40]}…, {len(image):,} characters'}]")


def _fields(**fields: Any) -> Iterator[str]:
    """Yield the lines of a table of those fields that say something."""
    from msgspec import json

    rows = [
        [name.replace("_", " "), printable(value if isinstance(value, str) else json.encode(value).decode())]
        for name, value in fields.items()
        if value not in (None, "", {}, False)
    ]
    widest = max(len(name) for name, _ in rows)
    return (f"{name.ljust(widest)}  {value}" for name, value in rows)


def _note(note: Note) -> Iterator[str]:
    from msgspec import json

    yield from _fields(
        note=note.key,
        description=note.description,
        updated=time(note.updated),
        version=note.version,
        metadata=note.metadata,
    )
    yield ""
    yield printable(
        note.value if isinstance(note.value, str) else json.format(json.encode(note.value), indent=2).decode()
    )


def _memory(item: MemoryItem) -> Iterator[str]:
    yield from _fields(
        memory=item.id,
        scope=path(item.scope),
        importance=item.importance,
        created=time(item.created),
        updated=time(item.updated),
        source=item.source,
        metadata=dict(item.metadata),
        pinned=item.pinned,
        valid_from=time(item.valid_from),
        valid_to=time(item.valid_to),
        expires=time(item.expires),
        data=item.data,
    )
    yield ""
    yield printable(item.text)


def _fact_table(facts: list[Fact]) -> Iterator[str]:
    return table(
        ["id", "fact", "from", "until", "confidence", "source"],
        [
            [
                one.id,
                printable(f"{one.subject} {one.predicate} {one.object}"),
                time(one.valid_from),
                time(one.valid_to),
                f"{one.confidence:.2f}",
                printable(one.source or ""),
            ]
            for one in facts
        ],
        left=(0, 1, 2, 3, 5),
    )


_PRINTERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "session": _chat,
    "note": _note,
    "memory": _memory,
    "fact": _fact_table,
    "message": _message,
}
