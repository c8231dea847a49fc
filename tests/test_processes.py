"""Several processes on one file, and processes that die while they write."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import mnemic

APPEND = textwrap.dedent("""
    import sys
    import mnemic
    url, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with mnemic.open(url) as memory:
        chat = memory.scope("acme").session("shared")
        for n in range(count):
            chat.add("user", f"{writer}-{n}")
            print(n, flush=True)
""")


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_eight_processes_append_to_one_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}?synchronous=normal"
    writers = [start(APPEND, url, writer, 100) for writer in range(8)]
    for writer in writers:
        _, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
    with mnemic.open(url) as memory:
        texts = [message.text or "" for message in memory.scope("acme").session("shared").messages()]
        info = memory.scope("acme").session("shared").info()
    assert len(texts) == 8 * 100
    for writer_number in range(8):
        own = [text for text in texts if text.startswith(f"{writer_number}-")]
        assert own == [f"{writer_number}-{n}" for n in range(100)]
    assert info is not None
    assert info.messages == 800


def test_many_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    writers = [start(APPEND, url, writer, 1) for writer in range(6)]
    for writer in writers:
        _, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
    with mnemic.open(url) as memory:
        assert len(memory.scope("acme").session("shared").messages()) == 6


def test_a_process_killed_in_a_batch_leaves_all_of_it_or_none(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        import mnemic
        with mnemic.open(sys.argv[1]) as memory:
            chat = memory.scope("acme").session("shared")
            for batch in range(1000):
                chat.add_many([mnemic.Message("user", f"{batch}-{n}") for n in range(50)])
                print(batch, flush=True)
    """)
    url = f"sqlite:///{tmp_path / 'a.db'}?synchronous=normal"
    for _ in range(5):
        writer = start(program, url)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.02)
        writer.kill()
        writer.communicate()
        with mnemic.open(url) as memory:
            messages = memory.scope("acme").session("shared").messages()
            assert len(messages) % 50 == 0
            memory.scope("acme").erase()


def test_a_new_file_that_another_process_is_setting_up_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    finishing = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    finishing.start()
    with mnemic.open(f"sqlite:///{file}") as memory:
        memory.scope("acme").session("s").add("user", "hi")
    finishing.join()
    other.close()
