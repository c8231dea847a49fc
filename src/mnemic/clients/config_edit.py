"""Edits JSON with comments, and tables of TOML, as text, so that everything but the edited value keeps its bytes."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, NoReturn

from msgspec import Struct

from ..errors import InvalidValueError

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
"""White space and comments."""
_REST_OF_LINE = re.compile(r"(?:[ \t]+|/\*[^\r\n]*?\*/)*(?://[^\r\n]*)?(?=\r?\n|$)")
"""The rest of a value's line, if it is only a comment, which belongs to the value."""
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_ATOM = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
MAX_DEPTH = 100


class JsonNode(Struct):
    """A value in the text, from `start` to `end`; of an object or a list also its members."""

    start: int
    end: int
    value: Any
    members: list[JsonMember] | None = None


class JsonMember(Struct):
    """A member of an object or a list: its name or place, where it starts, its value, and whether a comma follows."""

    name: str | int
    start: int
    node: JsonNode
    comma: int = -1
    """Position of the comma after it, -1 if there is none."""


class JsonText:
    """A JSON document with comments and trailing commas, as editors write it."""

    def __init__(self, text: str) -> None:
        """Parse a document; raises InvalidValueError, with the line, if it is not an object."""
        self.text: str = text
        self._at = 1 if text.startswith("\ufeff") else 0
        self.newline: str = "\r\n" if "\r\n" in text else "\n"
        found = _INDENT.search(text)
        self.indent: str = "\t" if found and "\t" in found[1] else " " * min(len(found[1]) if found else 2, 8)
        if not text[self._at :].strip():
            self.text = f"{text[: self._at]}{{}}{self.newline}"
        self._skip()
        self.root: JsonNode = self._value(0)
        self._skip()
        if self._at < len(self.text):
            self._fail("unexpected text after the document")
        if not isinstance(self.root.value, dict):
            raise InvalidValueError("the document is not an object")

    def find(self, *path: str | int) -> JsonNode | None:
        """Return the value at a path; None if there is none."""
        node = self.root
        for name in path:
            member = next((one for one in node.members or () if one.name == name), None)
            if member is None:
                return None
            node = member.node
        return node

    def set(self, path: tuple[str | int, ...], value: Any) -> JsonText:
        """Return the document with a value at a path; missing objects are added.

        Raises InvalidValueError if something on the path is not an object.
        """
        node, depth = self._deepest(path)
        if depth == len(path):
            on_one_line = node.members and "\n" not in self.text[node.start : node.end]
            text = json.dumps(value, ensure_ascii=False) if on_one_line else self._written(value, depth)
            return self._replaced(node.start, node.end, text)
        if not isinstance(node.value, dict):
            raise InvalidValueError(f"{'.'.join(map(str, path[:depth]))} is not an object")
        for name in reversed(path[depth + 1 :]):
            value = {name: value}
        return self._added(node, depth, value, f"{json.dumps(path[depth])}: ")

    def append(self, path: tuple[str, ...], value: Any) -> JsonText:
        """Return the document with a value at the end of the list at a path, which is added if it is missing."""
        node = self.find(*path)
        if node is None:
            return self.set(path, [value])
        if not isinstance(node.value, list):
            raise InvalidValueError(f"{'.'.join(path)} is not a list")
        return self._added(node, len(path), value)

    def remove(self, path: tuple[str | int, ...]) -> JsonText:
        """Return the document without the value at a path, and without objects and lists that this empties."""
        parent = self.find(*path[:-1])
        member = next((one for one in (parent.members if parent else None) or () if one.name == path[-1]), None)
        if parent is None or member is None:
            return self
        assert parent.members is not None
        if len(parent.members) == 1 and len(path) > 1 and self._bare(parent, member):
            return self.remove(path[:-1])
        place = parent.members.index(member)
        before = parent.members[place - 1] if place else None
        start, end = self._line(parent, before, member)
        cut = self.text[:start] + self.text[end:]
        if member.comma < 0 and before is not None:
            # It was the last one, so the comma before it goes too.
            cut = cut[: before.comma] + cut[before.comma + 1 :]
        return JsonText(cut)

    def _line(self, parent: JsonNode, before: JsonMember | None, member: JsonMember) -> tuple[int, int]:
        """Return the span of a member with its comma, and of its line if nothing else is on it."""
        if before is None and self._bare(parent, member):
            return parent.start + 1, parent.end - 1
        end = max(member.node.end, member.comma + 1)
        above = self.text.rfind("\n", 0, member.start)
        rest = _REST_OF_LINE.match(self.text, end)
        if rest is None or self.text[above + 1 : member.start].strip():
            return (parent.start if before is None else before.comma) + 1, end
        return above - (self.text[above - 1] == "\r"), rest.end()

    def _bare(self, parent: JsonNode, member: JsonMember) -> bool:
        """Return whether an object or list holds nothing but this member: no comments."""
        inner = self.text[parent.start + 1 : member.start] + self.text[member.node.end : parent.end - 1]
        return not inner.replace(",", "").strip()

    def _deepest(self, path: tuple[str | int, ...]) -> tuple[JsonNode, int]:
        for depth in range(len(path), -1, -1):
            if (node := self.find(*path[:depth])) is not None:
                return node, depth
        raise AssertionError("the root is always found")

    def _added(self, node: JsonNode, depth: int, value: Any, name: str = "") -> JsonText:
        """Return the document with a member at the end of an object or a list, in the style of the others."""
        text = name + self._written(value, depth + 1)
        pad, end = self.newline + self.indent * (depth + 1), self.newline + self.indent * depth
        if not node.members:
            inner = self.text[node.start + 1 : node.end - 1].rstrip()
            return self._replaced(node.start + 1, node.end - 1, f"{inner}{pad}{text}{end}")
        last = node.members[-1]
        if "\n" not in self.text[node.start : node.end]:
            on_one_line = f", {name}{json.dumps(value, ensure_ascii=False)}"
            return self._replaced(last.node.end, last.node.end, on_one_line)
        pad = self._pad(last, pad)
        comma = last.comma + 1 if last.comma >= 0 else last.node.end
        rest = _REST_OF_LINE.match(self.text, comma)
        place = rest.end() if rest else comma
        tail = "," if last.comma >= 0 else ""
        between = self.text[comma:place]
        return self._replaced(comma, place, f"{'' if last.comma >= 0 else ','}{between}{pad}{text}{tail}")

    def _pad(self, member: JsonMember, default: str) -> str:
        """Return a line end and the indentation of a member."""
        line = self.text[self.text.rfind("\n", 0, member.start) + 1 : member.start]
        return self.newline + line if not line.strip() else default

    def _written(self, value: Any, depth: int) -> str:
        text = json.dumps(value, ensure_ascii=False, indent=self.indent)
        return text.replace("\n", self.newline + self.indent * depth)

    def _replaced(self, start: int, end: int, text: str) -> JsonText:
        return JsonText(self.text[:start] + text + self.text[end:])

    def _value(self, depth: int) -> JsonNode:
        start = self._at
        if depth > MAX_DEPTH:
            self._fail("nested too deep")
        if self.text.startswith("{", start):
            members = list(self._members("}", depth))
            return JsonNode(start, self._at, {str(one.name): one.node.value for one in members}, members)
        if self.text.startswith("[", start):
            members = list(self._members("]", depth))
            return JsonNode(start, self._at, [one.node.value for one in members], members)
        found = _STRING.match(self.text, start) or _ATOM.match(self.text, start)
        if found is None:
            self._fail("a value was expected")
        self._at = found.end()
        return JsonNode(start, self._at, self._decoded(found[0]))

    def _members(self, close: str, depth: int) -> Iterator[JsonMember]:
        self._at += 1
        seen: set[str | int] = set()
        while True:
            self._skip()
            if self.text.startswith(close, self._at):
                self._at += 1
                return
            start = self._at
            name: str | int = len(seen) if close == "]" else self._name()
            if name in seen:
                self._fail(f"the name {name!r} appears twice")
            seen.add(name)
            member = JsonMember(name, start, self._value(depth + 1))
            self._skip()
            if self.text.startswith(",", self._at):
                member.comma = self._at
                self._at += 1
            elif not self.text.startswith(close, self._at):
                self._fail(f"a comma or {close} was expected")
            yield member

    def _name(self) -> str:
        if (found := _STRING.match(self.text, self._at)) is None:
            self._fail("a name in double quotes was expected")
        self._at = found.end()
        self._skip()
        if not self.text.startswith(":", self._at):
            self._fail("a colon was expected")
        self._at += 1
        self._skip()
        return str(self._decoded(found[0]))

    def _decoded(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            self._fail("a bad escape in a string")

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self._at)
        self._at = found.end() if found else self._at

    def _fail(self, reason: str) -> NoReturn:
        line = self.text.count("\n", 0, self._at) + 1
        raise InvalidValueError(f"line {line}: {reason}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return a document's value; raises InvalidValueError, with the line, if it is not TOML."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise InvalidValueError(str(error)) from None


def set_table(text: str, path: tuple[str, ...], values: dict[str, Any]) -> str:
    """Return the document with a table of these values, in place of the old one or at the end."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{'.'.join(path)}]", *(f"{name} = {_written(value)}" for name, value in values.items())]
    block = newline.join(lines) + newline
    if (span := _span(text, path)) is not None:
        return text[: span[0]] + block + text[span[1] :]
    start = text if not text or text.endswith("\n") else text + newline
    return f"{start}{newline if text.strip() else ''}{block}"


def remove_table(text: str, path: tuple[str, ...]) -> str:
    """Return the document without a table and the tables within it; the empty line before each goes too."""
    while (span := _span(text, path) or _span(text, path, within=True)) is not None:
        before = text[: span[0]]
        shorter = re.sub(r"(^|(?<=\n))\r?\n\Z", "", before)
        text = shorter + text[span[1] :]
    return text


def has_table(text: str, path: tuple[str, ...]) -> bool:
    """Return whether a table has a header of its own."""
    return _span(text, path) is not None


def _span(text: str, path: tuple[str, ...], within: bool = False) -> tuple[int, int] | None:
    """Return where a table or one within it is: its header, and the lines up to an empty one, a comment or a header."""
    names = r"\s*\.\s*".join(rf'(?:{re.escape(name)}|"{re.escape(name)}")' for name in path)
    names += r"\s*\.[^\]\r\n]+" if within else ""
    found = re.search(
        rf"^[ \t]*\[\s*{names}\s*\][^\r\n]*(?:\r?\n|\Z)(?:[ \t]*[^\s#\[][^\r\n]*(?:\r?\n|\Z))*", text, re.MULTILINE
    )
    return None if found is None else found.span()


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_written(item)}' for name, item in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
