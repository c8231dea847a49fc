"""A time limit for the whole process, also if it hangs in a library: then it ends, and a log says why."""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

MAX_LOG = 1_000_000
"""Size in bytes above which a log file is emptied first."""


class Watchdog:
    """Ends the process with exit code 0 and without output, unless it has answered in time."""

    def __init__(self, task: str, log: Path | None) -> None:
        """Name the task for the log; without `log`, reasons go to stderr only."""
        self._task = task
        self._log = log
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def allow(self, seconds: float, doing: str) -> None:
        """Restart the time limit, for what is done now."""
        self.stop()
        self._timer = threading.Timer(seconds, self._end, (f"{doing} took longer than {seconds:g} seconds",))
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """End the time limit."""
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, text: str) -> None:
        """Write the answer to stdout, unless the time is over, and end the process.

        It ends at once: a driver's thread that hangs would keep it alive, and tidying up takes time.
        """
        with self._lock:
            self.stop()
            sys.stdout.write(text)
            sys.stdout.flush()
            if sys.stdout is sys.__stdout__:  # not within another program, such as a test
                os._exit(0)

    def report(self, reason: str) -> None:
        """Write one line on why there is no answer to stderr and to the log file; it never raises."""
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} mnemic hook {self._task}: {' '.join(reason.split())}\n"
        try:
            sys.stderr.write(line)
            if self._log is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                if self._log.exists() and self._log.stat().st_size > MAX_LOG:
                    flags |= os.O_TRUNC
                with os.fdopen(os.open(self._log, flags, 0o600), "a", encoding="utf-8", errors="replace") as file:
                    file.write(line)
        except (OSError, ValueError):
            return

    def _end(self, reason: str) -> None:
        with self._lock:
            self.report(reason)
            os._exit(0)
