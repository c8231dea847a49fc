"""Tenants of one store who attack one another: each must see what it would see if it were alone there.

Every call runs twice: on the shared store, and on a store of the tenant's own. The answers, errors, scores and cursors
must be the same, and no word of another tenant may appear in any of them or in a log line.
"""

from __future__ import annotations

import logging
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine
from msgspec import Struct, json

import mnemic
from mnemic.errors import MnemicError
from mnemic.layers.restricted import RIGHTS
from mnemic.records import ScopePath

FAMILIES = [
    ["a", "ab", "a b", "a0", "aa"],
    ["a", "a%", "a_", "a*", "a?", "a[b]", "%", "_", "*"],
    ["a:b", "a#b", "a|b", "a,b", "a;b", "a.b", "a-b", "{a}b"],
    ["..", ".", "~", "a..", "C:", "a\\", "\\", "\\*"],
    [" a", "a ", " a ", "a\u00a0", "a\u200b", "a\ufeff", "\u2060a"],
    ["'", '"', "`", "' OR '1'='1", '"; DROP TABLE mnemic_records; --', "$1", "${a}", "%s", "%2F"],
    ["é", "e\u0301", "e", "\u0435", "É"],
    ["A", "a", "\u0430", "\u03b1", "ａ"],
    ["ß", "ss", "SS", "ẞ", "ſs"],
    ["Å", "\u212b", "A\u030a", "K", "\u212a", "k"],
    ["message", "memory", "once", "audit", "embedder", "encryption", "api-key", "note", "version"],
    ["mnemic", "mnemic:a", "mnemic_records", "null", "None", "0", "-1", "__proto__"],
    ["x" * 200, "x" * 199 + "y", "x" * 199, "\U0010ffff" * 200],
    ["\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "\u202ea", "a\u202e"],
]
"""Names that a careless comparison, pattern, key or file name takes for one another."""
TENANTS = 3
START = datetime(2030, 1, 1, tzinfo=UTC)
STEP = timedelta(minutes=1)

TOPICS = ("tea in Rome", "a dog named Rex", "the red bicycle", "chess on Monday")
KEYS = ("k", "k2", "a/b", "%", "k:1")
CHATS = ("s", "s2", "a b")
NAMES = ("Ann", "Bob", "Rome", "tea")
PREDICATES = ("likes", "knows")

NUMBERS = ("last_seq", "seq", "version", "cursor", "first_activity")
"""What AgentCore numbers by its own clock, and when a stream began: it knows that of the records that are left."""


NEW_ID = re.compile("[0-9a-f]{32}")
"""An id that a store has made, which is never the same."""
ERASED = ("scope", "dry_run", "records", "erased", "derived")
"""What a certificate says that is not of the store."""


class Stage:
    """A store with room for the tenants of many examples, and the number of calls that they have made."""

    memory: mnemic.Memory

    def __init__(self, *, all_kinds: bool = True, layers: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Take the options of the layers over the stores."""
        self.all_kinds = all_kinds
        self.audited = "audit" in layers
        self.options: dict[str, Any] = {"embedder": None, "clock": self.clock, **layers}
        self.own_order = False
        """Whether the store goes on somewhere else after a cursor that is not of the same scan, as S3 does."""
        self.calls = 0
        self.examples = 0
        self.now = START

    def clock(self) -> datetime:
        """Return the time of the current step."""
        return self.now

    @contextmanager
    def tenant(self, path: ScopePath) -> Iterator[mnemic.Memory]:
        """Provide the memory that a tenant is given."""
        yield self.memory.restricted(path, RIGHTS)


class Tenant(Struct):
    """A tenant, its secret word, and its memory in the shared store and in one of its own."""

    path: ScopePath
    secret: str
    shared: mnemic.Memory
    alone: mnemic.Memory
    stolen: list[Any] = []
    """What it was given by the store, and others try to use: hits, sessions, cursors."""
    notes: dict[str, Any] = {}
    """The notes of its scope, as they must be."""


def plain(value: Any, ignored: tuple[str, ...] = ()) -> Any:
    """Return a result as values that can be compared, without some fields, with times to the minute."""
    if isinstance(value, datetime):
        return value.replace(second=0, microsecond=0).isoformat()
    if isinstance(value, ScopePath):
        return value.path
    if isinstance(value, mnemic.Message):
        return {"message": plain(value.to_dict() | {"timestamp": value.timestamp})}
    if isinstance(value, mnemic.ErasureCertificate):
        value = [getattr(value, name) for name in ERASED]
    if isinstance(value, Struct):
        named = [name for name in value.__struct_fields__ if name not in ignored and name != "derived"]
        return {name: plain(getattr(value, name), ignored) for name in named}
    if isinstance(value, dict):
        return {str(name): plain(one, ignored) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, ignored) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


def alike(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal, numbers up to the little that a few milliseconds change."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


class Lines(logging.Handler):
    """Keeps log lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Stores(RuleBasedStateMachine):
    """The tenants, and how a call of one is made and compared."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.tenants: list[Tenant] = []
        self.opened: list[Any] = []
        self.log = Lines()
        logger = logging.getLogger("mnemic")
        logger.addHandler(self.log)
        self.level = logger.level
        logger.setLevel(logging.DEBUG)

    def same(self, tenant: int, call: Callable[[mnemic.Memory], Any]) -> Any:
        """Make a call on both stores; return its result, None if it failed."""
        self.stage.now += STEP
        self.stage.calls += 1
        me = self.tenants[tenant]
        self.log.lines.clear()
        results: list[Any] = []
        for memory in (me.shared, me.alone):
            try:
                results.append((call(memory), None))
            except MnemicError as error:
                seen = "".join(traceback.format_exception(error, limit=0)) + repr(error.args)
                results.append((None, (type(error).__name__, NEW_ID.sub("id", str(error)), seen)))
        (result, failure), (_, expected_failure) = results
        ignored = () if self.stage.all_kinds else NUMBERS
        shown, expected = plain(result, ignored), plain(results[1][0], ignored)
        assert (failure and failure[:2]) == (expected_failure and expected_failure[:2])
        assert alike(shown, expected), f"with others: {shown}\nalone: {expected}"
        told = json.encode([shown, repr(result), str(result), failure, self.log.lines]).decode()
        for other in ("xAzq", *(one.secret for n, one in enumerate(self.tenants) if n != tenant)):
            assert other not in told, f"{me.path.path!r} was told of another tenant: {told}"
        return result

    def ask(self, tenant: int, scope: ScopePath, name: str, *args: Any, **fields: Any) -> Any:
        """Make a call on a scope, such as "facts.ask"."""
        return self.same(tenant, lambda memory: attrgetter(name)(memory.scope(scope))(*args, **fields))

    def chat(self, tenant: int, scope: ScopePath, session: Any, name: str, *args: Any, **fields: Any) -> Any:
        """Make a call on a session of a scope."""
        return self.same(tenant, lambda memory: getattr(memory.scope(scope).session(session), name)(*args, **fields))

    def raw(self, tenant: int, name: str, given: Any) -> Any:
        """Make a call on the store behind a memory."""
        return self.same(tenant, lambda memory: run(memory, getattr(memory._async._store, name)(given)))

    def place(self, tenant: int, name: str) -> ScopePath:
        """Return the scope that a tenant turns to."""
        me, other = self.tenants[tenant].path, self.tenants[(tenant + 1) % TENANTS].path
        return {
            "home": me, "below": me / "k", "other": other, "its session": other / "s", "above": me.parent,
            "root": ScopePath(), "nobody": me.parent / "nobody", "beside": self.tenants[tenant - 1].path,
        }[name]  # fmt: skip

    def text(self, tenant: int, topic: str) -> str:
        return f"{self.tenants[tenant].secret} likes {topic}"


def run(memory: mnemic.Memory, call: Any) -> Any:
    """Run a call of the store behind a memory."""
    return memory._driver.run(call)
