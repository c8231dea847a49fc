"""Server processes of a test run: folders, ports, and guaranteed cleanup."""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from mnemic.errors import MissingExtraError, StoreUnavailableError

from . import cleanup

HOST = "127.0.0.1"
PATIENCE = 120.0
"""Seconds that a server has to answer after its start."""
_PORTS = range(15000, 32000)
"""Below the ephemeral ports, so that a stopped server finds its port free again."""
_ROOM = 2 * 2**30

_running: list[Process] = []


class Process:
    """A server that can be stopped, killed and restarted on the same ports."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        end: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.folder = folder
        self._argv = [str(part) for part in argv]
        self._ready = ready
        self._environment = {**os.environ, **(environment or {})}
        self._user = user
        self._end = end
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._running.pid if self._running is not None else None

    def start(self) -> None:
        """Start the server and wait until it answers; raises StoreUnavailableError if it does not."""
        if self._running is not None:
            return
        _cleanup()  # first: no server may run unsupervised
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._argv,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for pytest, which may still need the server
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
            )
        _tell("hold", self._running.pid, self._end)
        _running.append(self)
        until = time.monotonic() + PATIENCE
        while not self._ready():
            if self._running.poll() is not None or time.monotonic() > until:
                self.kill()
                tail = self.log.read_text(errors="replace")[-2000:]
                raise StoreUnavailableError(f"{self._argv[0]} did not start; its log ends with:\n{tail}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server gracefully, and wait for it."""
        self._finish(self._end)

    def kill(self) -> None:
        """Kill the server and its child processes, as a power cut would."""
        if self._running is None:
            return
        self._running.send_signal(signal.SIGSTOP)  # so that it starts no more
        children = _children(self._running.pid)
        self._finish(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        while any(map(_is_alive, children)):
            time.sleep(0.001)

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self.folder / "log"

    def _finish(self, how: signal.Signals) -> None:
        if self._running is None:
            return
        self._running.send_signal(how)
        try:
            self._running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        _tell("drop", self._running.pid, how)
        _running.remove(self)
        self._running = None


def _children(parent: int) -> list[int]:
    """Return the child processes of a process, on Linux; elsewhere none."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _state(pid)[1:] == [str(parent)]]


def _is_alive(pid: int) -> bool:
    return _state(pid)[:1] not in ([], ["Z"])


def _state(pid: int) -> list[str]:
    """Return the state and the parent of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


def call(argv: Sequence[str | Path], *, user: int | None = None) -> None:
    """Run a command to completion; raises StoreUnavailableError with its output if it fails."""
    done = subprocess.run(
        [str(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    if done.returncode:
        raise StoreUnavailableError(f"{argv[0]} failed: {done.stdout[-2000:]}")


def new_folder(name: str) -> Path:
    """Return a new, empty folder that is removed when this process ends."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_home()))


def free_port(*offsets: int) -> int:
    """Return a port that is free now, along with those at the offsets from it."""
    below = _PORTS[: len(_PORTS) - max(offsets, default=0)]
    while True:
        port = random.choice(below)
        if all(_is_free(port + offset) for offset in (0, *offsets)):
            return port


def answers(port: int) -> bool:
    """Return whether a port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def needed(module: str) -> ModuleType:
    """Return a module; raises MissingExtraError, naming the extra, if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(error.name or module) from error


def installed(module: str) -> Path:
    """Return the path of a package without importing it; raises MissingExtraError as `needed` does."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise _missing(module)
    return Path(found.origin).parent


def _missing(module: str) -> MissingExtraError:
    return MissingExtraError(f"this server needs the package {module}; install it with: make setup", name=module)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


@functools.cache
def _home() -> Path:
    """Return the folder of all servers of this process; the cleanup process removes it."""
    memory = Path("/dev/shm")  # creating a database there takes a tenth of the time
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    folder = Path(tempfile.mkdtemp(prefix="mnemic-servers-", dir=memory if roomy else None))
    folder.chmod(0o711)  # a server that runs as another user has its own folder below
    return folder


@functools.cache
def _cleanup() -> subprocess.Popen[str]:
    """Return the process that stops the servers when its pipe breaks, however this process ends."""
    started = subprocess.Popen(
        [sys.executable, "-I", "-S", cleanup.__file__, str(_home())],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end_all, started, os.getpid())
    return started


def _end_all(started: subprocess.Popen[str], owner: int) -> None:
    """Stop all servers gracefully; a forked child leaves them alone."""
    if os.getpid() != owner:
        return
    while _running:
        _running[-1].stop()
    started.communicate()


def _tell(word: str, pid: int, how: int) -> None:
    pipe = _cleanup().stdin
    assert pipe is not None
    pipe.write(f"{word} {pid} {int(how)}\n")
    pipe.flush()
