"""Calls of a store as JSON over HTTP: what a client of a server sends, and what the server answers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import NODEFAULT, Struct, defstruct
from msgspec.structs import FieldInfo, fields

from ..errors import MnemicError
from ..records import Match, Record, Ref
from .query import Condition, Operator, Outcome, Scan, Search

__all__ = [
    "CLOCK_HEADER", "DEADLINE_HEADER", "PATH", "SERVER_HEADER", "WRITE_HEADER", "Filter", "HistoryBegin", "Matches",
    "Outcomes", "Records", "Refs", "ServedStore", "Time", "WireScan", "WireSearch", "from_wire",
    "problem_name", "to_wire",
]  # fmt: skip

PATH = "/api/v1/store"
"""Path of the store; the name of a call follows."""
WRITE_HEADER = "Mnemic-Write"
"""Header with a random id of a write, by which a repetition is recognized while the server runs."""
SERVER_HEADER = "Mnemic-Server"
"""Header with a random id of the server's process: in an answer its own, and the seconds of its clock after a space;
in a repeated write the one that was first asked."""
DEADLINE_HEADER = "Mnemic-Deadline"
"""Header with the process, and the time on its clock until which a client waits for a write: it is not begun later."""
CLOCK_HEADER = "Mnemic-Clock"
"""Header with the time of a client whose clock is not the system's, for tests."""


class Time(Struct, frozen=True):
    """A time in a filter, where text is text."""

    time: datetime


Constant: TypeAlias = None | bool | int | float | str | Time


class Filter(Struct, frozen=True):
    """A condition."""

    field: str
    op: Operator
    value: Constant | tuple[Constant, ...]


def _wire_form(struct: type[Struct]) -> Any:
    """Return the type of a struct with filters in place of conditions."""

    def wire_field(one: FieldInfo) -> Any:
        type = tuple[Filter, ...] if one.name == "where" else one.type
        return (one.name, type) if one.default is NODEFAULT else (one.name, type, one.default)

    doc = {"__doc__": struct.__doc__}
    return defstruct(struct.__name__, map(wire_field, fields(struct)), kw_only=True, omit_defaults=True, namespace=doc)


if TYPE_CHECKING:
    WireScan = Scan
    WireSearch = Search
else:
    WireScan = _wire_form(Scan)
    WireSearch = _wire_form(Search)


def to_wire(call: Scan | Search) -> Any:
    """Return a scan or a search as it is sent."""
    wire: Any = WireScan if isinstance(call, Scan) else WireSearch
    where = tuple(Filter(test.field, test.op, _constant(test.value)) for test in call.where)
    return wire(**{name: where if name == "where" else getattr(call, name) for name in call.__struct_fields__})


def from_wire(sent: Any) -> Any:
    """Return the scan or search that was sent; raises InvalidValueError."""
    given = {name: getattr(sent, name) for name in sent.__struct_fields__}
    given["where"] = tuple(Condition(one.field, one.op, _value(one.value)) for one in sent.where)
    return (Scan if isinstance(sent, WireScan) else Search)(**given)


def _constant(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return Time(value) if isinstance(value, datetime) else value


def _value(sent: Any) -> Any:
    if isinstance(sent, tuple):
        return tuple(map(_value, sent))
    return sent.time if isinstance(sent, Time) else sent


class ServedStore(Struct, frozen=True, kw_only=True):
    """A store on a server, as the key that asks may use it."""

    version: str
    """Version of Mnemic on the server."""
    server: str
    """Random id of the server's process."""
    scope: str
    """The scope that the key is for; empty for the whole store."""
    rights: tuple[str, ...]
    capabilities: tuple[str, ...]


class HistoryBegin(Struct, frozen=True):
    """From when on the earlier versions of a store are complete; None if it keeps none."""

    since: datetime | None


class Refs(Struct, frozen=True):
    """Refs of records to read."""

    refs: tuple[Ref, ...]


class Records(Struct, frozen=True):
    """The records of the first refs, None for one that does not exist; at least one if there are refs."""

    records: tuple[Record | None, ...]


class Outcomes(Struct, frozen=True):
    """The outcome of each operation of a write."""

    outcomes: list[Outcome]


class Matches(Struct, frozen=True):
    """The matches of a search, best first."""

    matches: list[Match]


def problem_name(kind: type[MnemicError]) -> str:
    """Return the end of the type of an error's problem, such as "not-found"."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", kind.__name__.removesuffix("Error")).lower()
