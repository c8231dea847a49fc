"""Every parser, given changed and hostile input: it succeeds or raises an error that is expected, and soon."""

from __future__ import annotations

import re
import signal
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attack import ROUNDS, soak_only
from fuzzing import TARGETS, Target, load_targets

load_targets()

LONGEST = 30
"""Seconds after which a call counts as hanging."""
SLOW = {name: 8 for name in TARGETS if name.startswith("HTTP")}
"""Examples of targets that take long; of others, EXAMPLES."""
EXAMPLES = 50
LENGTH, LONGER = 4_000, 32_000
"""Sizes of repeated input, which takes at most as many times as long as it is longer, with some room."""
STEEP = 4 * LONGER / LENGTH
MEASURED = 0.03
"""Seconds of work from which times are compared: what is below is noise."""

TOKENS = [
    b"", b"\0", b"\xff", b"\xc3", b'"', b"\\", b"{", b"}", b"[", b"]", b"[" * 3000, b'{"a":' * 3000, b",", b":", b"/",
    b"//", b"?", b"#", b"@", b"%", b"%zz", b"=", b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 30,
    b"9" * 5000, b"\\ud800", b"\\u0000", b'""', b"{}", b"[]", b"\n", b"\r\n", b" ", b"\xe2\x80\xae", b"..",
    b"0001-01-01", b"9999-12-31T23:59:59.999999Z", b"<", b"&", b"'", b"{sub}", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80",
    b"a" * 300,
]  # fmt: skip
VALUE = re.compile(rb'"[^"]*"|-?\d+(?:\.\d+)?|true|false|null')
edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "replace", "double", "cut", "value", "value"]),
        st.floats(0, 1),
        st.integers(0, 40),
        st.sampled_from(TOKENS) | st.binary(max_size=6),
    ),
    max_size=4,
)


def edited(data: bytes, changes: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, where, length, put in changes:
        at = int(where * len(data))
        before, part, after = data[:at], data[at : at + length], data[at + length :]
        data = {
            "insert": before + put + part + after,
            "delete": before + after,
            "replace": before + put + after,
            "double": before + part + part + after,
            "cut": before,
            "value": with_value(data, where, put),
        }[kind]
    return data


def with_value(data: bytes, where: float, put: bytes) -> bytes:
    """Return JSON, or what resembles it, with one of its values or names replaced."""
    found = list(VALUE.finditer(data))
    if not found:
        return data
    chosen = found[int(where * (len(found) - 1))]
    return data[: chosen.start()] + put + data[chosen.end() :]


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    changed = st.builds(edited, st.sampled_from(target.examples), edits)
    return changed | changed | st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode())


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise AssertionError(f"it takes longer than {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", TARGETS)
def test_the_examples_are_valid(name: str) -> None:
    for example in TARGETS[name].examples:
        TARGETS[name].run(example)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_input_gives_only_expected_errors(name: str) -> None:
    target = TARGETS[name]

    @given(inputs(target))
    @settings(max_examples=SLOW.get(name, EXAMPLES) * ROUNDS, deadline=None)
    def run(data: bytes) -> None:
        with time_limit():
            target(data)

    run()


PATTERNS = [
    b"[", b"{", b'{"a":', b"(", b'"', b"\\", b" ", b"\n", b"a", b"A1", b"1", b"1 ", b"1-", b"1,", b"a.", b"a@", b"@",
    b".", b"-", b":", b"::", b"/", b"a/", b"%41", b"a=b&", b"_", b"=", b"{}", b"[]\n", b"\xff", b"\xc3\xa9",
    b"\xe4\xb8\x9c", b"DE89", b"4111 ", b"+49 ", b"sk-", b"# ", b"- ", b"`", b"a b ", b"[1,", b"\0", b"Aa ", b"data:,",
    b"<a>", b"{a}",
]  # fmt: skip


OF_OTHERS = {"TOML settings of clients": "tomllib takes quadratic time for dotted names"}
"""Targets whose time is not compared, and why."""


@soak_only
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in OF_OTHERS])
def test_the_time_grows_no_faster_than_the_input(name: str) -> None:
    target = TARGETS[name]
    found = {}
    for pattern in [*PATTERNS, *(example + b"\n" for example in target.examples if 20 < len(example) < LENGTH)]:
        long = pattern * (LONGER // len(pattern))
        with time_limit():
            if (took := cpu_time(target, long)) < MEASURED:
                continue
            short = cpu_time(target, pattern * (LENGTH // len(pattern)))
            if took > STEEP * max(short, MEASURED / STEEP):
                took = min(took, cpu_time(target, long))  # other processes slow a processor down, too
            if took > STEEP * max(short, MEASURED / STEEP):
                found[pattern[:40]] = f"{took:.3f} s instead of {short:.4f}"
    assert found == {}


def cpu_time(target: Target, data: bytes) -> float:
    """Return the seconds of work, the shortest of several runs if that is little."""
    times: list[float] = []
    while len(times) < 3 and (len(times) < 1 or times[-1] > MEASURED / STEEP):
        start = time.process_time()
        target(data)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("name", TARGETS)
def test_the_memory_is_bounded_by_the_input(name: str) -> None:
    target = TARGETS[name]
    target(target.examples[0])
    for pattern in (b"[", b'{"a":', b"1,", b"a ", b"\xff", target.examples[0]):
        data = (pattern * (LONGER // max(len(pattern), 1) + 1))[:LONGER]
        tracemalloc.start()
        try:
            target(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5_000_000 + 300 * len(data), pattern[:40]
