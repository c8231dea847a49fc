"""Hits, the results of recall, and references to records."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import field

from ..checks import MAX_COUNT, check_choice, check_name, shown
from ..errors import DecryptionError, InvalidValueError, UnreadableStoreError
from ..messages import Message, decode
from ..records import ARCHIVED, FACT, MEMORY, MESSAGE, NOTE, RECALLED, Match, Record, Ref, ScopePath, Value, plain
from ..store.protocol import Store, all_streams
from ..store.query import Delete, StreamScan, Write
from .fact_items import Fact, to_fact
from .memory_items import Faded, MemoryItem, to_item
from .notes import Note, to_note

Item: TypeAlias = Message | MemoryItem | Note | Fact | str
"""Types of a hit's item; a summary or a title is a text."""
LOG = logging.getLogger("mnemic.recall")


class Hit(Value, frozen=True, kw_only=True):
    """A search result with its score, and `why`: the contribution of each signal.

    A score near 1 means that the text answers the query well, near 0 that nothing in the scope does. `before` and
    `after` are neighboring messages, if requested. `record` is the stored record.
    """

    record: Record
    score: float
    why: dict[str, float]
    before: list[Message] = field(default_factory=list)
    after: list[Message] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Kind: "message", "memory", "note", "fact", "summary" or "title"."""
        return MESSAGE if self.record.kind == ARCHIVED else self.record.kind

    @property
    def id(self) -> str:
        """Id of the message or memory, or key of the note or fact."""
        return self.record.key

    @property
    def scope(self) -> ScopePath:
        """Path of its scope; for a message, of its session."""
        return self.record.scope

    @property
    def text(self) -> str:
        """The searched text."""
        return self.record.text or self.record.title or ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The stored metadata."""
        return self.record.meta

    @property
    def source(self) -> str | None:
        """The source, if one was given."""
        return self.record.labels.get("source")

    @property
    def created(self) -> datetime | None:
        """Time of creation; for a message, its timestamp."""
        return self.record.created

    @property
    def ref(self) -> Ref:
        """Its identity in the store."""
        return self.record.ref

    @property
    def message(self) -> Message | None:
        """The message, if it is one."""
        return decode(self.record) if self.record.kind in (MESSAGE, ARCHIVED) else None

    @property
    def memory(self) -> MemoryItem | None:
        """The memory, if it is one."""
        return to_item(self.record) if self.record.kind == MEMORY else None

    @property
    def note(self) -> Note | None:
        """The note, if it is one."""
        return to_note(self.record) if self.record.kind == NOTE else None

    @property
    def fact(self) -> Fact | None:
        """The fact, if it is one."""
        return to_fact(self.record) if self.record.kind == FACT else None

    @property
    def item(self) -> Item:
        """The message, memory, note or fact; the text of anything else."""
        return to_item_of(self.record)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`, FastAPI and pandas."""
        return {
            "kind": self.kind,
            "id": self.id,
            "scope": self.scope.path,
            "text": self.text,
            "score": self.score,
            "why": dict(self.why),
            "metadata": plain(self.metadata),
            "source": self.source,
            "created": plain(self.created),
            "before": [message.to_dict() for message in self.before],
            "after": [message.to_dict() for message in self.after],
        }

    def __repr__(self) -> str:
        """Return the score, kind, shortened text, and scope."""
        text = self.text if len(self.text) <= 60 else f"{self.text[:60]}…"
        return f"<Hit {self.score:.2f} {self.kind} {text!r} in {self.scope.path!r}>"


def to_item_of(record: Record) -> Item:
    """Return the message, memory, note or fact of a record; the text of anything else."""
    read = _READERS.get(record.kind)
    return read(record) if read is not None else record.text or record.title or ""


_READERS: dict[str, Callable[[Record], Item]] = {
    MESSAGE: decode, ARCHIVED: decode, MEMORY: to_item, NOTE: to_note, FACT: to_fact,
}  # fmt: skip


def to_hit(match: Match) -> Hit:
    """Return a hit from a store's match."""
    return Hit(
        record=match.record,
        score=match.score,
        why=match.why,
        before=[decode(record) for record in match.before],
        after=[decode(record) for record in match.after],
    )


Reference: TypeAlias = str | Hit | Faded | MemoryItem | Record | Ref
"""References to a record: a hit, a memory, the record, its ref (scope, kind and key), or an id."""

READ_AT_ONCE = 500
"""How many scopes are searched at once for an id."""
SHOWN = 10
"""How many records an error names that have the same id."""


async def find_ref(store: Store, scope: ScopePath, given: Reference, kind: str) -> Ref:
    """Return the ref of the referenced record.

    An id means the record of this kind in the scope or, if there is none, the only record with that id that
    recall finds in the scope or else below. Raises InvalidValueError if it is ambiguous, or in another scope.
    """
    if not isinstance(given, str):
        return ref_of(given, scope)
    ref = Ref(scope, kind, check_name(given, "id"))
    try:
        there = (await store.read([ref]))[0] is not None
    except (DecryptionError, UnreadableStoreError):
        there = True  # and damaged: it can be deleted
    return ref if there else await find_key(store, scope, given) or ref


def ref_of(given: Hit | Faded | MemoryItem | Record | Ref, scope: ScopePath) -> Ref:
    """Return the ref of a record.

    Raises InvalidValueError unless recall finds its kind, in the scope or below.
    """
    if isinstance(given, MemoryItem):
        given = Ref(given.scope, MEMORY, given.id)
    elif isinstance(given, Hit | Faded):
        given = given.record
    if not isinstance(given, Record | Ref):
        raise InvalidValueError(f"a record is named by a hit, an item, a record, a ref or an id: {shown(given)}")
    ref = given if isinstance(given, Ref) else given.ref
    check_name(ref.key, "id")
    check_choice(ref.kind, "kind", RECALLED)
    if not scope.contains(ref.scope):
        raise InvalidValueError(f"{shown(ref.key)} is in {ref.scope.path!r}, which is not in {scope.path!r}")
    return ref


async def best_passing(
    recall: Callable[[int], Awaitable[Sequence[Hit]]], k: int, passes: Callable[[Hit], bool], most: int = MAX_COUNT
) -> list[Hit]:
    """Return the `k` best hits that pass a test, best first.

    `recall` takes a number of hits; it is asked for more until enough have passed, or it has returned all or `most`.
    """
    asked = k
    while True:
        hits = await recall(asked)
        found = [hit for hit in hits if passes(hit)]
        if len(found) >= k or len(hits) < asked or asked >= most:
            return found[:k]
        asked = min(4 * asked, most)


async def delete_refs(store: Store, refs: Sequence[Ref], if_version: int | None = None) -> int:
    """Delete records, those of one scope in one write; return how many existed.

    Raises ConflictError if one has another version than `if_version`, if given.
    """
    deleted = 0
    for scope in dict.fromkeys(ref.scope for ref in refs):
        here = dict.fromkeys(ref for ref in refs if ref.scope == scope)
        outcomes = await store.write(Write(tuple(Delete(ref, if_version) for ref in here)))
        deleted += sum(len(outcome.removed) for outcome in outcomes)
    return deleted


async def find_key(store: Store, scope: ScopePath, key: str) -> Ref | None:
    """Return the only record with this key that recall finds in a scope or, if there is none, below; or None.

    Raises InvalidValueError if there are several.
    """
    found = await find_refs(store, scope, key)
    found = [ref for ref in found if ref.scope == scope] or found
    if len(found) > 1:
        where = ", ".join(f"{ref.kind} in {ref.scope.path!r}" for ref in found[:SHOWN])
        raise InvalidValueError(
            f"{len(found)} records have the key {shown(key)} ({where}{' …' if len(found) > SHOWN else ''}): "
            "give the scope of one, or its hit, its record or its ref"
        )
    return found[0] if found else None


async def find_refs(store: Store, scope: ScopePath, key: str, kinds: tuple[str, ...] = RECALLED) -> list[Ref]:
    """Return all records with this key, of these kinds, in a scope and below."""
    check_name(key, "key")
    places = [Ref(s.scope, s.kind, key) async for s in all_streams(store, StreamScan(scope=scope, kinds=kinds))]
    found: list[Ref] = []
    for start in range(0, len(places), READ_AT_ONCE):
        records = await store.read(places[start : start + READ_AT_ONCE])
        found += [record.ref for record in records if record is not None]
    return found


def is_readable(match: Match) -> bool:
    """Return whether what a search found can be shown; one damaged record must not hide all others."""
    try:
        for record in (match.record, *match.before, *match.after):
            to_item_of(record)
    except UnreadableStoreError as error:
        LOG.warning("a search leaves out a record that cannot be read: %s", error)
        return False
    return True
