"""The examples in the README and the docs run, and the figures are those that were measured."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from sybil import Sybil
from sybil.example import Example
from sybil.parsers.markdown import PythonCodeBlockParser

from mnemic.telemetry import calls

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adapters"),
]


def examples(path: Path) -> list[Example]:
    return list(Sybil(parsers=[PythonCodeBlockParser()]).parse(path))


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what examples set for the whole process: loggers, and providers and listeners of telemetry."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())
    for name in ("_found", "_listeners"):
        monkeypatch.setattr(calls, name, [])
    monkeypatch.setattr(calls, "_content", None)

    def loggers() -> list[logging.Logger]:
        return [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("mnemic")]

    before = {logger.name: (logger.level, list(logger.handlers)) for logger in loggers()}
    yield
    for logger in loggers():
        level, logger.handlers = before.get(logger.name, (logging.NOTSET, []))
        logger.setLevel(level)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.usefixtures("restored", "capsys")
def test_the_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for example in examples(path):
        example.evaluate()


def test_there_are_examples() -> None:
    assert len(examples(ROOT / "README.md")) >= 4


def test_the_page_of_redaction_shows_the_results_that_were_measured() -> None:
    page = (ROOT / "docs" / "redaction.md").read_text()
    shown = page.partition("<!-- redaction -->")[2].partition("<!-- /redaction -->")[0].strip()
    results = (ROOT / "benchmarks" / "results.md").read_text()
    assert shown == results.partition("\n## redaction\n")[2].partition("\n## ")[0].strip()


@pytest.mark.parametrize("name", ["embedded", "recall", "quality", "peers", "servers", "million"])
def test_the_readme_shows_the_results_that_were_measured(name: str) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip()
    assert shown
    assert shown in (ROOT / "benchmarks" / "results.md").read_text()
