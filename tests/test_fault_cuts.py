"""A connection that is cut in the middle of a request or of an answer, at many points, on every durable back-end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff

import mnemic
from attack import ROUNDS
from faults import DURABLE, Ledger, Network, network, said
from faulty_proxy import Cut, Mode, Pass

POINTS = 6 * ROUNDS
LARGE_POINTS = 2 * ROUNDS


@pytest.fixture(params=DURABLE)
def cut(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)  # AWS's driver waits long
    with network(request.param, tmp_path) as opened:
        yield opened


def points(size: int) -> list[int]:
    """Return where to cut so many bytes: before the first, within, and before the last."""
    return sorted({size * n // POINTS for n in range(POINTS)} | {1, max(0, size - 1)})


@pytest.mark.parametrize("part", ["request", "answer"])
@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
def test_what_was_acknowledged_is_there_once_wherever_the_connection_is_cut(
    cut: Network, part: str, times: int | None
) -> None:
    ledger = Ledger("w")
    with cut.open("timeout=2" if times is None else "timeout=30") as memory:
        chat = memory.scope("acme").session("s")
        for n in range(3):  # the first ones connect, and find out what the session is like
            cut.set(Pass())
            assert ledger.add(chat, n) is None
        size = cut.requested if part == "request" else cut.answered
        chosen = points(size) if times else [0, size // 2]
        n = 3
        for after in chosen:
            for once in (False, True):
                mode: Mode = Cut(after, times, requests=part == "request")
                cut.set(mode)
                failed = ledger.add(chat, n, once=once)
                cut.set(Pass())
                if failed is not None:
                    assert failed.retry, failed
                    if once:
                        ledger.add_surely(chat, n)
                n += 1
        ledger.add_surely(chat, n)
        ledger.check(said(chat))


@pytest.mark.parametrize("part", ["request", "answer"])
def test_a_large_write_is_done_wholly_or_not_at_all(cut: Network, part: str) -> None:
    """A write of many requests, or of many packets, is cut: readers see all of it or nothing."""
    messages = [mnemic.Message("user", f"{n} {'x' * 2000}") for n in range(120)]
    with cut.open("timeout=30") as memory:
        home = memory.scope("acme")
        cut.set(Pass())
        home.session("whole").add_many(messages)
        size = cut.requested if part == "request" else cut.answered
        for number in range(1, LARGE_POINTS + 1):
            chat = home.session(f"s{number}")
            cut.set(Cut(size * number // (LARGE_POINTS + 1), times=1, requests=part == "request"))
            failed: mnemic.MnemicError | None = None
            try:
                chat.add_many(messages, once="all")
            except mnemic.MnemicError as error:
                failed = error
            cut.set(Pass())
            if failed is not None:
                assert failed.retry, failed
                assert len(chat.messages()) in ((0, len(messages)) if failed.unsure else (0,))
            chat.add_many(messages, once="all")
            assert said(chat) == [message.text for message in messages]
