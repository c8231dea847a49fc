"""Commands that move what is stored: export, import, copy."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConflictError, NotFoundError
from .key_options import key_options
from .options import StoreChoice, at_option, debug_option, exists, filled_scope, json_option, open_store, store_options
from .output import count, print_json, printable, progress
from .param_types import SCOPE, STORE
from .redaction import redact_options

if TYPE_CHECKING:
    from ..layers.master_key import EncryptionKeys
    from ..records import ScopePath
    from ..redaction.config import Redaction


@click.command()
@click.argument("file", metavar="FILE|FOLDER")
@click.option(
    "--format",
    type=click.Choice(["jsonl", "markdown", "csv"]),
    help="The format, if the name of the file does not tell.",
)
@click.option("--scope", type=SCOPE, default="/", help="Export only this scope and those below it.")
@click.option("--subject", is_flag=True, help="Write a .zip with everything about a subject, for a request of access.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
@at_option
@json_option
@store_options
def export(
    store: StoreChoice,
    file: str,
    format: str | None,
    scope: ScopePath,
    subject: bool,
    overwrite: bool,
    at: datetime | None,
    as_json: bool,
) -> None:
    """Write everything to a file, or to a folder of Markdown.

    JSON lines can be imported again, and nothing is lost. Markdown is for reading, in a new folder: a file for each
    session, and one with the memories, notes and facts of a scope. CSV is a table with a row for each of them. The
    name tells the format if it ends in .jsonl or .csv. As FILE, - is stdout, where it is JSON lines unless --format
    says otherwise. A file is written whole or not at all, and is not encrypted. An empty store is an error.

    With --subject it is a .zip with everything about the subject of --scope: to read, to import, what was derived
    elsewhere, and the audit log.
    """
    if subject:
        if at is not None or format is not None:
            raise click.UsageError("--subject writes a .zip of the present: it takes neither --at nor --format.")
        _export_subject(store, scope, file, overwrite, as_json)
        return
    from ..transfer.exporting import format_of

    target: Any = sys.stdout.buffer if file == "-" else file
    if format is None:
        format = format_of(target)
    if format != "markdown" and file != "-" and not overwrite and Path(file).is_file():
        raise ConflictError(f"there is a file {file} already: --overwrite replaces it")
    with open_store(store) as memory, progress("export") as show:
        place = filled_scope(memory, scope, at)
        if not place.scopes(limit=1):
            raise NotFoundError(f"there is nothing to export: {memory.url} is empty")
        done = place.export_to(target, format=format, progress=show)
    _print_on(done, f"{count(done.records, 'record')} exported", as_json, err=file == "-")


def _export_subject(store: StoreChoice, scope: ScopePath, file: str, overwrite: bool, as_json: bool) -> None:
    from .erasure import opened

    if not scope.path:
        raise click.UsageError("With --subject, give the --scope of one subject.")
    if not overwrite and Path(file).is_file():
        raise ConflictError(f"there is a file {file} already: --overwrite replaces it")
    with opened(store, {"audit": True}) as memory:
        done = memory.scope(scope).subject_export(file)
    entries = count(done.audit, "entry of the audit log", "entries of the audit log")
    said = f"{count(done.records, 'record')} exported, {done.elsewhere:,} derived elsewhere, {entries}"
    said += f", {count(done.versions, 'earlier version')}" if done.versions else ""
    said += "".join(f"\nleft out, and may concern the subject: {one}" for one in done.unreadable)
    _print_on(done, said, as_json, err=False)


@click.command("import")
@click.argument("file")
@click.option("--format", metavar="FORMAT", help="The format of the file, if its content does not tell.")
@click.option("--scope", type=SCOPE, help="Import into this scope, in place of the one that was exported.")
@click.option("--overwrite", is_flag=True, help="Replace records that are there with another content.")
@click.option("--dry-run", is_flag=True, help="Check the file and count what it would write, and write nothing.")
@json_option
@store_options
def import_(
    store: StoreChoice,
    file: str,
    format: str | None,
    scope: ScopePath | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add everything from a file: an export, also of another tool.

    FILE is a file, a folder, or - for stdin; or what a framework has stored on a server, as dynamodb://TABLE or
    redis://HOST?prefix=PREFIX. The formats are mnemic, chatgpt, claude, claude-code, fence, langchain, letta, marsys,
    mcp-memory, mem0, markdown, openai and opper. The file is checked as a whole before anything is written. What is
    there already is left alone, and what differs is an error, or is reported as skipped if it comes from another tool.
    A store that is not there yet is created.
    """
    source: Any = sys.stdin.buffer if file == "-" else file
    options: dict[str, Any] = {"format": format, "overwrite": overwrite}
    if not exists(store) and (dry_run or file != "-"):
        # Nothing is created for a file that is not imported.
        from ..api import open

        with open("memory://", embedder=None) as memory, progress("check") as show:
            place = memory if scope is None else memory.scope(scope)
            done = place.import_from(source, **options, dry_run=True, progress=show)
    if not (dry_run and not exists(store)):
        with open_store(store, create=True) as memory, progress("import") as show:
            place = memory if scope is None else memory.scope(scope)
            done = place.import_from(source, **options, dry_run=dry_run, progress=show)
    if as_json:
        print_json(done)
        return
    would = "would be " if dry_run else ""
    click.echo(f"{count(done.records, 'record')} read, {done.written:,} of them {would}written")
    for one in done.skipped:
        click.echo(f"skipped {one.count:,}: {one.reason}; the first is {printable(one.first)}")


def _print_on(value: Any, text: str, as_json: bool, *, err: bool = False) -> None:
    """Print a result; on stderr if stdout is the file itself."""
    if as_json:
        print_json(value, err=err)
    else:
        click.echo(text, err=err)


@click.command()
@click.argument("source", type=STORE)
@click.argument("target", type=STORE)
@click.option("--scope", type=SCOPE, help="Copy only this scope and those below it.")
@click.option("--reembed", is_flag=True, help="Let the target's embedder compute vectors of its own.")
@click.option("--merge", is_flag=True, help="Leave records in the target that the source does not have.")
@json_option
@key_options("source-", "an encrypted source")
@key_options("target-", "the target, which it encrypts")
@redact_options
@debug_option
def copy(
    source: str,
    target: str,
    scope: ScopePath | None,
    reembed: bool,
    merge: bool,
    source_keys: EncryptionKeys | None,
    target_keys: EncryptionKeys | None,
    redact: Redaction | None,
    as_json: bool,
) -> None:
    """Copy everything from SOURCE to TARGET, and verify it.

    Interrupted, it continues where it was when it is run again.
    """
    from ..api import copy

    with progress("copy") as show:
        done = copy(
            source,
            target,
            scope=scope,
            reembed=reembed,
            merge=merge,
            source_key=source_keys,
            target_key=target_keys,
            redact=redact,
            progress=show,
        )
    if as_json:
        print_json(done)
        return
    click.echo(
        f"{count(done.records, 'record')} in {count(done.streams, 'stream')} are the same in both stores, "
        f"{done.written:,} of them written now; digest {done.digest}"
    )
