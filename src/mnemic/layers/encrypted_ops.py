"""Operations and conditions as an encrypted store sees them: content encrypted, keys and labels hashed. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from msgspec.structs import force_setattr, replace

from ..errors import ConflictError
from ..records import KEPT_BY_ERASURE, Ref
from ..store.query import (
    FIELDS,
    Condition,
    CountUse,
    Delete,
    Derive,
    Expect,
    Limit,
    Op,
    Outcome,
    Purge,
    Put,
    Scan,
    place_of,
)
from .cipher import CLEAR_KEYS, DataKeys, seal_derived, seal_record


class OpCipher:
    """Encrypts the operations of a write, and translates the hashed keys in its outcomes back."""

    def __init__(self, keys: DataKeys | None, of_store: DataKeys) -> None:
        self._keys = keys
        self._of_store = of_store
        self._names: dict[str, str] = {}

    def down(self, op: Op) -> Op:
        """Return an operation for the store below."""
        kind = place_of(op)[1]
        keys = self._of_store if kind in KEPT_BY_ERASURE else self._keys
        if isinstance(op, Put):
            assert keys is not None, "keys are created for a write that encrypts"
            # It is longer now, and was checked before.
            sealed = copy(op)
            record = seal_record(keys, op.record)
            self._names[record.key] = op.record.key
            force_setattr(sealed, "record", record)
            return sealed
        if keys is None:
            return op
        if isinstance(op, Derive) and op.value is not None:
            ref = self._ref(keys, op.ref)
            return replace(op, ref=ref, value=seal_derived(keys, ref, op.name, op.value, op.version))
        if kind in CLEAR_KEYS:
            return op
        if isinstance(op, Delete | Derive | CountUse):
            return replace(op, ref=self._ref(keys, op.ref))
        if isinstance(op, Limit):
            return replace(op, evict=tuple(tuple(self._key(keys, kind, key) for key in group) for group in op.evict))
        if isinstance(op, Purge):
            return replace(op, keep=tuple(self._key(keys, kind, key) for key in op.keep))
        if isinstance(op, Expect) and op.key is not None:
            return replace(op, key=self._key(keys, kind, op.key))
        return op

    def _ref(self, keys: DataKeys, ref: Ref) -> Ref:
        return Ref(ref.scope, ref.kind, self._key(keys, ref.kind, ref.key))

    def _key(self, keys: DataKeys, kind: str, key: str) -> str:
        hashed = keys.hashed_key(kind, key)
        self._names[hashed] = key
        return hashed

    def up(self, outcome: Outcome) -> Outcome:
        """Return an outcome of the store below for the caller."""
        key, removed = outcome.key, outcome.removed
        if self._names.get(key, key) == key and not removed:
            return outcome
        names = self._names
        return replace(outcome, key=names.get(key, key), removed=tuple(names.get(one, one) for one in removed))

    def explained(self, error: ConflictError) -> ConflictError:
        """Return an error that names the key as the caller knows it."""
        if error.key is not None and (name := self._names.get(error.key, error.key)) != error.key:
            error.args = (str(error).replace(repr(error.key), repr(name)),)
            error.key = name
        return error


def split_conditions(scan: Scan, keys: DataKeys | None) -> tuple[list[Condition], list[Condition], list[Condition]]:
    """Split the conditions into those for the store below, those for here, and those that went below as hashes."""
    below: list[Condition] = []
    here: list[Condition] = []
    hashed: list[Condition] = []
    hashes_keys = not scan.kinds or not CLEAR_KEYS.issuperset(scan.kinds)
    for test in scan.where:
        group, _, name = test.field.partition(".")
        if test.field in FIELDS and not (test.field == "key" and hashes_keys):
            below.append(test)
        elif group == "labels" and test.op in ("eq", "ne", "in") and keys is not None:
            hashed.append(test)
            wanted = _each(test, lambda text, name=name: keys.label_value(name, text))  # type: ignore[misc]
            below.append(replace(wanted, field=f"labels.{keys.label_name(name)}"))
        elif test.field == "key" and test.op in ("eq", "in") and keys is not None and len(scan.kinds) == 1:
            hashed.append(test)
            below.append(_each(test, lambda text: keys.hashed_key(scan.kinds[0], text)))
        else:
            here.append(test)
    return below, here, hashed


def _each(test: Condition, change: Callable[[str], str]) -> Condition:
    """Return a condition with changed texts; a value that is not text never matches."""
    wanted: tuple[Any, ...] = test.value if isinstance(test.value, tuple) else (test.value,)
    values = tuple(change(one) if isinstance(one, str) else one for one in wanted)
    return replace(test, value=values if test.op == "in" else values[0])
