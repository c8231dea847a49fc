"""Memories: texts that are added, changed, deleted, and fade with time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..checks import (
    check_choice,
    check_count,
    check_name,
    check_number,
    check_several,
    check_text,
    check_ttl,
    new_id,
    shown,
)
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..layers.redact import redact_ops, redact_text
from ..recall.index_entry import RECALL
from ..recall.text_analysis import NEAR, content_words, similarity
from ..records import MEMORY, Record, Ref, ScopePath, digest_of
from ..store.protocol import SearchableStore, scan_all
from ..store.query import Condition, Outcome, Put, Scan, Search, Write, stored_record
from ..store.retry import retry_conflicts
from ..telemetry.calls import observed
from .hits import Hit, Reference, delete_refs, find_ref
from .memory_items import (
    Duplicates,
    Faded,
    MemoryItem,
    archived,
    check_importance,
    check_validity,
    count_use,
    decay,
    fading_memories,
    merge_records,
    restore,
    source_labels,
    to_item,
    to_record,
)


@observed
class AsyncMemories:
    """The memories of one scope."""

    scope: ScopePath

    def __init__(self, store: SearchableStore, scope: ScopePath) -> None:
        self.scope = scope
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.scope.path!r}>"

    async def add(
        self,
        text: str,
        *,
        id: str | None = None,
        importance: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        created: datetime | None = None,
        ttl: timedelta | None = None,
        pinned: bool = False,
        once: str | None = None,
        duplicates: Duplicates = "keep",
    ) -> MemoryItem:
        """Remember a text in this scope, under a new id or replacing the memory with this id.

        `source` is its origin, `valid_from` and `valid_to` the time in which it is true; with `ttl` it expires.
        `once` is an idempotency id of this call in this scope: a retry within 24 hours changes nothing, and other
        content under the same id raises ConflictError. `duplicates` handles a text that is already remembered:
        "keep" both, "merge" (the old id stays, the old text moves to `data`), "skip" (return the existing
        memory), or "refuse" with a ConflictError. Raises InvalidValueError for a value that cannot be stored.
        """
        item = MemoryItem(
            text=text,
            id="" if id is None else id,
            importance=importance,
            metadata={} if metadata is None else metadata,
            source=source,
            valid_from=valid_from,
            valid_to=valid_to,
            created=created,
            expires=None if ttl is None else self._store.clock() + check_ttl(ttl),
            pinned=pinned,
        )
        if id == "":
            raise InvalidValueError("id must not be empty; leave it out to have one assigned")
        return (await self.add_many([item], once=once, duplicates=duplicates))[0]

    async def add_many(
        self, items: Iterable[str | MemoryItem], *, once: str | None = None, duplicates: Duplicates = "keep"
    ) -> list[MemoryItem]:
        """Remember texts in this scope, all or none, as `add` does."""
        return [to_item(record) for record in await self._add(check_several(items, "items"), once, duplicates)]

    async def get(self, id: Reference) -> MemoryItem:
        """Return the current memory by its id, a hit or an item, of this scope or below.

        Raises NotFoundError if it does not exist, InvalidValueError if the id is ambiguous.
        """
        record = await self._record(id)
        _check_memory(record)
        return to_item(record)

    async def update(
        self,
        id: Reference,
        *,
        text: str | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
        source: str | None | UnsetType = UNSET,
        valid_from: datetime | None | UnsetType = UNSET,
        valid_to: datetime | None | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
        pinned: bool | UnsetType = UNSET,
        if_version: int | None = None,
    ) -> MemoryItem:
        """Change the given fields of a memory of this scope or below; `id` as in `get`; with `ttl` it expires.

        With `if_version`, the memory must have that version. Raises as `get` does, and ConflictError if it has another
        one, whose `current` is the stored version, or if concurrent writes win every attempt.
        """
        changes: dict[str, Any] = {
            "text": text if text is UNSET else check_text(text, "text"),
            "importance": importance,
            "meta": metadata,
            "labels": source if source is UNSET else source_labels(source),
            "valid_from": valid_from,
            "valid_to": valid_to,
            "expires": ttl if ttl is UNSET or ttl is None else self._store.clock() + check_ttl(ttl),
            "pinned": pinned,
        }
        given = {name: value for name, value in changes.items() if value is not UNSET}
        version = None if if_version is None else check_count(if_version, "if_version")
        return to_item(await self._change(id, given, if_version=version))

    async def delete(self, *ids: Reference, if_version: int | None = None) -> int:
        """Delete memories of this scope or below, each given as in `get`; return how many existed.

        With `if_version`, a memory with another version is not deleted, and ConflictError is raised.
        """
        version = None if if_version is None else check_count(if_version, "if_version")
        refs = [await self._ref(id) for id in ids]
        for ref in refs:
            _check_memory(ref)
        return await delete_refs(self._store, refs, version)

    async def similar(self, text: str, *, min_score: float = NEAR, k: int = 5) -> list[Hit]:
        """Return the memories of this scope that duplicate `text`, most similar first.

        A score of 1 means the same words in the same order. Texts that differ in a number or a negation are never
        similar.
        """
        text = redact_text(self._store, self.scope, MEMORY, check_text(text, "text"))
        search = Search(
            scope=self.scope,
            query=text,
            kinds=(MEMORY,),
            below=False,
            as_of=self._store.clock(),
            limit=4 * check_count(k, "k"),
            signals=("lexical", "dense"),
            diverse=False,
            uses=False,
        )
        check_number(min_score, "min_score")
        found = []
        for match in await self._store.search(search):
            score = similarity(text, match.record.text or "")
            if score >= min_score:
                found.append(Hit(record=match.record, score=score, why={"similar": score}))
        return sorted(found, key=lambda hit: -hit.score)[:k]

    async def used(self, *hits: Reference) -> int:
        """Report hits of this scope or below as useful, so that they fade more slowly; return how many still exist.

        Each is given as in `get`, of any kind that recall finds. It also counts as a success in the recall
        metrics.
        """
        refs = list(dict.fromkeys([await self._ref(hit) for hit in hits]))
        found = await self._store.read(refs)
        there = [ref for ref, record in zip(refs, found, strict=True) if record is not None]
        await count_use(self._store, there, reported=True)
        return len(there)

    async def fading(
        self, below: float | None = None, *, limit: int = 100, half_life: timedelta | None = None
    ) -> list[Faded]:
        """Return the memories of this scope that decay, weakest first, or only those weaker than `below`.

        Pinned memories do not decay. Importance halves after each `half_life` without use.
        """
        if below is not None:
            check_number(below, "below")
        every = fading_memories(self._store, self.scope, half_life)
        found = [fade async for fade in every if below is None or fade.strength < below]
        return sorted(found, key=lambda fade: fade.strength)[: check_count(limit, "limit")]

    async def decay(self, *, half_life: timedelta | None = None) -> int:
        """Write the decayed importance of the memories of this scope to the store; return how many changed.

        Calling it often or rarely makes no difference. Recall uses the decayed importance in any case;
        `min_importance` filters see the stored one.
        """
        return await decay(self._store, self.scope, half_life)

    async def archived(self) -> list[MemoryItem]:
        """Return the archived memories of this scope, oldest first."""
        return [to_item(record) for record in await archived(self._store, self.scope)]

    async def restore(self, id: str, *, used: bool = True) -> MemoryItem:
        """Restore an archived memory of this scope, counted as used now; raises NotFoundError or ConflictError.

        With `used=False` it fades on as if it had never been archived.
        """
        return to_item(await restore(self._store, self.scope, id, used))

    # Last among the public methods, because its name shadows the type in annotations.
    async def list(self, *, limit: int | None = None, newest: bool = True) -> list[MemoryItem]:
        """Return the memories of this scope, oldest first; with `limit`, only the newest, or else only the oldest."""
        if limit is None:
            scan = Scan(scope=self.scope, kinds=(MEMORY,))
            return [to_item(record) async for record in scan_all(self._store, scan)]
        scan = Scan(scope=self.scope, kinds=(MEMORY,), reverse=newest, limit=check_count(limit, "limit"))
        records = (await self._store.scan(scan)).items
        return [to_item(record) for record in (reversed(records) if newest else records)]

    async def _add(
        self, items: Sequence[str | MemoryItem], once: str | None, duplicates: Duplicates
    ) -> Sequence[Record]:
        check_choice(duplicates, "duplicates", get_args(Duplicates))
        given = [self._first_put(item, once, n) for n, item in enumerate(items)]
        puts: Sequence[Put] = await redact_ops(self._store, given, keep=True)
        digest = Write(tuple(puts), once).digest
        if duplicates == "keep":
            return await self._put(puts, once, digest)
        merging: set[str] = set()

        async def add_distinct() -> Sequence[Record]:
            writes, targets = await self._distinct(puts, duplicates)
            merges = [put.record.ref for put in writes if put.if_version]
            merging.update(ref.key for ref in merges)
            written = await self._put(writes, once, digest) if writes else []
            await count_use(self._store, [*merges, *(old.ref for old in targets if isinstance(old, Record))])
            return [target if isinstance(target, Record) else written[target] for target in targets]

        # The memory to merge with may change meanwhile.
        return await retry_conflicts(
            add_distinct, f"remembering texts in {self.scope.path!r}", retry_on=lambda error: error.key in merging
        )

    async def _put(self, puts: Sequence[Put], once: str | None, digest: str | None) -> Sequence[Record]:
        outcomes = await self._store.write(Write(tuple(puts), once, digest=digest))
        if len(outcomes) != len(puts):
            # A retry: the first attempt may have found other texts to merge with or skip.
            by_key = {outcome.key: outcome for outcome in outcomes}
            outcomes = [by_key.get(put.record.key, Outcome()) for put in puts]
        written = [*zip([put.record for put in puts], outcomes, strict=True)]
        # Rewriting a memory counts as a use: it does not fade from its first write.
        rewritten = [record.ref for record, did in written if record.created is None and did.created != did.updated]
        await count_use(self._store, rewritten)
        return [stored_record(record, outcome) for record, outcome in written]

    def _first_put(self, item: str | MemoryItem, once: str | None, n: int) -> Put:
        """Return the operation that writes the n-th text of a call; under a new id it replaces nothing."""
        new = once is None and not (isinstance(item, MemoryItem) and item.id)
        return Put(self._given(item, once, n), 0 if new else None)

    def _given(self, given: str | MemoryItem, once: str | None, n: int) -> Record:
        """Return the n-th text of a call as a record; a retry with `once` has the same key."""
        item = given if isinstance(given, MemoryItem) else MemoryItem(text=given)
        key = new_id()
        if once is not None:
            text = redact_text(self._store, self.scope, MEMORY, check_text(item.text, "text"))
            key = digest_of((check_name(once, "once"), n, text)).hex()
        return to_record(item, self.scope, key)

    async def _change(
        self, id: Reference, given: dict[str, Any], *, only: bool = True, if_version: int | None = None
    ) -> Record:
        """Change a record; with `only`, a memory. In other kinds, only some fields can change."""
        if "importance" in given:
            check_importance(given["importance"])

        async def change() -> Record:
            old = await self._record(id, derived=(RECALL,))
            if only:
                _check_memory(old)
            if old.kind != MEMORY and (fixed := given.keys() - {"importance", "meta", "pinned"}):
                raise InvalidValueError(
                    f"{', '.join(sorted(fixed))} of a {old.kind} cannot be updated: only of a memory"
                )
            if "text" in given:
                old = replace(old, derived={})
            put = Put(check_validity(replace(old, **given)), old.version if if_version is None else if_version)
            (put,) = await redact_ops(self._store, [put], keep=True)
            (did,) = await self._store.write(Write((put,)))
            return stored_record(put.record, did)

        return await retry_conflicts(
            change, f"updating {shown(id)} in {self.scope.path!r}", retry_on=lambda error: if_version is None
        )

    async def _record(self, id: Reference, derived: tuple[str, ...] = ()) -> Record:
        """Return the referenced record with these derived values; raises as `get` does."""
        ref = await self._ref(id)
        if derived:
            where = (Condition("key", "eq", ref.key),)
            scan = Scan(scope=ref.scope, kinds=(ref.kind,), where=where, derived=derived)
            record = next(iter((await self._store.scan(scan)).items), None)
        else:
            (record,) = await self._store.read([ref])
        if record is None:
            raise NotFoundError(f"{self.scope.path!r} has no memory with the id {shown(ref.key)}")
        return record

    async def _ref(self, id: Reference) -> Ref:
        return await find_ref(self._store, self.scope, id, MEMORY)

    async def _distinct(self, puts: Sequence[Put], policy: Duplicates) -> tuple[Sequence[Put], Sequence[int | Record]]:
        """Return the writes and, for each text, the index of its write or the existing memory used instead."""
        writes: list[Put] = []
        targets: list[int | Record] = []
        by_words: dict[tuple[str, ...], int] = {}
        for put in puts:
            text = put.record.text or ""
            words = content_words(text)
            known: Record | None = None
            same = by_words.get(words)
            if same is None or similarity(text, writes[same].record.text or "") < NEAR:
                others = (hit.record for hit in await self.similar(text, k=2))
                known = next((record for record in others if record.key != put.record.key), None)
                # Another of these texts may be merged into the same memory.
                same = next((n for n, w in enumerate(writes) if known is not None and w.record.key == known.key), None)
            if policy == "refuse" and (known is not None or same is not None):
                key = known.key if known is not None else writes[same or 0].record.key
                raise ConflictError(f"{shown(key)} says the same as {shown(text)}", key=key)
            if same is not None:
                if policy == "merge":
                    writes[same] = Put(merge_records(writes[same].record, put.record), writes[same].if_version)
                targets.append(same)
            elif known is not None and policy == "skip":
                targets.append(known)
            else:
                by_words.setdefault(words, len(writes))
                targets.append(len(writes))
                writes.append(put if known is None else Put(merge_records(known, put.record), known.version))
        return writes, targets


def _check_memory(record: Record | Ref) -> None:
    if record.kind != MEMORY:
        raise InvalidValueError(f"{shown(record.key)} of scope {record.scope.path!r} is a {record.kind}, not a memory")
