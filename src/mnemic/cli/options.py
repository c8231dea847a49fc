"""Options and arguments that commands share, and how commands open stores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import click

from ..errors import NotFoundError
from .key_options import key_options
from .param_types import STORE, TIME
from .redaction import redact_options

if TYPE_CHECKING:
    from ..layers.audit_settings import Audit
    from ..layers.master_key import EncryptionKeys
    from ..records import ScopePath
    from ..redaction.config import Redaction
    from ..signing import SigningKey
    from ..sync import Memory, Scope


Decorated: TypeAlias = Callable[..., Any]
Result = TypeVar("Result")

DEBUG = "mnemic.debug"
"""Where a click context keeps whether errors show where they came from."""
KINDS = ("message", "memory", "note", "fact", "summary", "title")


class StoreChoice(NamedTuple):
    """The store that a command is about, the keys that open it if it is encrypted, and what is redacted in it."""

    url: str
    keys: EncryptionKeys | None
    signing_keys: list[SigningKey] | None = None
    redact: Redaction | None = None


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


debug_option: Callable[[Decorated], Decorated] = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show where an error came from."
)
json_option: Callable[[Decorated], Decorated] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dry_run_option: Callable[[Decorated], Decorated] = click.option(
    "--dry-run", is_flag=True, help="Count what it would delete, and delete nothing."
)


at_option: Callable[[Decorated], Decorated] = click.option(
    "--at", type=TIME, help="As it was at this time, as far as the store has a history."
)


def default_store_path() -> str:
    """Return the path of the store for a user who names none: memory.db in the user's data folder."""
    import os
    import sys
    from pathlib import Path

    if sys.platform in ("win32", "darwin"):
        folder = Path(click.get_app_dir("mnemic", roaming=False))
    else:
        data = Path(os.environ.get("XDG_DATA_HOME", ""))
        folder = (data if data.is_absolute() else Path.home() / ".local" / "share") / "mnemic"
    return str(folder / "memory.db")


def default_store() -> str:
    """Return the path of the store for a user who names none, in a folder that is created."""
    from pathlib import Path

    path = default_store_path()
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def store_options(command: Decorated, default: Callable[[], str] | None = None) -> Decorated:
    """Add --store, the options of its keys and of redaction, and --debug; the command takes a `StoreChoice`."""
    chosen: dict[str, Any] = {"required": True}
    if default is not None:
        chosen = {"default": default, "show_default": "memory.db in your data folder"}

    @click.option(
        "--store",
        "-s",
        type=STORE,
        **chosen,
        envvar="MNEMIC_STORE",
        show_envvar=True,
        help="The URL of the store, or the path of an SQLite file.",
    )
    @key_options()
    @redact_options
    @debug_option
    @functools.wraps(command)
    def run(*arguments: Any, store: str, keys: EncryptionKeys | None, redact: Redaction | None, **options: Any) -> Any:
        return command(*arguments, store=StoreChoice(store, keys, redact=redact), **options)

    return run


def default_store_options(command: Decorated) -> Decorated:
    """Add the options of `store_options`; without --store, the command uses the store of `default_store`."""
    return store_options(command, default_store)


def filter_options(command: Decorated) -> Decorated:
    """Add the filters that recall and forget share."""
    for option in (
        click.option("--until", type=TIME, help="Only what was written at this time or before."),
        click.option("--since", type=TIME, help="Only what was written at this time or later."),
        metadata_option("Only what has this metadata; given again for one name, any of the values."),
        click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind."),
    ):
        command = option(command)
    return command


def metadata_option(help: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds --metadata NAME=VALUE, whose value is a dict."""
    return click.option("--metadata", multiple=True, callback=_metadata, metavar="NAME=VALUE", help=help)


def _metadata(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
    """Return metadata as a dict; a value is JSON if it is valid JSON, such as 3 or true, else a text."""
    from msgspec import DecodeError, json

    found: dict[str, list[Any]] = {}
    for given in values:
        name, equals, text = given.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{given!r} is not of the form NAME=VALUE.", ctx, param)
        try:
            value = json.decode(text)
        except (DecodeError, RecursionError, UnicodeEncodeError):
            value = text
        found.setdefault(name, []).append(value)
    return {name: several if len(several) > 1 else several[0] for name, several in found.items()} or None


def _weights(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float] | None:
    """Return factors by signal from SIGNAL=FACTOR; None if there are none."""
    found: dict[str, float] = {}
    for given in values:
        name, equals, factor = given.partition("=")
        try:
            if not equals or name in found:
                raise ValueError
            found[name] = float(factor)
        except ValueError:
            raise click.BadParameter(f"{given!r} is not of the form SIGNAL=FACTOR, once each.", ctx, param) from None
    return found or None


weight_option: Callable[[Decorated], Decorated] = click.option(
    "--weight",
    "weights",
    multiple=True,
    callback=_weights,
    metavar="SIGNAL=FACTOR",
    help="Multiply what a signal adds; can be repeated.",
)


def names_option(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return the names between commas, each once; an empty one is an error of usage."""
    names = () if value is None else tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if "" in names:
        raise click.BadParameter(f"{value!r} holds an empty name.", ctx, param)
    return names


def exists(store: StoreChoice) -> bool:
    """Return whether there is a store."""
    try:
        find_store(store)
    except NotFoundError:
        return False
    return True


def find_store(store: StoreChoice) -> None:
    """Raise NotFoundError if there is no store."""
    from ..event_loop import step
    from ..store import registry

    # An event loop takes longer to load than it takes to open an SQLite file.
    (step if registry.find(store.url)[1].inline else run)(registry.find_existing(store.url))


def announce_new(store: StoreChoice) -> None:
    """Say on stderr that a store will be created, if there is none yet."""
    if not exists(store):
        _name(store, "new store")


def _name(store: StoreChoice, what: str) -> None:
    from ..store import registry

    click.echo(f"{what}: {registry.StoreURL.parse(store.url)}", err=True)


def existing_log(log: str | None = None) -> Audit:
    """Return the settings that continue the audit log of a store, if it has one, or that of another store."""
    from getpass import getuser

    from ..layers.audit_settings import Audit

    try:
        actor = f"cli:{getuser()}"
    except (ImportError, KeyError, OSError):
        actor = "cli"
    return Audit(store=log, actor=actor, existing=True)


@contextmanager
def open_store(store: StoreChoice, *, create: bool = False, name: bool = False, **options: Any) -> Iterator[Memory]:
    """Open a memory; raises NotFoundError if there is no store yet, which with `create` is made.

    It says on stderr that a store is new, and with `name` which one it is in any case. A store with a history keeps it,
    and one with an audit log continues it.
    """
    from ..api import open

    options.setdefault("audit", existing_log())
    new = create and not exists(store)
    if not create:
        find_store(store)
    if store.signing_keys is not None:
        options["signing_key"] = store.signing_keys
    with open(store.url, encryption_key=store.keys, redact=store.redact, history="recorded", **options) as memory:
        if new or name:
            _name(store, "new store" if new else "store")
        yield memory


def filled_scope(memory: Memory, path: ScopePath, at: datetime | None = None) -> Scope:
    """Return a scope, or how it was at a time; raises NotFoundError if nothing is stored there.

    Its name may be mistyped. The root always exists.
    """
    scope = memory.scope(path) if at is None else memory.scope(path).as_of(at)
    if path.path and not scope.scopes(limit=1):
        raise NotFoundError(f"nothing is stored in the scope {path.path!r}")
    return scope


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine."""
    from ..event_loop import Portal

    driver = Portal()
    try:
        return driver.run(coroutine)
    finally:
        driver.close()
