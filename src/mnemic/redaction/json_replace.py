"""Replacement of values in a JSON text, in place: all that is not replaced keeps its form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from msgspec import Struct, field

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+\-]*|[{}\[\],]', re.DOTALL)
_INTEGER = re.compile(r"-?\d{1,40}")


class _Open(Struct):
    """An object or array that is being read."""

    object: bool
    name: str
    """The name of its field, which is also that of the items of an array."""
    names: set[str] = field(default_factory=set)


def replace_in_json(
    text: str, name_of: Callable[[str], str], string: Callable[[str, str], str], number: Callable[[int, str], int | str]
) -> str:
    """Return a valid JSON text with other names, strings and integers; the latter two are given with their names.

    Names of an object that become alike stay different.
    """
    pieces: list[str] = []
    given = {_decoded(match[0]) for match in _TOKEN.finditer(text) if match[0][0] == '"'}
    stack: list[_Open] = []
    end, name, names_next = 0, "", False
    for match in _TOKEN.finditer(text):
        token = match[0]
        first = token[0]
        new: object = None
        if first in "{[":
            stack.append(_Open(first == "{", name))
            names_next = first == "{"
        elif first in "}]":
            stack.pop()
            names_next = False
        elif first == ",":
            names_next = stack[-1].object
            name = stack[-1].name
        elif first == '"' and names_next:
            name, names_next = _decoded(token), False
            changed = name_of(name)
            while changed != name and (changed in stack[-1].names or changed in given):
                changed += " +"
            stack[-1].names.add(changed)
            new = None if changed == name else changed
        elif first == '"':
            value = _decoded(token)
            changed = string(value, name)
            new = None if changed == value else changed
        elif _INTEGER.fullmatch(token):
            digits = int(token)
            replaced = number(digits, name)
            new = None if replaced == digits else replaced
        if new is not None:
            pieces += [text[end : match.start()], json.dumps(new, ensure_ascii=False)]
            end = match.end()
    return "".join([*pieces, text[end:]])


def _decoded(token: str) -> str:
    found: str = json.loads(token, strict=False) if "\\" in token else token[1:-1]
    return found
