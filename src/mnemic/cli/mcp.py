"""The command `mcp`: a scope as an MCP server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import SCOPE, StoreChoice, default_store_options, names_option

if TYPE_CHECKING:
    from ..records import ScopePath

PROFILES = "default"


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
@click.option(
    "--profile",
    "profiles",
    default="default",
    show_default=True,
    callback=names_option,
    metavar="NAME,…",
    help=f"The tools to offer: {PROFILES}.",
)
@default_store_options
def mcp(store: StoreChoice, scope: ScopePath, profiles: tuple[str, ...]) -> None:
    """Serve a scope to an MCP client over stdin and stdout.

    A client starts it, and stops it by closing its input. A store that is not there yet is created.
    """
    from ..checks import check_extra

    check_extra("mcp", "an MCP server", "mcp")
    import asyncio

    from ..mcp import serve_stdio
    from ..memory import open_async

    async def serve() -> None:
        async with open_async(store.url, encryption_key=store.keys) as memory:
            await serve_stdio(memory, scope, profiles)

    asyncio.run(serve())
