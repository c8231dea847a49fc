"""Plans and makes the changes of `mnemic install`: an entry for our MCP server, and hooks."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..errors import ConflictError, InvalidValueError
from ..files import read_file, replace_file
from ..store.registry import masked
from .config_edit import JsonText, has_table, parse_toml, remove_table, set_table
from .supported_clients import (
    HOOK_SECONDS,
    SERVER,
    STORE_VARIABLE,
    Client,
    Command,
    HookSupport,
    config_path,
    hooks_path,
)

_OWN_HOOK = re.compile(r"""\bmnemic(?:\.exe)?["']?\s+hook\s""")
"""How the command of one of our hooks looks."""
_SHELL = re.compile(r"[&|;<>$`\n]")
"""Characters that make a hook more than a program with arguments."""
_URL = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s"'\\]+""")
_FOLLOWING = ("--store", "-s", "--scope", "--key-file", "--key-env", "--redact", "--redact-file")
"""Options of a hook that are those of the server."""
Document = dict[str, Any]


class FileChange(Struct, frozen=True):
    """A change of one file; `before` is None if there is no file yet."""

    path: Path
    before: bytes | None
    after: bytes

    def diff(self) -> str:
        """Return the change as a unified diff; passwords in URLs are masked."""
        old, new = (text.decode().splitlines(keepends=True) for text in (self.before or b"", self.after))
        name = str(self.path)
        lines = difflib.unified_diff(old, new, name if self.before is not None else "/dev/null", name)
        text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
        return _URL.sub(lambda found: masked(found[0]), text)

    def make(self) -> None:
        """Write the file; raises ConflictError if it changed since it was read."""
        if _read(self.path) != self.before:
            raise ConflictError(f"{self.path} was changed by another program meanwhile: run the command again")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, self.after, keep_mode=True)


def plan_install(
    client: Client, project: Path | None, server: Command, hook: Command, *, hooks: bool = False
) -> list[FileChange]:
    """Return the changes that add our entry, and with `hooks` hooks with their command; none if all is there.

    What others added to the entry stays. Hooks of an earlier install get the new command, and keep options such as
    --timeout. Raises InvalidValueError if the client has no such file, a file cannot be read as what it should be,
    or hooks would need a variable, which they cannot carry.
    """
    path = config_path(client, project)
    if path is None:
        where = "the user" if project is None else "a project"
        raise InvalidValueError(f"{client.title} has no configuration for {where}")
    file = hooks_path(client, project)
    if hooks and file is None:
        raise InvalidValueError(f"{client.title} has no hooks that Mnemic knows")
    edits = [(path, lambda text: _with_entry(text, path, client, server))]
    if file is not None and client.hooks is not None:
        known = client.hooks
        edits.append((file, lambda text: _with_hooks(text, known, hook, hooks)))
    return _changes(edits)


def plan_removal(client: Client, project: Path | None) -> list[FileChange]:
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


def _changes(edits: list[tuple[Path, Callable[[str], str]]]) -> list[FileChange]:
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
    changes = [FileChange(path, before[path], text.encode()) for path, text in after.items()]
    return [change for change in changes if change.after != (change.before or b"")]


def _read(path: Path) -> bytes | None:
    return read_file(path) if path.exists() else None


def _with_entry(text: str, path: Path, client: Client, command: Command) -> str:
    entry = client.entry(command)
    if path.suffix == ".toml":
        place = (*client.servers, SERVER)
        wanted = _merged(_at(parse_toml(text), place), entry, client)
        found = text
        if _at(parse_toml(text), place) != wanted:
            apart = {name for name in wanted if has_table(text, (*place, name))}
            found = set_table(text, place, {name: value for name, value in wanted.items() if name not in apart})
            for name in apart:
                found = set_table(found, (*place, name), wanted[name])
        return _checked(parse_toml, text, found, lambda document: _put(document, client.servers, wanted))
    document = JsonText(text)
    servers = _servers(document, client)
    place = (*servers, SERVER)
    old = _at(document.root.value, place)
    wanted = _merged(old, entry, client)
    edited = document
    if not isinstance(old, dict) or old.get("command") is None:
        edited = document.set(place, wanted)
    for name in dict.fromkeys([*wanted, *old]) if edited is document else ():
        if old.get(name) == wanted.get(name):
            continue
        if name == client.variables and name in old:
            new = wanted.get(name, {}).get(STORE_VARIABLE)
            inner = (*place, name, STORE_VARIABLE)
            edited = edited.remove(inner) if new is None else edited.set(inner, new)
        else:
            edited = edited.set((*place, name), wanted[name])
    return _checked(_value, document.text, edited.text, lambda document: _put(document, servers, wanted))


def _merged(old: Any, entry: Document, client: Client) -> Document:
    """Return our entry with what others added to the old one; our variable is only in it if the new one has it."""
    if not isinstance(old, dict):
        return entry
    found = {**entry, **old} | {name: entry[name] for name in ("command", "args") if name in entry}
    name = client.variables
    if isinstance(kept := old.get(name, {}), dict):
        variables = {key: value for key, value in kept.items() if key != STORE_VARIABLE} | entry.get(name, {})
        found.pop(name, None)
        if variables or (name in old and not kept):
            found[name] = variables
    return found


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _without_entry(text: str, path: Path, client: Client) -> str:
    if path.suffix == ".toml":
        found = remove_table(text, (*client.servers, SERVER))
        return _checked(parse_toml, text, found, lambda document: _drop(document, client.servers))
    document = JsonText(text)
    servers = _servers(document, client)
    if document.find(*servers, SERVER) is None:
        return text
    return _checked(_value, text, document.remove((*servers, SERVER)).text, lambda old: _drop(old, servers))


def _servers(document: JsonText, client: Client) -> tuple[str, ...]:
    """Return where the servers are; version 2 of opencode has them one object further down."""
    nested = (*client.servers, "servers")
    return nested if client.is_opencode and document.find(*nested) is not None else client.servers


def _with_hooks(text: str, known: HookSupport, command: Command, add: bool) -> str:
    if not add and SERVER not in text:
        return text
    document = JsonText(text)
    own = list(_own_hooks(document.root.value))
    if (own or add) and command.variables:
        raise InvalidValueError(
            f"the URL of the store has a password, which hooks cannot carry: set {STORE_VARIABLE} in the environment "
            "that the client is started in, and do not give --store"
        )
    for path, entry in own:
        if (new := _updated(str(entry["command"]), command)) != entry["command"]:
            document = document.set((*path, "command"), new)
    for event in known.events if add else ():
        if not any(path[1] == event for path, _ in own):
            document = document.append(("hooks", event), _group(event, known, command))
    return document.text if document.root.value != JsonText(text).root.value else text


def _own_hooks(document: Document) -> Iterator[tuple[tuple[str | int, ...], Document]]:
    """Yield our hooks and where they are."""
    hooks = document.get("hooks")
    for event, groups in hooks.items() if isinstance(hooks, dict) else ():
        for place, group in enumerate(groups if isinstance(groups, list) else ()):
            inner = group.get("hooks") if isinstance(group, dict) else None
            for n, entry in enumerate(inner if isinstance(inner, list) else ()):
                if _is_own(entry):
                    yield ("hooks", event, place, "hooks", n), entry


def _updated(old: str, command: Command) -> str:
    """Return the new command of a hook, with the options that a user gave the old one; a shell script stays."""
    posix = sys.platform != "win32"
    try:
        words = [word if posix else word.strip('"') for word in shlex.split(old, posix=posix)]
    except ValueError:
        return old
    if _SHELL.search(old) or "hook" not in words[:-1] or "=" in words[0]:
        return old
    start = words.index("hook") + 1
    event, rest = words[start], words[start + 1 :]
    kept: list[str] = []
    while rest:
        size = 2 if len(rest) > 1 and "=" not in rest[0] and not rest[1].startswith("--") else 1
        if rest[0].partition("=")[0] not in _FOLLOWING:
            kept += rest[:size]
        rest = rest[size:]
    return _hook_line(event, command, kept)


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


def _is_own(entry: Any) -> bool:
    return isinstance(entry, dict) and _OWN_HOOK.search(str(entry.get("command"))) is not None


def _group(event: str, known: HookSupport, command: Command) -> Document:
    line = _hook_line(event, command)
    return {"hooks": [{"type": "command", "command": line, "timeout": HOOK_SECONDS * known.second}]}


def _hook_line(event: str, command: Command, options: Sequence[str] = ()) -> str:
    place = command.arguments.index("hook") + 1
    words = [command.program, *command.arguments[:place], event, *command.arguments[place:], *options]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


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
    if found != wanted:
        there = SERVER in str(parse(before))
        what = f"its entry {SERVER!r} cannot be changed" if there else f"the entry {SERVER!r} cannot be added to it"
        raise InvalidValueError(f"{what} without changing more: edit it by hand")
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
