"""Redaction of commands and of the server: the options, and the file that configures it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidValueError
from .key_options import read_keys

if TYPE_CHECKING:
    from ..redaction.config import Redaction

MOST_BYTES = 10_000_000
"""How long a file may be; it can have a long list of names."""
KEYS = ("key_file", "key_env", "vault_key_file", "vault_key_env")


def redact_options(command: Any) -> Any:
    """Add --redact and --redact-file; the command takes a `Redaction` or None as `redact`."""

    @click.option(
        "--redact/--no-redact",
        default=None,
        envvar="MNEMIC_REDACT",
        show_envvar=True,
        help="Replace personal data and secrets before they are stored.",
    )
    @click.option(
        "--redact-file",
        metavar="FILE",
        envvar="MNEMIC_REDACT_FILE",
        show_envvar=True,
        help="A TOML file that says what to redact, and how.",
    )
    @functools.wraps(command)
    def run(*arguments: Any, redact: bool | None, redact_file: str | None, **options: Any) -> Any:
        return command(*arguments, redact=read_redaction(redact, redact_file), **options)

    return run


def read_redaction(redact: bool | None, file: str | None) -> Redaction | None:
    """Return the redaction that a file configures, or the default one; None if it is off. Raises InvalidValueError."""
    if redact is False or (redact is None and file is None):
        return None
    from ..redaction.config import Redaction

    return Redaction() if file is None else _parsed(Path(file).expanduser())


def _parsed(path: Path) -> Redaction:
    import tomllib

    from msgspec import ValidationError, convert

    from ..files import read_file
    from ..redaction.config import Redaction, Vault

    try:
        given = tomllib.loads(read_file(path, MOST_BYTES).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValueError(f"the redaction file {path} is not valid TOML: {error}") from None
    secrets = {name: given.pop(name) for name in KEYS if name in given}
    vault_store = given.pop("vault_store", None)
    names_file = given.pop("names_file", None)
    known = set(Redaction.__struct_fields__) - {"key", "vault", "engine"}
    if unknown := sorted(given.keys() - known):
        names = ", ".join(sorted({*known, *KEYS, "names_file", "vault_store"}))
        raise InvalidValueError(f"the redaction file {path} has the unknown setting {unknown[0]!r}; known are: {names}")
    try:
        convert(given, dict[str, str | list[str] | dict[str, str]])
        convert([*secrets.values(), vault_store, names_file], list[str | None])
    except ValidationError as error:
        raise InvalidValueError(f"the redaction file {path} has a bad value: {error}") from None
    if names_file is not None:
        lines = read_file(path.parent / names_file, MOST_BYTES).decode(errors="replace").splitlines()
        given["names"] = [*given.get("names", ()), *(line.strip() for line in lines if line.strip())]

    def secret(prefix: str) -> str | bytes | None:
        files = [str(path.parent / secrets[f"{prefix}key_file"])] if f"{prefix}key_file" in secrets else []
        variables = [secrets[f"{prefix}key_env"]] if f"{prefix}key_env" in secrets else []
        keys = read_keys(files, variables)
        return keys[0] if isinstance(keys, list) else None

    key, vault_key = secret(""), secret("vault_")
    vault = None if vault_key is None else Vault(vault_key, vault_store)
    return Redaction(**given, key=key, vault=vault)
