"""The command `mcp`: a scope as an MCP server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from .options import StoreChoice, announce_new, default_store_options, existing_log, names_option
from .param_types import SCOPE

if TYPE_CHECKING:
    from ..records import ScopePath

PROFILES = ("default", "graph", "chatgpt", "files")
"""The profiles that the server has; it is not imported here, since that takes a second."""
BUSY_SECONDS = 10
"""How long a call waits for another process that holds an SQLite file."""


@click.command()
@click.option(
    "--scope",
    type=SCOPE,
    default="default",
    show_default=True,
    envvar="MNEMIC_SCOPE",
    show_envvar=True,
    help="The scope that the client sees; it cannot name another.",
)
@click.option("--project", is_flag=True, help="Serve the scope of the project folder that it is started in.")
@click.option(
    "--profile",
    "profiles",
    default="default",
    show_default=True,
    callback=names_option,
    metavar="NAME,…",
    help=f"The tools to offer: {', '.join(PROFILES)}.",
)
@click.option(
    "--file",
    "graph_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="MEMORY_FILE_PATH",
    show_envvar=True,
    help="The memory.jsonl of the reference memory server, for the profile graph; by default it uses the scope.",
)
@default_store_options
def mcp(
    store: StoreChoice, scope: ScopePath, project: bool, profiles: tuple[str, ...], graph_file: Path | None
) -> None:
    """Serve a scope to an MCP client over stdin and stdout.

    A client starts it, and stops it by closing its input. A store that is not there yet is created.
    """
    from ..checks import check_choice, check_extra

    for profile in profiles:
        check_choice(profile, "profile", PROFILES)
    check_extra("mcp", "an MCP server", "mcp")
    import asyncio
    import signal

    from ..mcp import serve_stdio
    from ..memory import open_async

    source = click.get_current_context().get_parameter_source("graph_file")
    if "graph" not in profiles and source is ParameterSource.COMMANDLINE:
        raise click.UsageError("--file is for --profile graph.")
    if graph_file is not None and profiles == ("graph",):
        # With a file, the profile graph has no use for a store.
        store = StoreChoice("memory://", None)
    if graph_file is not None:
        graph_file = graph_file.expanduser()
    if project:
        from ..clients.project import current_scope

        if click.get_current_context().get_parameter_source("scope") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--project and --scope name different scopes: give one of them.")
        scope = current_scope()

    announce_new(store)
    url = store.url
    if url.startswith("sqlite:") and "?" not in url:
        # A model should not wait for another process as long as a program may.
        url += f"?busy_timeout={BUSY_SECONDS}"

    async def serve() -> None:
        async with open_async(
            url, encryption_key=store.keys, redact=store.redact, history="recorded", audit=existing_log()
        ) as memory:
            await serve_stdio(memory, scope, profiles, graph_file=graph_file)

    # An interrupt ends the process at once: the thread that waits for input would keep it alive. All is stored by then.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(serve())
