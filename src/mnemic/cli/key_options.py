"""Options for keys, of encryption and of signing, and how commands and the server read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import click

from ..errors import InvalidValueError
from .param_types import STORE, KeyFileType

if TYPE_CHECKING:
    from ..layers.master_key import EncryptionKeys

Decorated: TypeAlias = Callable[..., Any]


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


def _key_in_file(file: IO[bytes]) -> str | bytes:
    from ..key_reading import MAX_KEY_FILE, key_in_content

    return key_in_content(file.read(MAX_KEY_FILE + 1), file.name)


def _key_in_variable(variable: str) -> str:
    from ..key_reading import key_in_variable

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
