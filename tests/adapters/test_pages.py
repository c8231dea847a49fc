"""The examples on the pages of the adapters run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from environments import ENVIRONMENTS, pages_of


@pytest.mark.parametrize(
    "path", pages_of(os.environ.get("MNEMIC_ADAPTERS", ENVIRONMENTS[0])), ids=lambda path: str(path.stem)
)
def test_the_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for example in Sybil(parsers=[PythonCodeBlockParser()]).parse(path):
        example.evaluate()
