"""Commands that look after a store: migrate, reembed, reindex, rotate, scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import StoreChoice, filled_scope, json_option, open_store, run, store_options
from .output import count, print_json, progress, table
from .param_types import SCOPE, STORE

if TYPE_CHECKING:
    from ..records import ScopePath


@click.command()
@json_option
@store_options
def migrate(store: StoreChoice, as_json: bool) -> None:
    """Create the tables of a store, or update their schema."""
    from ..store import registry

    async def prepared() -> tuple[str, str]:
        parsed, backend = registry.find(store.url)
        if parsed.scheme == "sqlite":
            # A new file needs no preparation, so this one is a mistake.
            await registry.find_existing(store.url)
        if backend.prepare is not None:
            return str(parsed), await backend.prepare(parsed)
        opened = await backend.open(parsed)
        await opened.close()
        return str(parsed), "is at the newest schema"

    url, did = run(prepared())
    if as_json:
        print_json({"url": url, "did": did})
    else:
        click.echo(f"{url} {did}")


@click.command()
@click.option("--embedder", required=True, metavar="NAME", help="The embedder that computes vectors from now on.")
@json_option
@store_options
def reembed(store: StoreChoice, embedder: str, as_json: bool) -> None:
    """Compute all vectors again with another embedder.

    Recall continues with the old ones meanwhile. Interrupted, it continues where it was when it is run again.
    """
    with open_store(store) as memory, progress(embedder) as show:
        made = memory.reembed(embedder, progress=show)
    if as_json:
        print_json({"embedder": embedder, "texts": made})
    else:
        click.echo(f"{count(made, 'text')} embedded with {embedder}")


@click.command()
@click.option("--index", required=True, metavar="URL", help="The companion index, such as qdrant://host/name.")
@json_option
@store_options
def reindex(store: StoreChoice, index: str, as_json: bool) -> None:
    """Rebuild a companion index from what is stored."""
    with open_store(store, index=index) as memory, progress("reindex") as show:
        made = memory.reindex(progress=show)
    scheme = index.partition("://")[0]
    if as_json:
        print_json({"index": scheme, "texts": made})
    else:
        click.echo(f"{count(made, 'text')} in {scheme}")


@click.command()
@click.option(
    "--also",
    "archives",
    multiple=True,
    type=STORE,
    help="Another store with the same keys: an audit trail, or an archive of what was forgotten.",
)
@click.option("--data-keys", is_flag=True, help="Also encrypt every record again, with new data keys.")
@json_option
@store_options
def rotate(store: StoreChoice, archives: tuple[str, ...], data_keys: bool, as_json: bool) -> None:
    """Replace the key of an encrypted store.

    The first key is the new one, the others are those to read with. It wraps the data keys of the store again, and
    writes no record unless --data-keys is given. An audit trail or an archive at a URL of its own is included only if
    it is named with --also. The stores stay in use meanwhile. Interrupted, it continues where it was when it is run
    again.
    """
    from ..store.registry import StoreURL

    if store.keys is None:
        raise click.UsageError("rotate needs keys: the new one first, then the old, by --key-file or --key-env.")
    with open_store(store) as memory, progress("rotate") as show:
        changed = memory.rotate(archives=archives, data_keys=data_keys, progress=show)
    covered = [str(StoreURL.parse(url)) for url in (store.url, *archives)]
    if as_json:
        print_json({"records" if data_keys else "data_keys": changed, "stores": covered})
    else:
        done = f"{count(changed, 'record')} encrypted" if data_keys else f"{count(changed, 'data key')} wrapped"
        click.echo(f"{done} again; only the first key is needed for {', '.join(covered)}")


@click.command()
@click.argument("scope", type=SCOPE, default="/")
@click.option("--mend", is_flag=True, help="Redact what is found, in place.")
@json_option
@store_options
def scan(store: StoreChoice, scope: ScopePath, mend: bool, as_json: bool) -> None:
    """Find personal data and secrets in what is stored.

    It counts them by kind and type, and never prints them. With --mend it redacts them in place: masked, or as
    --redact-file says. The store stays in use meanwhile. Interrupted, it continues where it was when it is run again.
    """
    with open_store(store) as memory, progress("scan") as show:
        found = filled_scope(memory, scope).scan(mend=mend, progress=show)
    if as_json:
        print_json(found)
        return
    if found.found:
        rows = [(one.kind, one.recognizer, f"{one.findings:,}", f"{one.records:,}") for one in found.found]
        click.echo("\n".join(table(("kind", "type", "findings", "records"), rows)))
    click.echo(f"{found.matched:,} of {count(found.records, 'record')} hold personal data or secrets")
    if mend:
        click.echo(f"{count(found.mended, 'record')} redacted")
    if found.left:
        click.echo(f"{count(found.left, 'record')} left, since others kept changing them: run it again", err=True)
