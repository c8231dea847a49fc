"""The examples in the README and the docs run, and the figures are those that were measured."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.example import Example
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(path: Path) -> list[Example]:
    return list(Sybil(parsers=[PythonCodeBlockParser()]).parse(path))


@pytest.fixture
def levels() -> Iterator[None]:
    """Restore the levels of our loggers: examples set some."""

    def loggers() -> list[logging.Logger]:
        return [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("mnemic")]

    before = {logger.name: logger.level for logger in loggers()}
    yield
    for logger in loggers():
        logger.setLevel(before.get(logger.name, logging.NOTSET))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.usefixtures("levels", "capsys")
def test_the_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for example in examples(path):
        example.evaluate()


def test_there_are_examples() -> None:
    assert len(examples(ROOT / "README.md")) >= 4


@pytest.mark.parametrize("name", ["embedded", "recall", "quality", "peers", "servers", "million"])
def test_the_readme_shows_the_results_that_were_measured(name: str) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip()
    assert shown
    assert shown in (ROOT / "benchmarks" / "results.md").read_text()
