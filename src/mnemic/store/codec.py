"""Stored form of records, driven by the fields of `Record`: columns for SQL, a JSON array for key-value stores.

The functions that run for every record are compiled from the fields, as dataclasses do it: a loop over the fields
would take twice the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, get_args, get_origin

from msgspec import NODEFAULT, defstruct, field, json
from msgspec.structs import FieldInfo, fields

from ..checks import EPOCH, MICROSECOND, from_microseconds, shown
from ..errors import UnreadableStoreError
from ..records import Record, ScopePath
from .stream_state import Microseconds, RecordState

__all__ = [
    "FIELDS",
    "damaged",
    "decode_record",
    "decode_record_state",
    "encode_record",
    "from_columns",
    "from_rows",
    "to_columns",
]

_STORED = [one for one in fields(Record) if one.name not in ("scope", "kind", "derived")]
FIELDS: tuple[str, ...] = tuple(one.name for one in _STORED)
"""Stored fields of a record, in their order; a stream has the scope, the kind and the derived values."""


def _is_time(one: FieldInfo) -> bool:
    return datetime in get_args(one.type)


def _is_json(one: FieldInfo) -> bool:
    return one.type is Any or get_origin(one.type) is dict


def _stored_value(one: FieldInfo) -> str:
    value = f"record.{one.name}"
    return f"None if {value} is None else ({value} - EPOCH) // MICROSECOND" if _is_time(one) else value


def _column(one: FieldInfo) -> str:
    if not _is_json(one):
        return _stored_value(one)
    empty = "is None" if one.default is None else "== {}"
    return f"None if record.{one.name} {empty} else encode(record.{one.name}).decode()"


def _from_stored(one: FieldInfo) -> str:
    value = f"stored.{one.name}"
    return f"None if {value} is None else from_microseconds({value})" if _is_time(one) else value


def _from_column(one: FieldInfo) -> str:
    name = one.name
    if _is_time(one):
        return f"None if {name} is None else from_microseconds({name})"
    if _is_json(one):
        return f"{None if one.default is None else '{}'} if {name} is None else decode_{name}({name})"
    if one.type is bool:
        return f"{name} == 1"
    for kind in (str, int):
        if one.type is kind or kind in get_args(one.type):
            return f"{name} if {name} is None or {name}.__class__ is {kind.__name__} else wrong('{name}')"
    return name


@lru_cache(1024)
def _moment_of(value: int | None) -> datetime | None:
    return None if value is None else from_microseconds(value)


def _wrong(name: str) -> None:
    raise TypeError(f"its {name} is of another type")


def _compiled(arguments: str, result: Callable[[FieldInfo], str], around: str) -> Callable[..., Any]:
    names: dict[str, Any] = {f"decode_{one.name}": json.Decoder(one.type).decode for one in _STORED if _is_json(one)}
    names |= {"EPOCH": EPOCH, "MICROSECOND": MICROSECOND, "Record": Record, "wrong": _wrong}
    names |= {"encode": json.Encoder().encode, "from_microseconds": from_microseconds, "moment_of": _moment_of}
    source = f"lambda {arguments}: {around % ', '.join(map(result, _STORED))}"
    made: Callable[..., Any] = eval(compile(source, __file__, "eval"), names)  # noqa: S307
    return made


to_columns: Callable[[Record], list[Any]] = _compiled("record", _column, "[%s]")
"""Return the values of `FIELDS` for SQL: times in microseconds, JSON as text, empty JSON as None."""

_from_columns = _compiled(
    f"scope, kind, derived, {', '.join(FIELDS)}", _from_column, "Record(scope, kind, %s, derived)"
)


def from_columns(scope: ScopePath, kind: str, row: Sequence[Any], derived: Sequence[str] = ()) -> Record:
    """Return the record of the values of `to_columns`, which the derived values of these names may follow.

    Raises UnreadableStoreError, which names the record, for a damaged row.
    """
    found: dict[str, bytes] = {}
    if derived:
        values = zip(derived, row[len(FIELDS) :], strict=True)
        found = {name: value for name, value in values if value is not None}
        row = row[: len(FIELDS)]
    try:
        record: Record = _from_columns(scope, kind, found, *row)
        return record
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UnreadableStoreError(
            f"the record {shown(row[0])} of kind {shown(kind)} in {shown(str(scope))} is damaged ({error})"
        ) from error


def from_rows(scope: ScopePath, kind: str, rows: Sequence[Sequence[Any]], derived: Sequence[str] = ()) -> list[Record]:
    """Return the records of many rows, as `from_columns` does for each, in half the time."""
    try:
        found: list[Record] = _page_decoder(len(derived))(scope, kind, rows, *derived)
        return found
    except (ValueError, TypeError, OverflowError, RecursionError):
        # So that the error names the record.
        return [from_columns(scope, kind, row, derived) for row in rows]


@cache
def _page_decoder(derived: int) -> Callable[..., Any]:
    values = [f"value_{n}" for n in range(derived)]
    names = [f"name_{n}" for n in range(derived)]
    pairs = ", ".join(f"({name}, {value})" for name, value in zip(names, values, strict=True))
    kept = f"{{n: v for n, v in ({pairs},) if v is not None}}" if derived else "{}"
    if derived:
        # Most records have the first value only.
        rest = "".join(f" and {value} is None" for value in values[1:])
        kept = f"{{name_0: value_0}} if value_0 is not None{rest} else {kept}"
    arguments = ", ".join(("scope", "kind", "rows", *names))
    row = ", ".join((*FIELDS, *values))

    def value(one: FieldInfo) -> str:
        found = _from_column(one)
        # Most records were never updated, or written with others: the same object serves for several times.
        return {"created": f"(made := {found})", "updated": "made if updated == created else moment_of(updated)"}.get(
            one.name, found
        )

    return _compiled(arguments, value, f"[Record(scope, kind, %s, {kept}) for {row} in rows]")


def _stored_field(one: FieldInfo) -> Any:
    kind: Any = Microseconds | None if _is_time(one) else one.type
    if one.default is not NODEFAULT:
        return (one.name, kind, one.default)
    if one.default_factory is not NODEFAULT:
        return (one.name, kind, field(default_factory=one.default_factory))
    return (one.name, kind)


_Stored: Any = defstruct("StoredRecord", map(_stored_field, _STORED), array_like=True)
_decoder = json.Decoder(_Stored)
_encode = json.Encoder().encode
_to_stored = _compiled("record", _stored_value, "[%s]")
_from_stored_values = _compiled("scope, kind, derived, stored", _from_stored, "Record(scope, kind, %s, derived)")


def encode_record(record: Record) -> bytes:
    """Return the values of `FIELDS` as a JSON array, times in microseconds."""
    return _encode(_to_stored(record))


def decode_record(scope: ScopePath, kind: str, raw: bytes | str, derived: dict[str, bytes] | None = None) -> Record:
    """Return the record of `encode_record`; raises UnreadableStoreError if it is damaged."""
    record: Record = _from_stored_values(scope, kind, derived or {}, _decode(raw))
    return record


def decode_record_state(raw: bytes | str) -> RecordState:
    """Return the state of an encoded record, as a plan needs it; raises UnreadableStoreError if it is damaged."""
    found = _decode(raw)
    return RecordState(
        found.key, found.seq, found.version, found.created or 0, found.weight, found.labels, found.expires
    )


def _decode(raw: bytes | str) -> Any:
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError) as error:
        raise damaged("record", raw, error) from error


def damaged(what: str, raw: bytes | str, error: Exception) -> UnreadableStoreError:
    """Return the error for damaged data; it shows only the first field, the name."""
    text = raw if isinstance(raw, str) else raw.decode(errors="replace")
    start = text[:60].partition(",")[0]
    return UnreadableStoreError(f"the {what} that begins with {shown(start)} is damaged ({error})")
