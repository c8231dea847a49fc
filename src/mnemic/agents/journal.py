"""Journal of agents' writes, with previous values, so that a person can undo them."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Any

from msgspec import convert, field, json, to_builtins
from msgspec.structs import replace

from ..checks import check_count, check_name, new_id, shown
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..features.fact_items import end_fact
from ..layers.layer import Layer
from ..layers.redact import redact_ops
from ..records import FACT, MEMORY, NOTE, Record, Ref, ScopePath, Value
from ..records import JOURNAL as JOURNAL
from ..scope import AsyncScope
from ..store.protocol import Store, scan_all
from ..store.query import Delete, Limit, Op, Outcome, Put, Scan, Write
from ..store.retry import retry_conflicts

WRITTEN_BY = "written_by"
"""Metadata key of a record's provenance."""
JOURNALED = (NOTE, MEMORY, FACT)
"""Kinds of records that are journaled."""
MAX_ACTS = 1000
"""Maximum number of acts in a scope's journal; the oldest are dropped first."""
MAX_BYTES = 4_000_000
"""Maximum size of a scope's journal."""
MAX_BEFORE = 200_000
"""Maximum size, in bytes, of a previous value that is kept."""


class Provenance(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Who wrote a record, and why: agent, session, messages, model and tool.

    `scope` is the path of the session, by which an erasure of it finds the record. `message` is the one in which the
    agent decided to write, `prompt` the user message that it answered.
    """

    agent: str | None = None
    session: str | None = None
    scope: str | None = None
    message: str | None = None
    prompt: str | None = None
    model: str | None = None
    tool: str | None = None
    tool_call: str | None = None


class Change(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One record changed by an act: its previous value, None if it did not exist, and a digest of the new one.

    A previous value that was too large is `lost` and cannot be restored. For a fact, `names` are its subject,
    predicate and object.
    """

    kind: str
    key: str
    before: dict[str, Any] | None = None
    after: str | None = None
    lost: bool = False
    names: list[str] = field(default_factory=list)


class Act(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One write by an agent or a person; `undoes` is the act that it undid."""

    id: str
    what: str
    at: datetime
    by: Provenance
    changes: list[Change] = field(default_factory=list)
    undoes: str | None = None
    undone: bool = False


class AsyncJournal:
    """Journal of agents' writes in one scope."""

    scope: ScopePath

    def __init__(self, scope: AsyncScope) -> None:
        self.scope = scope.path
        self._scope = scope
        self._store = scope._store

    def __repr__(self) -> str:
        """Return the class and the path of the scope."""
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def history(
        self,
        key: str | None = None,
        *,
        agent: str | None = None,
        session: str | None = None,
        kind: str | None = None,
        limit: int | None = None,
    ) -> list[Act]:
        """Return acts, oldest first, filtered by key, agent, session and kind.

        The keys of a fact are its subject, predicate and object. `limit` counts back from the newest.
        """
        scan = Scan(scope=self.scope, kinds=(JOURNAL,))
        acts = [convert(record.data, Act) async for record in scan_all(self._store, scan)]
        gone = {act.undoes for act in acts if act.undoes is not None}
        found = [
            replace(act, undone=act.id in gone)
            for act in acts
            if (agent is None or act.by.agent == agent)
            and (session is None or act.by.session == session)
            and any(_concerns(change, key, kind) for change in act.changes)
        ]
        return found if limit is None else found[len(found) - min(len(found), check_count(limit, "limit")) :]

    async def undo(self, act: Act | str, *, by: str = "user", force: bool = False) -> Act:
        """Undo an act, given as such or by its id; return the new act.

        Restores a note's previous value or deletes a new note, deletes an added memory, ends a stated fact now
        and reopens the fact that it replaced. Raises NotFoundError if there is no such act, ConflictError if the
        record has changed since or the act is undone already; `force` overwrites it.
        """
        done = await self._find(act if isinstance(act, str) else act.id)
        if not force and any(other.undoes == done.id for other in await self.history()):
            raise ConflictError(f"act {done.id!r} is undone already", key=done.id)
        refs = [Ref(self.scope, change.kind, change.key) for change in done.changes]
        present = await self._store.read(refs)
        ops: list[Op] = []
        for change, record in zip(done.changes, present, strict=True):
            if change.lost:
                raise InvalidValueError(f"{shown(change.key)} was too large for its former value to be kept")
            if not force and _digest(record) != change.after:
                version = record.version if record is not None else 0
                told = f"{shown(' '.join(change.names) or change.key)} was changed again since act {done.id!r}"
                raise ConflictError(f"{told}: undo that first, or use force", key=change.key, current=version)
            ops += self._restored(change, record)
        writer = _Journaling(self._store, self.scope, "undo", Provenance(agent=by), done.id)
        return (await writer.write_act(Write(tuple(ops))))[1] or done

    async def undo_last(
        self, limit: int = 1, *, agent: str | None = None, session: str | None = None, by: str = "user"
    ) -> list[Act]:
        """Undo the last `limit` acts, newest first, of all or of an agent or session.

        Skips acts that are undone already.
        """
        acts = await self.history(agent=agent, session=session)
        open = [act for act in reversed(acts) if not act.undone and act.undoes is None]
        return [await self.undo(act, by=by) for act in open[: check_count(limit, "limit")]]

    def writer(self, what: str, by: Provenance) -> AsyncScope:
        """Return the scope for writing on behalf of an agent: writes carry their provenance and are journaled."""
        return AsyncScope(_Journaling(self._store, self.scope, what, by), self.scope, self._scope._tokens)

    async def _find(self, id: str) -> Act:
        (record,) = await self._store.read([Ref(self.scope, JOURNAL, check_name(id, "act"))])
        if record is None:
            raise NotFoundError(f"the journal of {self.scope.path!r} has no act {shown(id)}; only so many are kept")
        return convert(record.data, Act)

    def _restored(self, change: Change, present: Record | None) -> list[Op]:
        ref = Ref(self.scope, change.kind, change.key)
        version = present.version if present is not None else 0
        if change.before is not None:
            fields = {"scope": to_builtins(ref.scope), "kind": ref.kind, "key": ref.key, **change.before}
            return [Put(convert(fields, Record), version)]
        if present is None:
            return []
        moment, start = self._store.clock(), present.valid_from
        if change.kind == FACT and present.valid_to is None and start is not None and start < moment:
            return end_fact(present, moment)
        return [Delete(ref, version)]


class _Journaling(Layer):
    """Adds provenance and a journal entry with the previous values to each write."""

    def __init__(self, below: Store, scope: ScopePath, what: str, by: Provenance, undoes: str | None = None) -> None:
        super().__init__(below)
        self._scope = scope
        self._what = what
        self._by = by
        self._undoes = undoes

    async def write(self, write: Write) -> list[Outcome]:
        return (await self.write_act(write))[0]

    async def write_act(self, write: Write) -> tuple[list[Outcome], Act | None]:
        """Write, with a journal entry in the same transaction; the act is None if nothing changes."""
        # The digests in the entry are those of what is stored.
        write = replace(write, ops=tuple(await redact_ops(self._below, list(write.ops), keep=True)))
        refs = list(dict.fromkeys(ref for op in write.ops if (ref := _changed(op)) is not None))
        if not refs:
            return await self._below.write(write), None
        guarded: set[str] = set()

        async def journaled() -> tuple[list[Outcome], Act | None]:
            nonlocal guarded
            before = dict(zip(refs, await self._below.read(refs), strict=True))
            act = Act(id=new_id(), what=self._what, at=self.clock(), by=self._by, undoes=self._undoes)
            stamp = None
            if self._undoes is None:
                stamp = {**to_builtins(self._by), "act": act.id, "at": act.at.isoformat()}
            ops, guarded = _guarded(write.ops, before, stamp)
            changes = _changes(ops, before)
            if not changes:
                return await self._below.write(write), None
            act = replace(act, changes=changes)
            limit = Limit(self._scope, JOURNAL, MAX_ACTS, MAX_BYTES, (), strict=False)
            outcomes = await self._below.write(replace(write, ops=(*ops, Put(self._entry(act), 0), limit)))
            await self._trim(outcomes[-1])
            return outcomes[: len(write.ops)], act

        # If another writer was faster, the previous value is different.
        return await retry_conflicts(journaled, self._what, retry_on=lambda error: error.key in guarded)

    def _entry(self, act: Act) -> Record:
        data = to_builtins(act)
        labels = {} if act.undoes is None else {"undoes": act.undoes}
        size = len(json.encode(data))
        return Record(
            scope=self._scope, kind=JOURNAL, key=act.id, title=act.what, data=data, labels=labels, weight=size
        )

    async def _trim(self, journal: Outcome) -> None:
        """Drop the oldest acts once there are too many, a tenth at a time."""
        if journal.count <= MAX_ACTS and journal.weight <= MAX_BYTES:
            return
        scan = Scan(scope=self._scope, kinds=(JOURNAL,), limit=max(1, journal.count // 10), bodies=False)
        oldest = (await self._below.scan(scan)).items
        await self._below.write(Write(tuple(Delete(record.ref) for record in oldest)))


def _changed(op: Op) -> Ref | None:
    ref = op.record.ref if isinstance(op, Put) else op.ref if isinstance(op, Delete) else None
    return ref if ref is not None and ref.kind in JOURNALED else None


def _guarded(
    ops: tuple[Op, ...], before: dict[Ref, Record | None], stamp: dict[str, Any] | None
) -> tuple[list[Op], set[str]]:
    """Return operations with provenance that fail if what was read before has changed, and their keys."""
    found: list[Op] = []
    guarded: set[str] = set()
    first = set(before)
    for op in ops:
        ref = _changed(op)
        if ref is None:
            found.append(op)
            continue
        old = before[ref]
        version = op.if_version  # type: ignore[union-attr]
        if version is None and ref in first and (old is not None or isinstance(op, Put)):
            version = old.version if old is not None else 0
            guarded.add(ref.key)
        first.discard(ref)
        if isinstance(op, Put):
            meta = op.record.meta if stamp is None else {**op.record.meta, WRITTEN_BY: stamp}
            found.append(Put(replace(op.record, meta=meta), version))
        else:
            found.append(Delete(ref, version))
    return found, guarded


def _changes(ops: list[Op], before: dict[Ref, Record | None]) -> list[Change]:
    after: dict[Ref, Record | None] = {}
    for op in ops:
        if (ref := _changed(op)) is not None:
            after[ref] = op.record if isinstance(op, Put) else None
    found = []
    for ref, new in after.items():
        old = before[ref]
        if old is None and new is None:
            continue
        fields = None if old is None else _fields(old)
        lost = fields is not None and len(json.encode(fields)) > MAX_BEFORE
        record = new if new is not None else old
        assert record is not None
        names = [record.labels[name] for name in ("subject", "predicate", "object")] if ref.kind == FACT else []
        found.append(
            Change(
                kind=ref.kind, key=ref.key, before=None if lost else fields, after=_digest(new), lost=lost, names=names
            )
        )
    return found


_ASSIGNED = {"scope", "kind", "key", "seq", "version", "updated", "derived"}
_FIELDS = tuple(name for name in Record.__struct_fields__ if name not in _ASSIGNED)


def _fields(record: Record) -> dict[str, Any]:
    """Return the restorable fields of a record, as JSON."""
    fields: dict[str, Any] = to_builtins({name: getattr(record, name) for name in _FIELDS})
    return {name: value for name, value in fields.items() if value not in (None, {}, False)}


def _digest(record: Record | None) -> str | None:
    if record is None:
        return None
    fields = {name: value for name, value in _fields(record).items() if name != "created"}
    return sha256(json.encode(fields, order="sorted")).hexdigest()[:16]


def _concerns(change: Change, key: str | None, kind: str | None) -> bool:
    if kind is not None and change.kind != kind:
        return False
    return key is None or key == change.key or key in change.names
