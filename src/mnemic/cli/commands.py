"""The group of all commands, and how their errors end: one line on stderr, and an exit code."""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from ..errors import MnemicError
from .audit import audit
from .clients import hook, install
from .demo import demo
from .doctor import doctor
from .edit import forget, remember
from .erasure import erase, hold
from .evaluate import evaluation
from .history import history, restore
from .inspect import ls, ping, recall, show, stats
from .keys import keys
from .maintain import migrate, reembed, reindex, rotate, scan
from .mcp import mcp
from .options import DEBUG, debug_option
from .serve import config, serve
from .transfer import copy, export, import_

SECTIONS: dict[str, list[click.Command]] = {
    "Look": [ls, show, stats, recall, history, ping],
    "Change": [remember, forget, restore, erase, hold],
    "Connect": [install, mcp, hook],
    "Serve": [demo, serve, config, keys],
    "Move": [export, import_, copy],
    "Maintain": [audit, doctor, scan, migrate, reembed, reindex, rotate],
    "Measure": [evaluation],
}
"""The commands as the help lists them."""


class Commands(click.Group):
    """The command group; a MnemicError ends a command with one line on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; with --debug, a MnemicError is not caught."""
        try:
            return super().invoke(ctx)
        except MnemicError as error:
            if ctx.meta.get(DEBUG):
                raise
            click.echo(f"mnemic: {' '.join(str(error).split())}", err=True)
            ctx.exit(1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, in the order in which one meets them."""
        width = max(len(command.name or "") for commands in SECTIONS.values() for command in commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [
                    ((command.name or "").ljust(width), command.get_short_help_str(formatter.width - width - 4))
                    for command in commands
                ]
                formatter.write_dl(rows)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mnemic", prog_name="mnemic")
@debug_option
def main() -> None:
    """Memory for AI agents.

    A store is named by --store, or by the environment variable MNEMIC_STORE: the URL that mnemic.open takes, or the
    path of an SQLite file. A scope is a path such as acme/alice; / is the whole store.
    """


for _command in chain.from_iterable(SECTIONS.values()):
    main.add_command(_command)
