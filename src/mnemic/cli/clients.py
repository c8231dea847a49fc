"""Commands for coding agents and desktop clients: install, hook."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..clients.supported_clients import AFTER_TURN, BEFORE_TURN, CLIENTS, EVENTS
from ..errors import InvalidValueError, MissingExtraError, NotFoundError, StoreError
from .options import (
    StoreChoice,
    debug_option,
    default_store,
    default_store_options,
    json_option,
    names_option,
    open_store,
)
from .output import print_json, printable
from .param_types import SCOPE, STORE
from .redaction import read_redaction

if TYPE_CHECKING:
    from ..clients.hooks import HookInput
    from ..clients.supported_clients import Client, Command
    from ..clients.watchdog import Watchdog
    from ..records import ScopePath
    from ..sync import Memory, Scope

READ_SECONDS = 5.0
"""Time limit for reading the input and loading the library."""
RECALL_SECONDS = 0.3
STORE_SECONDS = 10.0
MAX_INPUT = 64 * 1024 * 1024


@click.command()
@click.argument("client", type=click.Choice(sorted(CLIENTS)), metavar="CLIENT")
@click.option(
    "--project", is_flag=True, help="Change the configuration of the project that this folder is in, not of the user."
)
@click.option("--hooks", is_flag=True, help="Also recall for each prompt and store each turn, by the client's hooks.")
@click.option("--store", "-s", type=STORE, envvar="MNEMIC_STORE", show_envvar=True, help="The store that it uses.")
@click.option("--scope", type=SCOPE, help="The scope that it uses.")
@click.option(
    "--profile",
    "profiles",
    callback=names_option,
    metavar="NAME,…",
    help="The tools that it offers, as for mnemic mcp.",
)
@click.option("--key-file", metavar="FILE", help="A file with the key of an encrypted store.")
@click.option("--key-env", metavar="NAME", help="The same, in an environment variable that the client passes on.")
@click.option("--key-store", type=STORE, help="The store with its data keys, if they are kept apart.")
@click.option("--redact", is_flag=True, help="Replace personal data and secrets before they are stored.")
@click.option("--redact-file", metavar="FILE", help="A TOML file that says what to redact, and how.")
@click.option("--remove", is_flag=True, help="Take back what an earlier install added.")
@click.option("--dry-run", is_flag=True, help="Show the change, and make none.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
@debug_option
def install(
    client: str, project: bool, hooks: bool, remove: bool, dry_run: bool, yes: bool, as_json: bool, **options: Any
) -> None:
    """Connect a client to a memory, by its configuration file.

    CLIENT is one of: {names}.

    It shows the change as a diff, and asks before it makes it. Nothing else in the file changes, and a file that
    cannot be read is an error and stays as it is.
    """
    from ..checks import check_extra
    from ..clients.install import plan_install, plan_removal
    from ..clients.project import checkout_folder
    from ..clients.supported_clients import find_client

    known = find_client(client)
    folder = checkout_folder(Path.cwd()) if project else None
    if remove:
        changes = plan_removal(known, folder)
    else:
        check_extra("mcp", "an MCP server", "mcp")
        source = click.get_current_context().get_parameter_source("store")
        server, hook = _commands(known, folder, source is ParameterSource.ENVIRONMENT, **options)
        changes = plan_install(known, folder, server, hook, hooks=hooks)
    if as_json:
        print_json([{"file": str(change.path), "diff": change.diff()} for change in changes])
    for change in () if as_json else changes:
        click.echo(printable(change.diff()), nl=False)
    said = f"nothing to change for {known.title}"
    if changes and not dry_run:
        if not yes:
            click.confirm(f"Make {'this change' if len(changes) == 1 else 'these changes'}?", abort=True, err=True)
        for change in changes:
            change.make()
        said = f"{known.title} uses {'no memory' if remove else 'this memory'} when it is started again"
    if not as_json and not (changes and dry_run):
        click.echo(said)


install.help = (install.help or "").format(names=", ".join(sorted(CLIENTS)))


def _commands(
    client: Client,
    folder: Path | None,
    inherited: bool,
    store: str | None,
    scope: ScopePath | None,
    profiles: tuple[str, ...],
    key_file: str | None,
    key_env: str | None,
    key_store: str | None,
    redact: bool,
    redact_file: str | None,
) -> tuple[Command, Command]:
    """Return the commands of the server and of the hooks; `inherited` says that the store is that of the environment.

    Raises InvalidValueError or NotFoundError for what cannot work.
    """
    from ..checks import check_names
    from ..clients.install import find_program
    from ..clients.project import project_scope
    from ..clients.supported_clients import STORE_VARIABLE, Command
    from ..files import read_file
    from ..store.registry import find
    from .mcp import PROFILES

    terminal = client.terminal
    check_names(profiles, "profile", PROFILES)
    if key_file is not None:
        key_file = str(Path(key_file).expanduser().absolute())
        read_file(key_file, 1)
    program, *start = find_program(portable=terminal or folder is not None)
    options: list[str] = []
    variables: dict[str, str] = {}
    if store is not None:
        url = _absolute(store)
        # Every user of the machine can see arguments, so a URL with secrets is no argument.
        secret = str(find(url)[0]) != url
        if not secret:
            options += ["--store", url]
        elif folder is None:
            variables[STORE_VARIABLE] = url
        elif not inherited:
            raise InvalidValueError(
                f"the URL of the store has a password, and files of a project are shared: set {STORE_VARIABLE} in the "
                f"environment that {client.title} is started in, and do not give --store"
            )
        if secret and inherited and (folder is not None or client.hooks is not None):
            click.echo(f"{STORE_VARIABLE} must be set in the environment that {client.title} is started in", err=True)
    if key_store is not None and str(find(key_store)[0]) != key_store:
        raise InvalidValueError("the URL of the key store has a password, which every user of the machine could see")
    stored = None if key_store is None else _absolute(key_store)
    for name, value in (("--key-file", key_file), ("--key-env", key_env), ("--key-store", stored)):
        options += [name, value] if value else []
    if redact_file is not None:
        redact_file = str(Path(redact_file).expanduser().absolute())
        read_redaction(True, redact_file)
        options += ["--redact-file", redact_file]
    elif redact:
        options.append("--redact")
    fixed = ["--scope", str(scope)] if scope is not None else []
    server = fixed or (["--project"] if terminal else ["--scope", str(project_scope(folder))] if folder else [])
    tools = ["--profile", ",".join(profiles)] if profiles else []
    return (
        Command(program, [*start, "mcp", *options, *server, *tools], variables),
        Command(program, [*start, "hook", *options, *fixed], {} if inherited else variables),
    )


def _absolute(url: str) -> str:
    """Return a URL whose SQLite file is absolute, since clients start commands in other folders."""
    from urllib.parse import quote, unquote

    scheme, slashes, rest = url.partition(":///")
    if scheme.lower() != "sqlite" or not slashes or rest.startswith("/"):
        return url
    path, question, options = rest.partition("?")
    return f"{scheme}:///{quote(str(Path(unquote(path)).absolute()), safe='/:')}{question}{options}"


class HookUsageError(click.UsageError):
    """An error of usage with exit code 1: agents take 2 as an order to stop."""

    exit_code = 1


class HookCommand(click.Command):
    """A command whose errors of usage are a HookUsageError."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(*arguments, **extra)
        except click.UsageError as error:
            raise HookUsageError(error.format_message(), error.ctx) from None


@click.command(cls=HookCommand)
@click.argument("event", type=click.Choice(EVENTS), metavar="EVENT")
@click.option("--scope", type=SCOPE, help="The scope to use; by default that of the project.")
@click.option("--max-tokens", type=click.IntRange(1), default=800, show_default=True, help="The size of an answer.")
@click.option("--min-score", type=float, default=0.3, show_default=True, help="Leave out what answers less well.")
@click.option("--timeout", type=click.FloatRange(0.01, 600), metavar="SECONDS", help="When to give up.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="Where failures are logged.")
@default_store_options
def hook(
    store: StoreChoice,
    event: str,
    scope: ScopePath | None,
    max_tokens: int,
    min_score: float,
    timeout: float | None,
    log: Path | None,
) -> None:
    """Do what a coding agent's hook needs.

    EVENT is one of: {events}. Before a turn it answers with what is remembered that may bear on the prompt; after
    a turn it stores what was said. The input is the hook's JSON on stdin. It never stops the agent: whatever fails
    is logged, and the exit code is 0.
    """
    from ..clients.watchdog import Watchdog

    if sys.stdin.isatty():
        raise HookUsageError("A coding agent runs this command, with JSON on stdin.")
    watchdog = Watchdog(event, log or Path(default_store()).with_name("hooks.log"))
    try:
        watchdog.allow(READ_SECONDS, "reading the input")
        given = sys.stdin.buffer.read(MAX_INPUT)
        text = _done(event, given, store, scope, max_tokens, min_score, timeout, watchdog)
        watchdog.answer(text)
    except Exception as error:
        watchdog.report(_reason(error))
        watchdog.answer("")


hook.help = (hook.help or "").format(events=", ".join(EVENTS))


def _done(
    event: str,
    given: bytes,
    store: StoreChoice,
    scope: ScopePath | None,
    max_tokens: int,
    min_score: float,
    timeout: float | None,
    watchdog: Watchdog,
) -> str:
    """Do what an event needs, and return the answer; raises whatever fails."""
    # One recall needs no threads of numpy, and starting them takes a quarter of the time to load it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The time limit of the store begins when the library is loaded.
    import numpy  # noqa: F401
    from msgspec import DecodeError, json

    from .. import api  # noqa: F401
    from ..clients import hooks

    try:
        found = hooks.HookInput.of(json.decode(given, type=dict[str, Any]))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise hooks.HookInputError("the input is not a JSON object") from None
    after = event in AFTER_TURN
    watchdog.allow(timeout or (STORE_SECONDS if after else RECALL_SECONDS), "the store")
    with ExitStack() as stack:
        try:
            tokens = "o200k_base" if after else hooks.EstimatedTokens()
            memory = stack.enter_context(open_store(store, create=after, tokens=tokens))
        except (InvalidValueError, NotFoundError) as error:
            raise StoreError(str(error)) from None  # about the store only, so it can be logged
        place = memory.scope(scope or found.scope)
        if after:
            with suppress(NotFoundError):  # no transcript: nothing was said
                _store(memory, place, found, store.url, watchdog)
            return ""
        if event in BEFORE_TURN:
            text = hooks.recall_for(place, found, max_tokens, min_score)
        else:
            text = hooks.overview(place, max_tokens)
    answer = {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}
    return json.encode(answer).decode() if text else ""


def _reason(error: Exception) -> str:
    """Return the reason for the log; texts of most errors may quote what was said."""
    from ..clients.hooks import HookInputError

    said = isinstance(error, StoreError | MissingExtraError | HookInputError)
    return f"{type(error).__name__}: {error}" if said else type(error).__name__


def _store(memory: Memory, scope: Scope, event: HookInput, url: str, watchdog: Watchdog) -> None:
    """Store what was said since the last hook."""
    from ..clients.hooks import store_turns
    from ..clients.progress import Progress
    from ..store.registry import masked

    file = Path(default_store()).with_name("hooks.db")
    with closing(Progress(file, masked(_absolute(url)), scope.path.path)) as progress:
        store_turns(memory, scope, event, progress, watchdog.report)
