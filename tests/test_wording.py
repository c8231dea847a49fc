"""Docstrings, error messages and docs use plain modern English, so that readers find the words they search for."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "mnemic").rglob("*.py"))
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "index.md"]
OPENINGS = re.compile(r"(Return what|What|Tell whether)\b")
OLD_WORDS = re.compile(
    r"\b(of ours|that is none|that are none|[Ww]hoever|the one who|anew|[Ss]ummaris\w+|neighbour\w*|behaviour\w*|"
    r"what is to be)\b"
)


@cache
def strings(path: Path) -> list[tuple[int, str, bool]]:
    """Return line, text and whether it is a docstring, of every string of several words."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value, id(node) in documents)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()
    ]


def test_a_docstring_begins_with_what_a_thing_is_or_does() -> None:
    found = [(path.name, line, text) for path in SOURCES for line, text, document in strings(path) if document]
    assert [(name, line, text[:60]) for name, line, text in found if OPENINGS.match(text)] == []


def test_docstrings_and_errors_have_no_old_words() -> None:
    found = [(path.name, line, text) for path in SOURCES for line, text, _ in strings(path)]
    assert [(name, line, text[:60]) for name, line, text in found if OLD_WORDS.search(text)] == []


def test_docs_have_no_old_words() -> None:
    pages = [(path, path.read_text(encoding="utf-8").splitlines()) for path in PAGES]
    lines = [(path.name, n, line) for path, page in pages for n, line in enumerate(page, 1)]
    assert [(name, n, line) for name, n, line in lines if OLD_WORDS.search(line)] == []
