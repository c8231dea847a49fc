"""A fact, its form as a record, and its validity among other facts of its predicate."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field
from msgspec.structs import replace

from ..checks import MICROSECOND, check_name, check_number, check_time, to_microseconds
from ..errors import InvalidValueError
from ..records import FACT, Record, ScopePath, Value, fact_key, unreadable
from ..store.matching import is_valid_at
from ..store.query import Condition, Delete, Op, Put


class Fact(Value, frozen=True, kw_only=True):
    """A fact: subject, predicate and object.

    It is valid from `valid_from` until `valid_to`; None means still valid.
    """

    subject: str
    predicate: str
    object: str
    valid_from: datetime
    valid_to: datetime | None = None
    source: str | None = None
    confidence: float = 1.0
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Id for `Scope.get` and `Scope.forget`, as in hits; it changes when the fact ends."""
        since = "" if self.valid_to is None else f"@{to_microseconds(self.valid_from)}"
        return f"{fact_key(*fact_names(self))}{since}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the id as a dict of JSON types."""
        return {"id": self.id, **Value.to_dict(self)}


def to_record(fact: Fact, scope: ScopePath) -> Record:
    """Return the record of a fact."""
    labels = {"subject": fact.subject, "predicate": fact.predicate, "object": fact.object}
    labels |= {"pair": fact_key(fact.subject, fact.predicate), "fact": fact_key(*fact_names(fact))}
    if fact.source is not None:
        labels["source"] = fact.source
    return Record(
        scope=scope,
        kind=FACT,
        key=fact.id,
        text=f"{fact.subject} {fact.predicate} {fact.object}",
        data={"confidence": fact.confidence},
        meta=fact.metadata,
        labels=labels,
        valid_from=fact.valid_from,
        valid_to=fact.valid_to,
    )


def to_fact(record: Record) -> Fact:
    """Return the fact of a record; raises UnreadableStoreError if it holds something else."""
    data: Any = record.data
    try:
        return Fact(
            subject=record.labels["subject"],
            predicate=record.labels["predicate"],
            object=record.labels["object"],
            valid_from=check_time(record.valid_from, "valid_from"),
            valid_to=record.valid_to,
            source=record.labels.get("source"),
            confidence=check_confidence(data["confidence"]),
            metadata=record.meta,
        )
    except (InvalidValueError, KeyError, TypeError) as error:
        raise unreadable(record, error) from None


def fact_names(fact: Fact) -> tuple[str, str, str]:
    """Return subject, predicate and object."""
    return (fact.subject, fact.predicate, fact.object)


def check_confidence(value: float) -> float:
    """Return a confidence; raises InvalidValueError unless it is from 0 to 1."""
    if check_number(value, "confidence", least=0) > 1:
        raise InvalidValueError(f"confidence is a share from 0 to 1: {value}")
    return float(value)


def fact_conditions(subject: str | None, predicate: str | None, object: str | None) -> tuple[Condition, ...]:
    """Return the conditions, most selective first, since an index answers the first one."""
    names = (("subject", subject), ("object", object), ("predicate", predicate))
    return tuple(
        Condition(f"labels.{name}", "eq", check_name(value, name)) for name, value in names if value is not None
    )


def _began_after(record: Record, moment: datetime) -> bool:
    """Return whether a fact was valid when it was added, and that was, by its clock, after a moment."""
    began, added = record.valid_from, record.created
    return began is not None and added is not None and moment < began <= added


# ---------------------------------------------------------------- facts among others of their predicate


def with_key(key: str, known: list[Record]) -> Record | None:
    """Return the record with a key among others; None if there is none."""
    return next((record for record in known if record.key == key), None)


def fit_among_others(given: Fact, known: list[Record]) -> Fact:
    """Return a fact that is added beside others of its predicate; `known` are its earlier versions."""
    present = next((record for record in known if record.valid_to is None), None)
    if present is None or given.valid_to is not None:
        return given
    assert present.valid_from is not None
    return replace(given, valid_from=min(present.valid_from, given.valid_from))


def replace_single(given: Fact, known: list[Record], *, starts_now: bool) -> tuple[Fact, list[Op]]:
    """Return a fact that is added to a single-valued predicate, and the operations that end others.

    `known` are all facts of the predicate, past and present.
    """
    # After a clock went back, or by one that is behind, facts that were added earlier begin later than this one.
    ahead = [record for record in known if starts_now and _began_after(record, given.valid_from)]
    known = [record for record in known if record not in ahead]
    before = [*ahead, *(record for record in known if is_valid_at(record, given.valid_from))]
    same = next((record for record in before if record.labels["object"] == given.object), None)
    if same is not None:
        # It is already valid, and keeps its start.
        assert same.valid_from is not None
        given = replace(given, valid_from=min(same.valid_from, given.valid_from))
    ended = [record for record in before if record.labels["object"] != given.object]
    later = [r.valid_from for r in known if r.valid_from is not None and r.valid_from > given.valid_from]
    if later:
        given = replace(given, valid_to=min([*later, *filter(None, [given.valid_to])]))
    return given, [op for record in ended for op in end_fact(record, given.valid_from)]


def end_fact(record: Record, moment: datetime) -> list[Op]:
    """Return the operations that end a fact; open and ended facts have different keys."""
    fact = replace(to_fact(record), valid_to=moment)
    if fact.valid_from > moment:
        fact = replace(fact, valid_from=moment - MICROSECOND)
    past = replace(record, key=fact.id, valid_from=fact.valid_from, valid_to=fact.valid_to)
    if past.key == record.key:
        return [Put(past, record.version)]
    return [Delete(record.ref, record.version), Put(past)]
