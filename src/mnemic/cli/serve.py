"""The commands `serve` and `config`: the server, and the settings that it would have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .key_options import read_keys
from .options import Decorated, StoreChoice, debug_option, default_store, default_store_path, json_option
from .output import print_json, printable, table
from .param_types import STORE
from .redaction import read_redaction

if TYPE_CHECKING:
    from ..server.settings import EffectiveSettings, Field, Settings

PACKAGES = ("starlette", "uvicorn", "httptools", "prometheus_client", "jwt", "mcp")


class SettingsCommand(click.Command):
    """A command with a flag for each setting; they are made when it runs, since other commands do not need them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters of the command, and a flag for each setting."""
        from ..server.settings import fields

        own = super().get_params(ctx)
        known = {option for parameter in own for option in parameter.opts}
        return [*own, *(option(field) for field in fields().values() if field.flag not in known)]


def option(field: Field) -> click.Option:
    """Return the flag of a setting."""
    about = f"{field.about[0].upper()}{field.about[1:]}."
    default = "" if field.default in (None, (), True, False) else f"  [default: {field.default}]"
    if isinstance(field.default, bool):
        return click.Option([f"{field.flag}/--no-{field.flag[2:]}"], default=None, help=about)
    several = isinstance(field.default, tuple)
    return click.Option([field.flag], multiple=several, metavar="VALUE", help=f"{about}{default}")


def in_force(config: str | None, flags: dict[str, Any]) -> EffectiveSettings:
    """Return the settings in force; raises InvalidValueError and NotFoundError."""
    from os import environ

    from ..server.settings import load

    return load({name: value for name, value in flags.items() if value not in (None, ())}, environ, config)


def store_url(given: str) -> str:
    """Return the URL of a store."""
    return STORE.convert(given, None, None)


config_option: Callable[[Decorated], Decorated] = click.option(
    "--config", metavar="FILE", help="File with settings, in TOML.  [default: mnemic.toml, if there is one]"
)
store_option: Callable[[Decorated], Decorated] = click.option(
    "--store", "-s", metavar="URL", help="URL of the store, or path of an SQLite file."
)


def check_alive(settings: Settings) -> None:
    """Ask the server with these settings whether it is alive; raises StoreUnavailableError if it does not say so."""
    import ssl
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    from ..errors import StoreUnavailableError

    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate is for the name that clients use
    context.verify_mode = ssl.CERT_NONE
    asked = (
        HTTPSConnection(host, settings.port, timeout=2, context=context)
        if settings.tls_cert
        else HTTPConnection(host, settings.port, timeout=2)
    )
    try:
        asked.request("GET", "/live")
        said = str(asked.getresponse().status)
    except (OSError, HTTPException) as error:
        said = type(error).__name__
    finally:
        asked.close()
    if said != "200":
        raise StoreUnavailableError(f"no server is alive at {host}:{settings.port}: {said}")


def served_store(settings: Settings) -> StoreChoice:
    """Return the store that is served, and its keys."""
    from ..signing import read_signing_keys

    signing = read_signing_keys(settings.signing_key_file, settings.signing_key_env)
    key_store = None if settings.key_store is None else store_url(settings.key_store)
    keys = read_keys(settings.key_file, settings.key_env, key_store)
    redact = read_redaction(settings.redact or None, settings.redact_file)
    return StoreChoice(store_url(settings.store or default_store()), keys, signing, redact)


def served_store_options(command: Decorated) -> Decorated:
    """Add the settings of `serve` that choose a store; the command takes a `StoreChoice` as `store`."""
    names = ("store", "key_file", "key_env", "key_store")

    @config_option
    @store_option
    @click.option(
        "--key-file", multiple=True, metavar="FILE", help="File with a key of an encrypted store, - is stdin."
    )
    @click.option("--key-env", multiple=True, metavar="NAME", help="Environment variable with such a key.")
    @click.option("--key-store", metavar="URL", help="The store with its data keys, if they are kept apart.")
    @debug_option
    @functools.wraps(command)
    def run(*arguments: Any, config: str | None, **options: Any) -> Any:
        flags = {name: options.pop(name) for name in names}
        return command(*arguments, store=served_store(in_force(config, flags).settings), **options)

    return run


@click.command(cls=SettingsCommand)
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard in a browser.")
@click.option("--check", is_flag=True, help="Ask whether the server with these settings is alive, and exit.")
@config_option
@store_option
@debug_option
def serve(config: str | None, open_browser: bool, check: bool, **flags: Any) -> None:
    """Serve a store over HTTP: API, MCP and dashboard.

    Without options it serves memory.db in your data folder to this machine. Each setting is a flag, a variable
    MNEMIC_…, or a line of the file mnemic.toml; `mnemic config` shows all. A store that is not there yet is created.
    """
    from ..checks import check_extra

    found = in_force(config, flags).settings
    if check:
        check_alive(found)
        return
    check_extra("server", "a server", *PACKAGES)
    from ..server import serving

    def started(dashboard: str) -> None:
        if open_browser:
            click.launch(dashboard)

    store = served_store(found)
    serving.serve(found, store.url, store.keys, click.echo, started, store.redact)


@click.command(cls=SettingsCommand)
@json_option
@config_option
@store_option
@debug_option
def config(config: str | None, as_json: bool, **flags: Any) -> None:
    """Show the settings of `serve`, and where each came from."""
    from ..store.registry import masked

    found = in_force(config, flags)
    shown = found.shown()
    shown["store"]["value"] = masked(store_url(found.settings.store or default_store_path()))
    if as_json:
        print_json(shown)
        return
    rows = [[name, printable(_text(one["value"])), printable(one["origin"])] for name, one in shown.items()]
    for line in table(("setting", "value", "from"), rows, left=(0, 1, 2)):
        click.echo(line)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return ", ".join(value) if isinstance(value, tuple | list) else str(value or "")
