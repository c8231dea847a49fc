"""Every type that a public signature names can be imported from mnemic, or from mnemic.agents."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ForwardRef

import pytest

import mnemic
import mnemic.agents
import mnemic.api

OPENED = {
    *("Facts", "Memories", "Memory", "Notes", "Scope", "Session", "Sessions", "State", "Journal", "Learner"),
    *("AsyncFacts", "AsyncMemories", "AsyncNotes", "AsyncScope", "AsyncSession", "AsyncSessions", "AsyncState"),
    "AsyncMemory",
}
"""The classes that callers get from others and do not make, so that what makes one is not for them."""
BELOW = {"Store"}
"""The interface of back-ends, whose own signatures name what is in `mnemic.store`."""
PUBLIC = {name: getattr(module, name) for module in (mnemic.api, mnemic.agents) for name in module.__all__}


def callables(name: str) -> Iterator[tuple[str, Any]]:
    """Yield what callers call of a public name: the function, or the methods and properties of the class."""
    thing = PUBLIC[name]
    if isinstance(thing, FunctionType):
        yield name, thing
    if not inspect.isclass(thing) or not thing.__module__.startswith("mnemic"):
        return
    if name not in OPENED and isinstance(thing.__init__, FunctionType):
        yield f"{name}()", thing.__init__
    for member, value in inspect.getmembers(thing):
        plain = value.fget if isinstance(value, property) else inspect.unwrap(value)
        if not member.startswith("_") and (getattr(plain, "__module__", None) or "").startswith("mnemic"):
            yield f"{name}.{member}", plain


def annotated(name: str) -> Iterator[tuple[str, str, ModuleType]]:
    """Yield where each annotation of a public name stands, its text, and the module that it stands in."""
    for place, function in callables(name):
        for argument, annotation in function.__annotations__.items():
            yield f"{place}({argument})", str(annotation), sys.modules[function.__module__]
    thing = PUBLIC[name]
    for base in thing.__mro__ if inspect.isclass(thing) else ():
        if base.__module__.startswith("mnemic"):
            for field, annotation in inspect.get_annotations(base).items():
                if not field.startswith("_"):
                    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)
                    yield f"{name}.{field}", text, sys.modules[base.__module__]


@cache
def ours(module: ModuleType) -> dict[str, bool]:
    """Return the names that a module defines or imports, and whether they are of this package, and no TypeVar."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = bool(node.level) or node.module == "mnemic"
        elif isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0]: False for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = True
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            generic = "TypeVar" in ast.unparse(node.value)
            found |= {target.id: not generic for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - BELOW))
def test_every_type_in_a_public_signature_is_exported(name: str) -> None:
    missing = []
    for place, text, module in annotated(name):
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Name) and ours(module).get(node.id, not hasattr(builtins, node.id)):
                known = PUBLIC.get(node.id)
                if known is None or getattr(module, node.id, known) is not known:
                    missing.append(f"{place}: {node.id}")
    assert not missing


BRITISH = re.compile(
    r"(?i)(?:neighb|flav|col|fav|behavi|hon|lab)our|catalogue|dialogue|licence|centre|(?:label|journal)l(?:ed|ing)"
    r"|(?:summar|normal|serial|initial|recogn|organ|optim|token|real|general|special)is(?:e|ing|ation)|analyse"
)


def identifiers() -> set[str]:
    """Return the words of all public names: modules, classes, functions, parameters and fields."""
    found = set()
    for path in Path(mnemic.api.__file__).parent.rglob("*.py"):
        found.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return {word for name in found for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)}


def test_names_are_spelled_the_american_way() -> None:
    assert not {word for word in identifiers() if BRITISH.search(word)}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_how_many_is_called_limit_or_k(name: str) -> None:
    for place, function in callables(name):
        assert "n" not in inspect.signature(function).parameters, place


@pytest.mark.parametrize("name", ["Scope", "Sessions", "Notes", "Memories", "Facts", "State"])
def test_a_method_says_first_what_it_covers(name: str) -> None:
    silent = {
        place
        for place, function in callables(name)
        if not isinstance(inspect.getattr_static(PUBLIC[name], place.partition(".")[2]), property)
        and not re.search(r"scope|here|below", (inspect.getdoc(function) or "").partition("\n")[0])
    }
    assert not silent
