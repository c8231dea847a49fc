"""A server that is killed under load: what it has acknowledged is there once and in order."""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException
from pathlib import Path

import pytest

import mnemic
from attack import seeds
from server_process import Served, ask, served

KILLS = 3
PATH = "/api/v1/sessions/shared/messages?scope=acme"


class Writer(threading.Thread):
    """Appends until it is told to stop; one that is `sure` sends each message again until it is acknowledged."""

    def __init__(self, server: Served, name: str, *, sure: bool, ended: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._server = server
        self._sure = sure
        self._ended = ended
        self.acknowledged: list[int] = []
        self.refused: list[int] = []

    def run(self) -> None:
        n = 0
        while not self._ended.is_set():
            connection = self._server.connect()
            try:
                while not self._ended.is_set():
                    said = f"{self.name}-{n}"
                    headers = {"Idempotency_Key": said} if self._sure else {}
                    status, _ = ask(connection, "POST", PATH, {"role": "user", "content": said}, **headers)
                    if status == 201:
                        self.acknowledged.append(n)
                        n += 1
                    else:
                        self.refused.append(status)
            except (OSError, HTTPException):
                n += not self._sure
                time.sleep(0.01)
            finally:
                connection.close()


@pytest.mark.parametrize("seed", seeds())
def test_a_killed_server_keeps_what_it_has_acknowledged(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    rng = random.Random(seed)
    ended = threading.Event()
    with served(url) as server:
        writers = [Writer(server, f"w{n}", sure=n % 2 == 0, ended=ended) for n in range(4)]
        for writer in writers:
            writer.start()
        for kill in range(KILLS + 1):
            before = [len(writer.acknowledged) for writer in writers]
            until = time.monotonic() + 120
            while any(len(writer.acknowledged) < n + 3 for writer, n in zip(writers, before, strict=True)):
                assert time.monotonic() < until, "writers do not come back"
                time.sleep(0.005)
            if kill < KILLS:
                time.sleep(rng.random() * 0.05)
                server.process.kill()
                server.process.start()
        ended.set()
        for writer in writers:
            writer.join(60)
            assert writer.refused == []
    with mnemic.open(url) as memory:
        texts = [message.text or "" for message in memory.scope("acme").session("shared").messages()]
    for writer in writers:
        found = [int(text.partition("-")[2]) for text in texts if text.startswith(f"{writer.name}-")]
        assert found == sorted(set(found)), "out of order, or twice"
        assert set(writer.acknowledged) <= set(found)
        if writer.name in ("w0", "w2"):
            assert found[: len(writer.acknowledged)] == list(range(len(writer.acknowledged)))
