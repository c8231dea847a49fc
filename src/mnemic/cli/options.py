"""Options and arguments that commands share, and how commands open stores."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import click

from ..errors import InvalidValueError, NotFoundError
from .redaction import redact_options

if TYPE_CHECKING:
    from ..layers.audit_settings import Audit
    from ..layers.master_key import EncryptionKeys
    from ..records import ScopePath
    from ..redaction.config import Redaction
    from ..signing import SigningKey
    from ..sync import Memory, Scope

    _Type = click.ParamType[Any]  # at run time generic only since click 8.4
else:
    _Type = click.ParamType

Decorated: TypeAlias = Callable[..., Any]
Result = TypeVar("Result")

DEBUG = "mnemic.debug"
"""Where a click context keeps whether errors show where they came from."""
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
KINDS = ("message", "memory", "note", "fact", "summary", "title")


class StoreChoice(NamedTuple):
    """The store that a command is about, the keys that open it if it is encrypted, and what is redacted in it."""

    url: str
    keys: EncryptionKeys | None
    signing_keys: list[SigningKey] | None = None
    redact: Redaction | None = None


class StoreType(_Type):
    """The URL of a store; a plain path is that of an SQLite file.

    A command never takes a dead server for an empty store, so `on_failure=empty` is ignored.
    """

    name = "URL"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL."""
        from pathlib import Path
        from urllib.parse import quote

        if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.fail("the store is not named in UTF-8", param, ctx)
        # Configuration files of clients have no shell that expands it.
        scheme, slashes, rest = value.partition(":///")
        if slashes and scheme.lower() == "sqlite" and rest.startswith("~/"):
            return f"{scheme}:///{quote(str(Path.home()), safe='/:')}{rest[1:]}"
        if value.lower().startswith(("http://", "https://")):
            address, _, options = value.partition("?")
            kept = "&".join(one for one in options.split("&") if one != "on_failure=empty")
            return f"{address}?{kept}" if kept else address
        if "://" in value or "?" in value or not value:
            return value
        value = str(Path(value).expanduser()) if value.startswith("~/") else value
        # ':' and '@' stay, so that errors recognize and mask what was meant as a user and a password.
        return f"sqlite:///{quote(value, safe='/:@')}"


class KeyFileType(click.File):
    """A file that is opened; ~ is the home folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the open file."""
        from pathlib import Path

        return super().convert(str(Path(value).expanduser()) if isinstance(value, str) else value, param, ctx)


class ScopeType(_Type):
    """The path of a scope, such as acme/alice; / is the whole store."""

    name = "SCOPE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ScopePath:
        """Return the path; a bad one is an error of usage."""
        from ..records import ScopePath

        if isinstance(value, ScopePath):
            return value
        if not value:
            self.fail("a scope is a path of names, and / is the whole store: this one is empty", param, ctx)
        try:
            return ScopePath("" if value == "/" else value)
        except InvalidValueError as error:
            self.fail(str(error), param, ctx)


class TimeType(_Type):
    """A time in ISO 8601; one without an offset is in UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time."""
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-01-31 or 2026-01-31T18:00+01:00.", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class DurationType(_Type):
    """A duration such as 90s, 30m, 12h, 7d or 2w."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration."""
        if isinstance(value, timedelta):
            return value
        if (found := re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhdw])", value)) is None:
            self.fail(f"{value!r} is not a duration such as 90s, 30m, 12h, 7d or 2w.", param, ctx)
        return timedelta(**{UNITS[found[2]]: float(found[1])})


STORE, SCOPE, TIME, DURATION = StoreType(), ScopeType(), TimeType(), DurationType()


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


def key_options(prefix: str = "", whose: str = "an encrypted store") -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds --key-file and --key-env, with the prefix; the value is `{prefix}keys`.

    A key is never part of the command line, where every user of the machine could see it.
    """
    name = f"{prefix}key".replace("-", "_")

    def decorate(command: Decorated) -> Decorated:
        @click.option(
            f"--{prefix}key-file",
            multiple=True,
            type=KeyFileType("rb"),
            metavar="FILE",
            help=f"A file with the key of {whose}, - for stdin. Given again, a further key to read with.",
        )
        @click.option(f"--{prefix}key-env", multiple=True, metavar="NAME", help="The same, in an environment variable.")
        @click.option(f"--{prefix}key-store", type=STORE, help="The store with its data keys, if they are kept apart.")
        @functools.wraps(command)
        def run(*arguments: Any, **options: Any) -> Any:
            sources: dict[str, Callable[[Any], str | bytes]] = {
                f"{name}_file": _key_in_file,
                f"{name}_env": _key_in_variable,
            }
            given = {option: options.pop(option) for option in sources}
            # Click keeps the parameters in the order in which they were given, and the first key encrypts.
            order = [option for option in click.get_current_context().params if option in given]
            keys = [sources[option](value) for option in order for value in given[option]]
            found = with_key_store(keys, options.pop(f"{name}_store"))
            return command(*arguments, **options, **{f"{name}s": found})

        return run

    return decorate


def signing_key_options(command: Decorated) -> Decorated:
    """Add --signing-key-file and --signing-key-env; the value is `signing_key`, None if none is given."""

    @click.option(
        "--signing-key-file",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="A file with the signing key, if it is not kept in the store. Given again, a further key to verify with.",
    )
    @click.option("--signing-key-env", multiple=True, metavar="NAME", help="The same, in an environment variable.")
    @functools.wraps(command)
    def run(
        *arguments: Any, signing_key_file: tuple[str, ...], signing_key_env: tuple[str, ...], **options: Any
    ) -> Any:
        from ..signing import read_signing_keys

        return command(*arguments, signing_key=read_signing_keys(signing_key_file, signing_key_env), **options)

    return run


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


def _key_in_file(file: IO[bytes]) -> str | bytes:
    from ..layers.master_key import MAX_KEY_FILE, key_in_content

    return key_in_content(file.read(MAX_KEY_FILE + 1), file.name)


def _key_in_variable(variable: str) -> str:
    from ..layers.master_key import key_in_variable

    return key_in_variable(variable)


def with_key_store(keys: list[str | bytes], key_store: str | None) -> EncryptionKeys | None:
    """Return keys with the store of their data keys; None without keys. Raises InvalidValueError for a store alone."""
    if key_store is None:
        return keys or None
    if not keys:
        raise InvalidValueError("a key store needs a key of the encrypted store, in a file or a variable")
    from ..layers.master_key import Encryption

    return Encryption(keys, key_store=key_store)


def read_keys(files: Sequence[str], variables: Sequence[str], key_store: str | None = None) -> EncryptionKeys | None:
    """Return the keys in files and environment variables; None if there are none. Raises InvalidValueError."""
    from pathlib import Path

    keys: list[str | bytes] = []
    for name in files:
        try:
            with click.open_file(str(Path(name).expanduser()), "rb") as file:  # - is stdin
                keys.append(_key_in_file(file))
        except OSError as error:
            raise InvalidValueError(f"cannot read the key file {name}: {error.strerror}") from None
    return with_key_store([*keys, *map(_key_in_variable, variables)], key_store)


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
