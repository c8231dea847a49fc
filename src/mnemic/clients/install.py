"""Plans and makes the changes of `mnemic install`: an entry for our MCP server, and hooks."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..errors import ConflictError, InvalidValueError
from ..files import read_file, replace_file
from . import toml_text
from .json_text import JsonText
from .known import HOOK_SECONDS, SERVER, Client, Command, Hooks, config_path, hooks_path

_OWN_HOOK = re.compile(r"""\bmnemic(?:\.exe)?["']?\s+hook\s""")
"""How the command of one of our hooks looks."""
Document = dict[str, Any]


class Change(Struct, frozen=True):
    """A change of one file; `before` is None if there is no file yet."""

    path: Path
    before: bytes | None
    after: bytes

    def diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = (text.decode().splitlines(keepends=True) for text in (self.before or b"", self.after))
        name = str(self.path)
        lines = difflib.unified_diff(old, new, name if self.before is not None else "/dev/null", name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def make(self) -> None:
        """Write the file; raises ConflictError if it changed since it was read."""
        if _read(self.path) != self.before:
            raise ConflictError(f"{self.path} was changed by another program meanwhile: run the command again")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, self.after, keep_mode=True)


def plan_install(client: Client, project: Path | None, server: Command, hooks: Command | None) -> list[Change]:
    """Return the changes that add our entry, and hooks if their command is given; none if all is there.

    Raises InvalidValueError if the client has no such file, or a file cannot be read as what it should be.
    """
    path = config_path(client, project)
    if path is None:
        where = "the user" if project is None else "a project"
        raise InvalidValueError(f"{client.title} has no configuration for {where}")
    edits = [(path, lambda text: _with_entry(text, path, client, server))]
    if hooks is not None:
        if client.hooks is None or (file := hooks_path(client, project)) is None:
            raise InvalidValueError(f"{client.title} has no hooks that Mnemic knows")
        known = client.hooks
        edits.append((file, lambda text: _with_hooks(text, known, hooks)))
    return _changes(edits)


def plan_removal(client: Client, project: Path | None) -> list[Change]:
    """Return the changes that take back what `plan_install` added; none if nothing is there."""
    edits: list[tuple[Path, Callable[[str], str]]] = []
    if (path := config_path(client, project)) is not None:
        edits.append((path, lambda text: _without_entry(text, path, client)))
    if (file := hooks_path(client, project)) is not None:
        edits.append((file, lambda text: _without_hooks(text).text))
    return _changes([(path, edit) for path, edit in edits if path.exists()])


def find_program(portable: bool) -> list[str]:
    """Return the command of this installation: its name if `portable` and PATH leads to it, else its path."""
    beside = Path(sys.executable).with_name("mnemic.exe" if sys.platform == "win32" else "mnemic")
    if not beside.exists():
        return [sys.executable, "-m", "mnemic"]
    on_path = shutil.which("mnemic")
    if on_path is None or Path(on_path).resolve() != beside.resolve():
        return [str(beside)]
    return ["mnemic" if portable else str(Path(on_path).absolute())]


def _changes(edits: list[tuple[Path, Callable[[str], str]]]) -> list[Change]:
    """Return the changes of files; edits of one file are one change."""
    before: dict[Path, bytes | None] = {}
    after: dict[Path, str] = {}
    for given, edit in edits:
        path = given.resolve()
        try:
            if path not in after:
                before[path] = _read(path)
                after[path] = (before[path] or b"").decode()
            after[path] = edit(after[path])
        except (InvalidValueError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"{given} is left as it is: {error}") from None
    changes = [Change(path, before[path], text.encode()) for path, text in after.items()]
    return [change for change in changes if change.after != (change.before or b"")]


def _read(path: Path) -> bytes | None:
    return read_file(path) if path.exists() else None


def _with_entry(text: str, path: Path, client: Client, command: Command) -> str:
    entry = client.entry(command)
    if path.suffix == ".toml":
        found = toml_text.set_table(text, (*client.servers, SERVER), entry)
        return _checked(toml_text.parse, text, found, lambda document: _put(document, client.servers, entry))
    document = JsonText(text)
    servers = _servers(document, client)
    found = document.set((*servers, SERVER), entry).text
    return _checked(_value, document.text, found, lambda document: _put(document, servers, entry))


def _without_entry(text: str, path: Path, client: Client) -> str:
    if path.suffix == ".toml":
        found = toml_text.remove_table(text, (*client.servers, SERVER))
        return _checked(toml_text.parse, text, found, lambda document: _drop(document, client.servers))
    document = JsonText(text)
    servers = _servers(document, client)
    if document.find(*servers, SERVER) is None:
        return text
    return _checked(_value, text, document.remove((*servers, SERVER)).text, lambda old: _drop(old, servers))


def _servers(document: JsonText, client: Client) -> tuple[str, ...]:
    """Return where the servers are; version 2 of opencode has them one object further down."""
    nested = (*client.servers, "servers")
    return nested if client.servers == ("mcp",) and document.find(*nested) is not None else client.servers


def _with_hooks(text: str, known: Hooks, command: Command) -> str:
    document = JsonText(text)
    wanted = {event: _group(event, known, command) for event in known.events}
    if _own_groups(document.root.value) == {event: [group] for event, group in wanted.items()}:
        return text
    document = _without_hooks(text)
    for event, group in wanted.items():
        document = document.append(("hooks", event), group)
    return document.text


def _without_hooks(text: str) -> JsonText:
    document = JsonText(text)
    hooks = document.root.value.get("hooks")
    for event, groups in hooks.items() if isinstance(hooks, dict) else ():
        for place in reversed(range(len(groups) if isinstance(groups, list) else 0)):
            inner = groups[place].get("hooks") if isinstance(groups[place], dict) else None
            entries = inner if isinstance(inner, list) else []
            own = [n for n, entry in enumerate(entries) if _is_own(entry)]
            if own and len(own) == len(entries):
                document = document.remove(("hooks", event, place))
                continue
            for n in reversed(own):
                document = document.remove(("hooks", event, place, "hooks", n))
    return document


def _own_groups(document: Document) -> dict[str, list[Any]]:
    hooks = document.get("hooks")
    found = {
        event: [group for group in groups if isinstance(group, dict) and any(map(_is_own, group.get("hooks") or ()))]
        for event, groups in (hooks.items() if isinstance(hooks, dict) else ())
        if isinstance(groups, list)
    }
    return {event: groups for event, groups in found.items() if groups}


def _is_own(entry: Any) -> bool:
    return isinstance(entry, dict) and _OWN_HOOK.search(str(entry.get("command"))) is not None


def _group(event: str, known: Hooks, command: Command) -> Document:
    words = [command.program, *command.arguments[:1], event, *command.arguments[1:]]
    text = subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
    return {"hooks": [{"type": "command", "command": text, "timeout": HOOK_SECONDS * known.second}]}


def _checked(parse: Callable[[str], Document], before: str, after: str, change: Callable[[Document], None]) -> str:
    """Return the edited text if it has the changed value, and nothing else changed."""
    wanted = parse(before)
    change(wanted)
    try:
        found = parse(after)
    except InvalidValueError:
        found = {}
    if SERVER not in str(found):
        # An emptied object stays if it has a comment.
        change(found)
    same = found == wanted
    if not same:
        raise InvalidValueError(f"its entry {SERVER!r} cannot be changed without changing more: edit it by hand")
    return after


def _value(text: str) -> Document:
    value: Document = JsonText(text).root.value
    return value


def _put(document: Document, servers: tuple[str, ...], entry: Document) -> None:
    for name in servers:
        document = document.setdefault(name, {})
    document[SERVER] = entry


def _drop(document: Document, servers: tuple[str, ...]) -> None:
    """Remove our entry, and the objects that this empties."""
    inner = document.get(servers[0])
    if not isinstance(inner, dict):
        return
    if len(servers) > 1:
        _drop(inner, servers[1:])
    else:
        inner.pop(SERVER, None)
    if not inner:
        del document[servers[0]]
