"""`Redaction`: what to redact, where, and what replaces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, field

from ..checks import check_choice, check_names, check_several, shown
from ..errors import InvalidValueError
from ..kinds import WRITTEN
from ..records import ScopePath
from .recognizer import RecognizerLike, check_recognizer_name, custom, name_list
from .redactor import ACTIONS, RECOGNIZERS, Hashing, RedactionAction, RedactionEngine, Redactor

if TYPE_CHECKING:
    from ..store.protocol import Store


BUILT_IN: tuple[str, ...] = tuple(one.name for one in RECOGNIZERS)
"""Names of the recognizers of Mnemic."""


class Vault(Struct, frozen=True):
    """Keeps the values behind hashes, encrypted with a key of its own, for `reveal`.

    `store` is another store, or the URL of one; None is the memory's own store.
    """

    key: bytes | str
    store: Store | str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidValueError, which does not show it, for what cannot be a key."""
        key: object = self.key
        elsewhere = isinstance(key, PathLike) or (isinstance(key, str) and key.startswith(("file:", "env:")))
        raw = isinstance(key, bytes | bytearray) and len(key) == 32
        if not (elsewhere or raw or (isinstance(key, str | bytes | bytearray) and len(key) == 44)):
            raise InvalidValueError(
                'the key of a vault is 32 random bytes, a Fernet key of 44 characters, "file:PATH" or "env:NAME"'
            )

    def __repr__(self) -> str:
        """Return where the values are kept, without the key."""
        return f"Vault(store={self.store!r})"


class Redaction(Struct, frozen=True, kw_only=True):
    """Configuration of redaction: what is looked for, what replaces it, and in which scopes and kinds of records.

    `recognizers` are names of built-in recognizers, by default all; `names` are names of people, companies or
    places; `patterns` are recognizers of your own by name: a regular expression, or a function from a text to
    (start, end) pairs. `engine` finds more, such as `PresidioEngine`. `action` is "mask", "drop" or "hash", and
    `actions` that of single recognizers. "hash" needs a `key`, 16 bytes or more; a `vault` keeps the hashed values.
    `scopes` and `kinds` restrict it to these scopes and those below, and to these kinds of records. With
    `keys="refuse"`, a scope or key that holds a finding raises InvalidValueError; otherwise names are kept as they are.
    """

    recognizers: Sequence[str] | str | None = None
    names: Sequence[str] = ()
    patterns: Mapping[str, RecognizerLike] = field(default_factory=dict)
    engine: RedactionEngine | None = None
    action: RedactionAction = "mask"
    actions: Mapping[str, RedactionAction] = field(default_factory=dict)
    key: bytes | str | None = None
    vault: Vault | None = None
    scopes: Sequence[ScopePath | str] | ScopePath | str | None = None
    kinds: Sequence[str] | str | None = None
    keys: Literal["keep", "refuse"] = "keep"

    def __post_init__(self) -> None:
        """Raise InvalidValueError for an unknown recognizer or action, or a missing key."""
        check_choice(self.keys, "keys", ("keep", "refuse"))
        for action in (self.action, *self.actions.values()):
            check_choice(action, "action", ACTIONS)
        if self.engine is None:  # which may have names of its own
            check_names(list(self.actions), "recognizer in actions", (*BUILT_IN, "NAME", *self.patterns))
        for name in self.actions:
            check_recognizer_name(name)
        if self.kinds is not None:
            check_names(self.kinds, "kind", WRITTEN)
        hashes = "hash" in (self.action, *self.actions.values())
        if hashes and self.key is None:
            raise InvalidValueError("the action 'hash' needs a key: Redaction(action=\"hash\", key=…)")
        if self.vault is not None and not hashes:
            raise InvalidValueError('a vault keeps the values behind hashes: use it with action="hash"')
        covered_scopes(self)
        redactor_of(self)

    def __repr__(self) -> str:
        """Return the configuration without keys and names."""
        return f"<Redaction: {self.action}, {len(redactor_of(self).names)} recognizers>"


Redacting: TypeAlias = Redaction | bool | None
"""Whether and how to redact: True for the default recognizers and masks, or a `Redaction`."""


def redaction_of(given: Redacting) -> Redaction | None:
    """Return the configuration as a `Redaction`; None if redaction is off; raises InvalidValueError."""
    if given is None or isinstance(given, Redaction):
        return given
    if isinstance(given, bool):
        return Redaction() if given else None
    raise InvalidValueError(f"redact is True or a Redaction, not {shown(given)}")


def redactor_of(redaction: Redaction) -> Redactor:
    """Return the redactor of a configuration; raises InvalidValueError for an unknown recognizer or a short key."""
    known = {one.name: one for one in RECOGNIZERS}
    chosen = (
        tuple(known)
        if redaction.recognizers is None
        else check_names(redaction.recognizers, "recognizer", tuple(known))
    )
    recognizers = [*custom(redaction.patterns)]
    if isinstance(redaction.names, str):
        raise InvalidValueError(f"names is a list of names, not one: {shown(redaction.names)}")
    if redaction.names:
        recognizers.append(name_list(check_several(redaction.names, "names")))
    recognizers += [known[name] for name in known if name in chosen]
    if redaction.engine is not None and not callable(redaction.engine):
        raise InvalidValueError(f"engine is a function from a text to findings, not {shown(redaction.engine)}")
    hashing = None if redaction.key is None else Hashing(hash_key(redaction.key))
    return Redactor(recognizers, redaction.engine, redaction.action, redaction.actions, hashing)


def covered_scopes(redaction: Redaction) -> tuple[ScopePath, ...]:
    """Return the scopes that are covered, with those below; the root covers all."""
    if redaction.scopes is None:
        return (ScopePath(),)
    given = (
        [redaction.scopes]
        if isinstance(redaction.scopes, str | ScopePath)
        else check_several(redaction.scopes, "scopes")
    )
    return tuple(one if isinstance(one, ScopePath) else ScopePath(one) for one in given)


def hash_key(given: Any) -> bytes:
    """Return the key of hashes as bytes; raises InvalidValueError if it is too short."""
    key = given.encode() if isinstance(given, str) else given
    if not isinstance(key, bytes) or len(key) < 16:
        raise InvalidValueError("the key of a redaction is a secret of at least 16 bytes or characters")
    return key
