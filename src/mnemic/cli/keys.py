"""The command `keys`: create, list, expire, revoke and delete the API keys of a server's store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidValueError
from .options import StoreChoice, json_option, open_store
from .output import brief, path, print_json, printable, table, time
from .param_types import SCOPE, TIME, DurationType
from .serve import served_store_options

if TYPE_CHECKING:
    from ..event_loop import Driver
    from ..records import ScopePath
    from ..server.api_keys import ApiKey, ApiKeys

RIGHTS = ("read", "write", "erase", "admin")


class ExpiryType(DurationType):
    """When a key expires: after a duration, at a time, or never."""

    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a time, a duration, or None for never."""
        if not isinstance(value, str):
            return value
        if value == "never":
            return None
        if value == "now":
            return timedelta(0)
        return super().convert(value, param, ctx) if value[-1:] in "smhdw" else TIME.convert(value, param, ctx)


EXPIRY = ExpiryType()


@click.group()
def keys() -> None:
    """Create, list, expire, revoke and delete API keys of a server.

    The store is the one that `mnemic serve` would serve with the same settings. A key is bound to a scope and to
    rights. The store has only a hash of it, so it is shown once, when it is created.
    """


@contextmanager
def opened(store: StoreChoice, *, create: bool = False) -> Iterator[tuple[ApiKeys, Driver]]:
    """Open the keys of a store, and say which it is; changes of them are in its audit log."""
    from ..layers.audit_settings import Audit
    from ..server.api_keys import ApiKeys

    if store.url.lower().startswith(("http://", "https://")):
        raise InvalidValueError(
            "a server does not show its store's keys to clients: run mnemic keys on its machine, with the --store of "
            "mnemic serve, or use /api/v1/keys with a key that has the right 'admin'"
        )
    with open_store(store, create=create, name=True, audit=Audit(actor="mnemic keys")) as memory:
        yield ApiKeys(memory._async), memory._driver


def moment(keys: ApiKeys, expiry: datetime | timedelta | None) -> datetime | None:
    """Return when a key expires."""
    return keys.now() + expiry if isinstance(expiry, timedelta) else expiry


@keys.command()
@click.argument("name")
@click.option("--scope", type=SCOPE, required=True, help="What it is for: this scope and those below; / is all.")
@click.option(
    "--right", "rights", multiple=True, type=click.Choice(RIGHTS), default=("read", "write"), show_default=True,
    help="What it allows; may be given again.",
)  # fmt: skip
@click.option("--expires", type=EXPIRY, default="never", show_default=True, help="After 30d, or at 2027-01-31.")
@json_option
@served_store_options
def create(
    store: StoreChoice, name: str, scope: ScopePath, rights: tuple[str, ...], expires: Any, as_json: bool
) -> None:
    """Create a key, and print it this once.

    NAME tells whose it is: the audit log shows it as the actor of a change.
    """
    with opened(store, create=True) as (known, driver):
        made = driver.run(known.create(name, scope, rights, moment(known, expires)))
    if as_json:
        print_json({**as_dict(made.key), "secret": made.secret})
        return
    click.echo(made.secret)
    until = "does not expire" if made.key.expires is None else f"expires {time(made.key.expires)}"
    told = f"{printable(name)}: {', '.join(made.key.rights)} in {path(made.key.scope)}, {until}"
    click.echo(f"{told}. It is not shown again.", err=True)


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Also list revoked keys.")
@json_option
@served_store_options
def list_(store: StoreChoice, everything: bool, as_json: bool) -> None:
    """List the keys, oldest first."""
    with opened(store) as (known, driver):
        found, now = driver.run(known.list(revoked=everything)), known.now()
    if as_json:
        print_json([as_dict(key) for key in found])
        return
    rows = [
        [
            key.id, brief(key.name, 30), path(key.scope), ", ".join(key.rights), time(key.created), time(key.last_used),
            state(key, now),
        ]
        for key in found
    ]  # fmt: skip
    for line in table(("id", "name", "scope", "rights", "created", "last used", "state"), rows, left=tuple(range(7))):
        click.echo(line)


@keys.command()
@click.argument("id")
@click.argument("when", type=EXPIRY)
@json_option
@served_store_options
def expire(store: StoreChoice, id: str, when: Any, as_json: bool) -> None:
    """Set when a key expires.

    WHEN is a duration from now such as 30d, a time such as 2027-01-31, now, or never.
    """
    with opened(store) as (known, driver):
        key, now = driver.run(known.expire(id, moment(known, when))), known.now()
    report(key, now, as_json)


@keys.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
@served_store_options
def revoke(store: StoreChoice, ids: tuple[str, ...], as_json: bool) -> None:
    """Revoke keys for good, on running servers within a few seconds."""
    with opened(store) as (known, driver):
        for id in ids:
            report(driver.run(known.revoke(id)), known.now(), as_json)


@keys.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
@served_store_options
def delete(store: StoreChoice, ids: tuple[str, ...], as_json: bool) -> None:
    """Delete the records of revoked keys.

    A store without any is open to this machine again, when its server is started the next time.
    """
    with opened(store) as (known, driver):
        for id in ids:
            key = driver.run(known.delete(id))
            if as_json:
                print_json(as_dict(key))
            else:
                click.echo(f"{key.id} {printable(key.name)}: deleted")
        if not driver.run(known.count()):
            click.echo(
                "There is no key any more: on loopback, a server that starts now is open to this machine.", err=True
            )


def report(key: ApiKey, now: datetime, as_json: bool) -> None:
    """Print a key that was changed."""
    if as_json:
        print_json(as_dict(key))
    else:
        click.echo(f"{key.id} {printable(key.name)}: {state(key, now)}")


def state(key: ApiKey, now: datetime) -> str:
    """Return whether a key can be used, and until when."""
    if key.revoked is not None:
        return f"revoked {time(key.revoked)}"
    if key.expires is None:
        return "valid"
    return f"{'valid until' if key.is_valid(now) else 'expired'} {time(key.expires)}"


def as_dict(key: ApiKey) -> dict[str, Any]:
    """Return a key as JSON types."""
    from msgspec import to_builtins

    found: dict[str, Any] = to_builtins(key)
    return found
