"""The page on the architecture is true: traced calls pass through the files that it names, and those files exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers.stores import STORES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "design.md").read_text()

HEADINGS = {"chat.add": "### An add", "recall": "### A recall"}
MAX_CALLS, MAX_FILES = 60, 14
"""How many calls in how many files an add to SQLite may take."""


Calls = dict[str, list[tuple[str, str]]]
"""File and function of each call, by what was called."""


def calls_on(url: str, option: str) -> Calls:
    """Return the calls of a fresh process, in which nothing else traces."""
    command = [sys.executable, str(ROOT / "tools" / "measure_code.py"), option, url]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: Calls = json.loads(printed)
    return found


@pytest.fixture(scope="module")
def sqlite_calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    return calls_on(f"sqlite:///{tmp_path_factory.mktemp('traced')}/memory.db", "--trace")


@pytest.fixture(scope="module")
def postgresql_calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    with STORES["postgresql"].empty(tmp_path_factory.mktemp("traced")) as url:
        return calls_on(url, "--trace-async")


def files_on_page(heading: str, column: int) -> set[str]:
    table = PAGE.partition(heading)[2].partition("\n#")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    return {file for row in rows[1:] for file in re.findall(r"`([\w/]+\.py)`", row[column])}


@pytest.mark.parametrize("what", HEADINGS)
def test_a_call_on_sqlite_passes_through_the_files_of_the_page(what: str, sqlite_calls: Calls) -> None:
    assert {file for file, _ in sqlite_calls[what]} == files_on_page(HEADINGS[what], 2)


@pytest.mark.parametrize("what", HEADINGS)
def test_a_call_on_postgresql_passes_through_the_files_of_the_page(what: str, postgresql_calls: Calls) -> None:
    assert {file for file, _ in postgresql_calls[what]} == files_on_page(HEADINGS[what], 3)


def test_an_add_takes_few_calls_in_few_files(sqlite_calls: Calls) -> None:
    calls = sqlite_calls["chat.add"]
    assert 0 < len(calls) <= MAX_CALLS
    assert len({file for file, _ in calls}) <= MAX_FILES


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE))
    missing = {name for name in named if not any((ROOT / at / name).exists() for at in ("src/mnemic", ""))}
    assert missing == set()
