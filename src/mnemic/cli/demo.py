"""The command `demo`: a store to look at, made by two processes, and the dashboard on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import debug_option
from .param_types import STORE

if TYPE_CHECKING:
    from ..errors import MissingExtraError


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--open/--no-open", "open_browser", default=None, help="Open the dashboard afterwards; else it asks.")
@debug_option
def demo(file: Path | None, open_browser: bool | None) -> None:
    """Show in a few seconds what it does, and the dashboard on it.

    FILE is a new SQLite file; without one it is in a temporary folder. In a terminal it offers to open the dashboard
    on it, otherwise it prints the command that does.
    """
    import os
    import shlex
    import subprocess
    import sys
    from tempfile import mkdtemp

    from ..errors import InvalidValueError
    from . import demo_story

    missing = _missing_extra()
    if open_browser and missing is not None:
        raise missing
    path = Path(mkdtemp(prefix="mnemic-demo-")) / "demo.db" if file is None else file
    if path.exists():
        raise InvalidValueError(f"{path} is there already: name a new file for the demo")
    terminal = sys.stdout.isatty()
    color = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    os.environ[demo_story.COLOR] = "1" if color else ""
    for part in ("talk", "remember"):
        command = [sys.executable, "-m", demo_story.__name__, part, STORE.convert(str(path), None, None)]
        if code := subprocess.run(command).returncode:  # noqa: S603
            raise click.exceptions.Exit(code)
    size = path.stat().st_size / 1024
    click.echo(f"\n  {demo_story.paint(f'One file of {size:.0f} KB; no key, no server, no download.', '2')}\n")
    if missing is None and open_browser is None and terminal and sys.stdin.isatty():
        open_browser = click.confirm("Open the dashboard on this file?", default=True)
    if open_browser:
        show_dashboard(path)
        return
    if missing is not None:
        click.echo("The dashboard needs more: pip install 'mnemic[server]'")
    click.echo(f"See it in a browser: mnemic serve --open --store {shlex.quote(str(path))}")


def _missing_extra() -> MissingExtraError | None:
    """Return the error that the dashboard would raise, if its packages are not installed."""
    from ..checks import check_extra
    from ..errors import MissingExtraError
    from .serve import PACKAGES

    try:
        check_extra("server", "the dashboard", *PACKAGES)
    except MissingExtraError as error:
        return error
    return None


def show_dashboard(path: Path) -> None:
    """Serve a file, on any free port if the usual one is taken, and open the dashboard with a question."""
    from urllib.parse import urlencode

    from ..server import serving
    from ..server.settings import Settings
    from .demo_story import QUESTION, SCOPE

    settings = Settings()  # whatever is set for a real server
    if not _is_free(settings.host, settings.port):
        settings = Settings(port=0)

    def started(dashboard: str) -> None:
        address = f"{dashboard}#/recall?{urlencode({'scope': SCOPE, 'q': QUESTION})}"
        click.echo(f"Opening {address}\nPress Ctrl+C to stop. The demo stays in {path}.")
        click.launch(address)

    serving.serve(settings, STORE.convert(str(path), None, None), None, click.echo, started)


def _is_free(host: str, port: int) -> bool:
    import socket

    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True
