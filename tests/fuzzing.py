"""Parsers as functions of bytes that a hostile file, caller or store may hold, with valid examples: what a target is.

A target raises one of the errors that its callers expect, or nothing. The targets are in fuzz_inputs.py and
fuzz_stored.py; Hypothesis calls them in test_fuzz.py, atheris in tools/fuzz.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mnemic.errors import MnemicError


class Target(NamedTuple):
    """A parser: the function, valid input, and the errors besides ours that its callers expect."""

    run: Callable[[bytes], object]
    examples: list[bytes]
    expected: tuple[type[Exception], ...] = ()

    def __call__(self, data: bytes) -> None:
        """Run it; raises what is neither an error of ours nor expected."""
        with suppress(MnemicError, *self.expected):
            self.run(data)


TARGETS: dict[str, Target] = {}


def target(name: str, *examples: object, expected: tuple[type[Exception], ...] = ()) -> Callable[[Any], Any]:
    """Add a function of bytes, or of text, with examples that are written as JSON unless they are bytes or text."""

    def add(run: Callable[..., object]) -> Callable[..., object]:
        TARGETS[name] = Target(run, [_bytes(example) for example in examples], expected)
        return run

    return add


def _bytes(example: object) -> bytes:
    if isinstance(example, bytes):
        return example
    return (example if isinstance(example, str) else json.dumps(example)).encode()


def text(data: bytes) -> str:
    """Return bytes as text, in which those that are not UTF-8 are lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def value(data: bytes) -> Any:
    """Return the JSON value of bytes; raises ValueError, as callers do before they call a target."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError from None


def each(*runs: Callable[[], object], expected: tuple[type[Exception], ...] = ()) -> None:
    """Run all functions; raises the last error if none succeeds, and any that is neither ours nor expected."""
    ours: tuple[type[Exception], ...] = (MnemicError, *expected)
    failed: Exception | None = None
    succeeded = False
    for run in runs:
        try:
            run()
            succeeded = True
        except ours as error:
            failed = error
    if failed is not None and not succeeded:
        raise failed


def in_file(data: bytes, read: Callable[[Path], object], name: str = "file") -> object:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return read(path)


def load_targets() -> None:
    """Import the modules that add targets."""
    import fuzz_inputs  # noqa: F401
    import fuzz_stored  # noqa: F401
