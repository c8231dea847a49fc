"""The command `audit`: show, verify and checkpoint the audit log of a store."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from ..errors import InvalidValueError, MnemicError, NotFoundError
from .key_options import signing_key_options
from .options import Decorated, StoreChoice, json_option, open_store, store_options
from .output import brief, count, path, print_json, printable, table, time
from .param_types import SCOPE, STORE, TIME

if TYPE_CHECKING:
    from ..layers.audit_entry import AuditEntry
    from ..layers.audit_verify import AuditProblem
    from ..records import ScopePath
    from ..sync import Memory

MAX_DOCUMENT = 256 * 1024 * 1024
"""How many bytes of a checkpoint or certificate are read."""


@click.group()
def audit() -> None:
    """Show and verify the audit log of a store.

    The log is in the store itself, or at the URL of --log. Its links have a key: one that is kept in the store, unless
    the memory was opened with another one, which the options for a signing key name.
    """


def log_options(command: Decorated) -> Decorated:
    """Add --store, --log and the options for keys; the command takes a `StoreChoice` and what `open` needs besides."""

    @click.option("--log", type=STORE, help="The store of the log, if it is not in the store itself.")
    @signing_key_options
    @functools.wraps(command)
    def run(*arguments: Any, log: str | None, signing_key: Any, **options: Any) -> Any:
        return command(*arguments, opening={"audit": log or True, "signing_key": signing_key}, **options)

    return store_options(run)


@contextmanager
def opened(store: StoreChoice, opening: dict[str, Any]) -> Iterator[Memory]:
    """Open a store with its audit log."""
    if store.url.lower().startswith(("http://", "https://")):
        raise InvalidValueError(
            "the audit log of a server is read there: run mnemic audit on its machine, with the --store of mnemic "
            "serve, or use /api/v1/audit with a key that has the right 'admin'"
        )
    with open_store(store, **opening) as memory:
        yield memory


@audit.command()
@click.argument("scope", type=SCOPE, default="/")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many entries at most.")
@click.option("--since", type=TIME, help="Only what was done then or later.")
@click.option("--until", type=TIME, help="Only what was done then or earlier.")
@click.option("--actor", help="Only what this actor did.")
@click.option("--session", help="Only what was done in this session of the actor.")
@click.option("--address", help="Only what was done from this address.")
@click.option("--operation", help="Only this operation: put, delete, purge, limit, expire, touch, read, scan, recall.")
@click.option("--kind", help="Only records of this kind, such as message or note.")
@click.option("--key", help="Only the record with this key or id.")
@click.option("--flag", help="Only entries with this flag.")
@json_option
@log_options
def show(
    store: StoreChoice, opening: dict[str, Any], scope: ScopePath, limit: int, as_json: bool, **filters: Any
) -> None:
    """Show the newest entries of the log of a scope and below, newest first."""
    with opened(store, opening) as memory:
        found = memory.audit_page(scope, limit=limit, **filters).entries
    if as_json:
        print_json([entry.to_dict() for entry in found])
        return
    if not found:
        click.echo("no entries", err=True)
        return
    rows = [
        [time(entry.time), path(entry.scope), str(entry.number), entry.operation, entry.kind, _what(entry), _who(entry)]
        for entry in found
    ]
    for line in table(["time", "scope", "entry", "operation", "kind", "what", "who"], rows, left=(0, 1, 3, 4, 5, 6)):
        click.echo(line)


def _what(entry: AuditEntry) -> str:
    told = entry.key or (count(entry.count, "record") if entry.count is not None else "")
    return brief(printable(told + (" (unsure)" if entry.unsure else "")))


def _who(entry: AuditEntry) -> str:
    return brief(printable(" ".join(filter(None, (entry.actor, entry.address and f"from {entry.address}")))))


@audit.command()
@click.argument("certificates", metavar="[CERTIFICATE]...", nargs=-1, type=click.File("rb"))
@click.option("--scope", type=SCOPE, default="/", help="Only the log of this scope and those below.")
@click.option("--checkpoint", type=click.File("rb"), help="A file that mnemic audit checkpoint wrote earlier.")
@click.option(
    "--trust", multiple=True, metavar="FINGERPRINT", help="A public key that may sign certificates, or its fingerprint."
)
@json_option
@log_options
@click.pass_context
def verify(
    ctx: click.Context, store: StoreChoice, opening: dict[str, Any], certificates: tuple[IO[bytes], ...],
    scope: ScopePath, checkpoint: IO[bytes] | None, trust: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Check that nothing in the log was removed, changed, reordered or inserted; exit with status 1 if so.

    With files, it checks these certificates of erasures instead: that they were not changed, and were signed with the
    key of the store or a key of --trust.
    """
    with opened(store, opening) as memory:
        if certificates:
            results = [_certificate(memory, file, trust) for file in certificates]
            if as_json:
                print_json(results)
            else:
                for result in results:
                    click.echo(f"{result['file']}: {result['message']}")
            ctx.exit(0 if all(result["valid"] for result in results) else 1)
        known = None if checkpoint is None else _document(checkpoint)
        found = memory.audit_verify(scope, checkpoint=known)
    if found.intact and not found.chains:
        raise NotFoundError(f"there is no audit log {f'of the scope {scope.path!r} ' if scope.path else ''}here")
    if as_json:
        print_json(found.to_dict())
    else:
        for problem in found.problems:
            click.echo(f"PROBLEM  {_said(problem)}")
        for note in found.notes:
            click.echo(f"note     {_said(note)}")
        checked = f"{count(found.entries, 'entry', 'entries')} in {count(found.chains, 'log')}"
        click.echo(f"{checked}: " + ("intact" if found.intact else f"{count(len(found.problems), 'problem')}"))
        if found.intact and not found.keyed:
            click.echo("the key of the links is in the store: who can write to the store could forge the log", err=True)
    ctx.exit(0 if found.intact else 1)


def _said(problem: AuditProblem) -> str:
    where = f"{path(problem.scope)}: "
    return where + (f"entry {problem.number} " if problem.number is not None else "") + printable(problem.message)


def _document(file: IO[bytes]) -> dict[str, Any]:
    from msgspec import DecodeError, json

    try:
        found = json.decode(file.read(MAX_DOCUMENT))
    except (DecodeError, RecursionError) as error:
        raise InvalidValueError(f"{file.name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValueError(f"{file.name} is not a JSON object")
    return found


def _certificate(memory: Memory, file: IO[bytes], trust: tuple[str, ...]) -> dict[str, Any]:
    """Return whether a certificate is valid, and what was found."""
    from ..features.certificate import ErasureCertificate
    from ..signing import verify_signature

    try:
        document = _document(file)
        certificate = ErasureCertificate.from_dict(document)
        trusted = trust or tuple(key.public_key for key in memory.signing_keys())
        if not trusted:
            raise InvalidValueError("the store has no signing key: name the key that you trust with --trust")
        signer = verify_signature(document, trusted)
    except MnemicError as error:
        return {"file": file.name, "valid": False, "message": str(error)}
    by = f" by {certificate.actor}" if certificate.actor else ""
    message = (
        f"valid: {count(certificate.records, 'record')} of the scope {certificate.scope or '/'} erased at "
        f"{time(certificate.finished)}{by}, signed with the key {signer}"
    )
    if certificate.unreached:
        message += f"; {count(len(certificate.unreached), 'place')} not reached yet: mnemic erase --finish"
    return {"file": file.name, "valid": True, "message": message, "key": signer}


@audit.command()
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@json_option
@log_options
def checkpoint(store: StoreChoice, opening: dict[str, Any], file: str, as_json: bool) -> None:
    """Write how far the log has come to a file, to be kept elsewhere.

    With it, verify finds entries that were cut off at the end of a log, and logs that were removed as a whole. The file
    has no names and no content.
    """
    from msgspec import json

    from ..files import replace_file

    with opened(store, opening) as memory:
        document = memory.audit_checkpoint()
    replace_file(file, json.format(json.encode(document), indent=1))
    if as_json:
        print_json({"file": file, "logs": len(document["heads"]), "signed": "signature" in document})
        return
    signed = "" if "signature" in document else "; it is not signed, since cryptography is not installed"
    click.echo(f"{count(len(document['heads']), 'log')} in {file}{signed}")
