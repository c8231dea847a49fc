"""Notes as text files under /memories: the commands of Anthropic's memory tool, with the texts that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from msgspec import json

from ..checks import check_choice, check_count, check_text, shown
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..store.retry import retry_conflicts
from .notes import AsyncNotes

ROOT = "/memories"
"""The folder that all files are in; the key of a note is the whole path of its file."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}
"""Commands, and the parameters that each needs."""
OPTIONAL = {"view": ("view_range",), "str_replace": ("new_str",)}
MAX_LINES = 999_999
"""Maximum number of lines of a file that can be viewed."""
WIDTH = 6
"""Width of a line number."""


class AsyncNoteFiles:
    """Files and folders of one scope, kept as its notes; a folder exists while there is a file in it.

    Every method returns a text for the model. Raises NotFoundError, ConflictError or InvalidValueError, whose
    message is one too, for what cannot be done. An edit that loses a race is done again on the new text.
    """

    def __init__(self, notes: AsyncNotes, source: str | None = None) -> None:
        """Use the notes of a scope; `source` is stored with what is written."""
        self._notes = notes
        self._source = source

    async def run(self, command: Mapping[str, Any]) -> str:
        """Run a command as the model gives it: its name as "command", and its parameters."""
        given = dict(command)
        name = check_choice(given.pop("command", None), "command", tuple(COMMANDS))
        if missing := [field for field in COMMANDS[name] if given.get(field) is None]:
            raise InvalidValueError(f"the command {name} needs {missing[0]}")
        known = COMMANDS[name] + OPTIONAL.get(name, ())
        do: Callable[..., Any] = getattr(self, name)
        return str(await do(**{field: given[field] for field in known if given.get(field) is not None}))

    async def view(self, path: str, view_range: Sequence[int] | None = None) -> str:
        """Show a file with line numbers, or the files of a folder two levels deep."""
        place = _checked(path)
        if (text := await self._text(place)) is None:
            return await self._listed(place, path)
        lines = text.split("\n")
        if len(lines) > MAX_LINES:
            raise InvalidValueError(f"File {path} exceeds maximum line limit of {MAX_LINES:,} lines.")
        first, last = 1, len(lines)
        if view_range is not None:
            if not isinstance(view_range, Sequence) or len(view_range) != 2:
                raise InvalidValueError(f"view_range must be two line numbers: {shown(view_range)}")
            first = max(1, check_count(view_range[0], "view_range", least=-1))
            end = check_count(view_range[1], "view_range", least=-1)
            last = last if end == -1 else end
        return f"Here's the content of {path} with line numbers:\n" + _numbered(lines, first, last)

    async def create(self, path: str, file_text: str) -> str:
        """Create a file; raises ConflictError if there is one."""
        place = _checked(path)
        text = check_text(file_text, "file_text")
        names = place.split("/")
        above = ["/".join(names[:n]) for n in range(3, len(names))]
        if above and (files := await self._notes.read_many(above)):
            raise InvalidValueError(f"The path {min(files, key=len)} is not a directory")
        taken = ConflictError(f"File {path} already exists")
        if place == ROOT or await self._sizes(place):
            raise taken
        try:
            await self._write(place, text, 0)
        except ConflictError:
            raise taken from None
        return f"File created successfully at: {path}"

    async def str_replace(self, path: str, old_str: str, new_str: str = "") -> str:
        """Replace a text that a file has exactly once."""
        check_text(old_str, "old_str")

        def replaced(text: str) -> tuple[str, str]:
            count = text.count(old_str) if old_str else 0
            if not count:
                raise InvalidValueError(
                    f"No replacement was performed, old_str `{old_str}` did not appear verbatim in {path}."
                )
            if count > 1:
                lines = ", ".join(str(text.count("\n", 0, found) + 1) for found in _places(text, old_str))
                raise InvalidValueError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old_str}` in lines: {lines}. "
                    "Please ensure it is unique"
                )
            changed = text.replace(old_str, check_text(new_str, "new_str"))
            line = text.count("\n", 0, text.find(old_str)) + 1
            snippet = _numbered(changed.split("\n"), max(1, line - 2), line + 2)
            heading = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
            return changed, f"{heading}\n{snippet}"

        return await self._edit(path, replaced)

    async def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert lines after a line of a file; 0 is its beginning."""
        if isinstance(insert_line, bool) or not isinstance(insert_line, int):
            raise InvalidValueError(f"insert_line must be an integer: {shown(insert_line)}")

        def inserted(text: str) -> tuple[str, str]:
            lines = text.split("\n")
            if not lines[-1]:
                lines.pop()
            if not 0 <= insert_line <= len(lines):
                raise InvalidValueError(
                    f"Invalid `insert_line` parameter: {insert_line}. It should be within the range [0, {len(lines)}]."
                )
            lines.insert(insert_line, check_text(insert_text, "insert_text").rstrip("\n"))
            changed = "\n".join(lines)
            return changed if changed.endswith("\n") else f"{changed}\n", f"The file {path} has been edited."

        return await self._edit(path, inserted)

    async def delete(self, path: str) -> str:
        """Delete a file, or a folder with all files in it."""
        place = _checked(path)
        if place == ROOT:
            raise InvalidValueError(f"Cannot delete the {ROOT} directory itself")
        found = [file for file in await self._sizes() if file == place or _within(file, place)]
        if not sum([await self._notes.delete(file) for file in found]):
            raise NotFoundError(f"The path {path} does not exist")
        return f"Successfully deleted {path}"

    async def rename(self, old_path: str, new_path: str) -> str:
        """Move a file, or a folder file by file; raises ConflictError if there is something at the new path."""
        old, new = _checked(old_path), _checked(new_path)
        if old == ROOT:
            raise InvalidValueError(f"Cannot rename the {ROOT} directory itself")
        files = await self._sizes()
        taken = ConflictError(f"The destination {new_path} already exists")
        if new == ROOT or new in files or any(_within(file, new) for file in files):
            raise taken
        if above := [file for file in files if _within(new, file)]:
            raise InvalidValueError(f"The path {above[0]} is not a directory")
        found = [file for file in files if file == old or _within(file, old)]
        if found and _within(new, old):
            raise InvalidValueError(f"Cannot rename {old_path} into itself")
        try:
            for file in found:
                await self._notes.rename(file, new + file.removeprefix(old))
        except (ConflictError, NotFoundError) as error:
            # Another writer was faster.
            raise taken if isinstance(error, ConflictError) else _absent(old_path) from None
        if not found:
            raise NotFoundError(f"The path {old_path} does not exist")
        return f"Successfully renamed {old_path} to {new_path}"

    async def clear(self) -> None:
        """Delete all files."""
        for file in await self._sizes():
            await self._notes.delete(file)

    async def _edit(self, path: str, change: Callable[[str], tuple[str, str]]) -> str:
        """Change a file's text, and return the answer that `change` returns with it."""
        place = _checked(path)

        async def edit() -> str:
            try:
                note = await self._notes.get(place)
            except NotFoundError:
                if place == ROOT or await self._sizes(place):
                    raise InvalidValueError(f"The path {path} is not a file.") from None
                raise _absent(path) from None
            text, answer = change(as_text(note.value))
            await self._write(place, text, note.version)
            return answer

        return await retry_conflicts(edit, f"editing {path}")

    async def _write(self, place: str, text: str, if_version: int) -> None:
        metadata = {"bytes": len(text.encode())}
        await self._notes.write(place, text, metadata=metadata, source=self._source, if_version=if_version)

    async def _text(self, place: str) -> str | None:
        found = await self._notes.read_many([place])
        return as_text(found[place]) if place in found else None

    async def _sizes(self, folder: str = ROOT) -> dict[str, int]:
        """Return the sizes of all files in a folder in bytes, by path, in order of their names."""
        notes = await self._notes.list(prefix=f"{folder}/")
        sizes = {note.key: note.metadata.get("bytes", note.size) for note in notes}
        return dict(sorted(sizes.items(), key=lambda item: item[0].split("/")))

    async def _listed(self, place: str, path: str) -> str:
        sizes = await self._sizes(place)
        if not sizes and place != ROOT:
            raise _absent(path)
        totals: dict[str, int] = {}
        for file, size in sizes.items():
            parts = file.removeprefix(place).split("/")[1:]
            for depth in range(1, min(len(parts), 2) + 1):
                if any(part.startswith(".") for part in parts[:depth]):
                    break
                entry = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
                totals[entry] = totals.get(entry, 0) + size
        lines = [f"{_size(size)}\t{place}/{entry}" for entry, size in totals.items()]
        header = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        return "\n".join([header, f"{_size(sum(sizes.values()))}\t{place}", *lines])


def _checked(path: object) -> str:
    """Return a path in its plain form; raises InvalidValueError unless it is in /memories.

    It is never the path of a real file. Still, one that would be outside as such is refused, in any spelling.
    """
    text = check_text(path, "path")
    if text.split("/")[:2] != ["", ROOT[1:]]:
        raise InvalidValueError(f"Path must start with {ROOT}, got: {text}")
    if ".." in unquote(text).replace("\\", "/").split("/"):
        raise InvalidValueError(f"Path {text} would escape {ROOT} directory")
    return "/" + "/".join(part for part in text.split("/") if part not in ("", "."))


def _within(file: str, folder: str) -> bool:
    return file.startswith(f"{folder}/")


def _places(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _absent(path: str) -> NotFoundError:
    return NotFoundError(f"The path {path} does not exist. Please provide a valid path.")


def as_text(value: Any) -> str:
    """Return the value of a note as text: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.encode(value).decode()


def _numbered(lines: Sequence[str], first: int, last: int) -> str:
    return "\n".join(f"{n:{WIDTH}}\t{line}" for n, line in enumerate(lines[first - 1 : last], first))


def _size(size: float) -> str:
    """Return a size such as 0B, 512B, 1.5K or 2M."""
    units = iter("BKMG")
    unit = next(units)
    while size >= 1024 and unit != "G":
        size, unit = size / 1024, next(units)
    return f"{size:.0f}{unit}" if size == int(size) else f"{size:.1f}{unit}"
