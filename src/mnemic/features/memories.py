"""Long-term memory: texts that are remembered, recalled and forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ..checks import (
    check_count,
    check_name,
    check_number,
    check_several,
    check_text,
    check_time,
    check_ttl,
    shown,
)
from ..errors import ConflictError, InvalidValueError, NotFoundError
from ..recall.entry import RECALL
from ..recall.likeness import NEAR, content_words, likeness
from ..recall.strength import ONE_MORE, USE
from ..records import Hit, Record, Ref, Role, ScopePath, new_id, now
from ..store.batches import write_each
from ..store.digest import digest_of
from ..store.protocol import Store, scan_all
from ..store.query import Condition, Delete, Derive, Outcome, Put, Scan, Search, Write, stored
from ..store.retry import retried
from .duplicates import Duplicates, check_policy, merged
from .filters import conditions, names
from .kinds import MEMORY as MEMORY
from .kinds import check_kinds
from .references import Reference, find_key, ref_of

FORGOTTEN_AT_ONCE = 500
"""How many records one write removes when a filter says what to forget."""


class MemoryItem(Struct, frozen=True, kw_only=True):
    """A text to remember, and all that `remember` may be told of it."""

    text: str
    key: str | None = None
    importance: float = 1.0
    metadata: Mapping[str, Any] | None = None
    source: str | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    created: datetime | None = None
    ttl: timedelta | None = None
    pinned: bool = False


class AsyncLongTerm:
    """The remembered texts of one scope."""

    home: ScopePath

    def __init__(self, store: Store, home: ScopePath) -> None:
        self.home = home
        self._store = store

    async def remember(
        self,
        text: str,
        *,
        key: str | None = None,
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
    ) -> Record:
        """Remember a text, under a new key or in place of what has this key; return its record.

        `source` says where it is from, `valid_from` and `valid_to` when it was true; with `ttl` it
        is gone after that long; with `once`, a name for this call in this scope, it is done once however
        often it is sent within 24 hours, and other words under that name raise ConflictError.
        `duplicates` says what becomes of a text that says what is remembered already: "keep" it beside
        the other, "merge" them (the record has the old key, and the old wording is in its data), "skip"
        it (the old record is returned), or "refuse" it with a ConflictError. Raises InvalidValueError
        for what cannot be stored.
        """
        experience = MemoryItem(
            text=text,
            key=key,
            importance=importance,
            metadata=metadata,
            source=source,
            valid_from=valid_from,
            valid_to=valid_to,
            created=created,
            ttl=ttl,
            pinned=pinned,
        )
        return (await self.remember_many([experience], once=once, duplicates=duplicates))[0]

    async def remember_many(
        self,
        experiences: Iterable[str | MemoryItem],
        *,
        once: str | None = None,
        duplicates: Duplicates = "keep",
    ) -> list[Record]:
        """Remember texts as `remember` does, all or none; return their records."""
        experiences = check_several(experiences, "experiences")
        policy = check_policy(duplicates)
        puts = [Put(self._record(given, once, n)) for n, given in enumerate(experiences)]
        said = Write(tuple(puts), once).digest
        if policy == "keep":
            return await self._remember(puts, once, said)
        merging: set[str] = set()

        async def remember_distinct() -> list[Record]:
            places, distinct, kept = await self._distinct(puts, policy)
            merging.update(put.record.key for put in distinct if put.if_version)
            written = await self._remember(distinct, once, said) if distinct else []
            again = [put.record.ref for put in distinct if put.if_version]
            await self._use([*again, *(record.ref for record in kept.values())])
            return [kept[n] if n in kept else written[place] for n, place in enumerate(places)]

        # What a text was to be merged with may change meanwhile.
        return await retried(
            remember_distinct,
            f"remembering texts in {self.home.path!r}",
            retry_on=lambda error: error.key in merging,
        )

    async def alike(self, text: str, *, least: float = NEAR, k: int = 5) -> list[Hit]:
        """Return the remembered texts of this scope that say the same as `text`, the most alike first.

        The score is the likeness: 1 for the same words in the same order. Texts that differ in a
        number, or of which only one denies something, are never alike.
        """
        search = Search(
            scope=self.home,
            query=check_text(text, "text"),
            kinds=(MEMORY,),
            below=False,
            as_of=now(),
            limit=4 * check_count(k, "k"),
            signals=("lexical", "dense"),
            diverse=False,
            uses=False,
        )
        check_number(least, "least")
        found = []
        for hit in await self._store.search(search):
            score = likeness(text, hit.record.text or "")
            if score >= least:
                found.append(Hit(record=hit.record, score=score, why={"alike": score}))
        return sorted(found, key=lambda hit: -hit.score)[:k]

    async def get(self, key: Reference) -> Record:
        """Return the record of a hit, a record or a ref as it is now, or what is under a key.

        A key alone is a remembered text of this scope, or else the only record with this key, of any kind
        that recall finds, here or below. Raises NotFoundError if there is none, InvalidValueError if there
        are several, or if it lies in another scope.
        """
        return await self._found(key)

    async def update(
        self,
        key: Reference,
        *,
        text: str | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
        source: str | None | UnsetType = UNSET,
        valid_from: datetime | None | UnsetType = UNSET,
        valid_to: datetime | None | UnsetType = UNSET,
        pinned: bool | UnsetType = UNSET,
    ) -> Record:
        """Change what is given and keep the rest; return the new record.

        `key` is as `get` takes it. Of a message, a note, a fact or a summary only the importance, the
        metadata and the pin can be changed here. Raises as `get` does, and ConflictError if others wrote
        it first at every attempt.
        """
        changes: dict[str, Any] = {
            "text": text if text is UNSET else check_text(text, "text"),
            "importance": importance if importance is UNSET else _importance(importance),
            "meta": metadata,
            "labels": source if source is UNSET else _labels(source),
            "valid_from": valid_from,
            "valid_to": valid_to,
            "pinned": pinned,
        }
        given = {name: value for name, value in changes.items() if value is not UNSET}

        async def change() -> Record:
            old = await self._found(key, derived=(RECALL,))
            if old.kind != MEMORY and (fixed := given.keys() - {"importance", "meta", "pinned"}):
                raise InvalidValueError(
                    f"{', '.join(sorted(fixed))} of a record of the kind {old.kind!r} cannot be updated: "
                    "only of a remembered text"
                )
            if text is not UNSET:
                old = replace(old, derived={})
            put = Put(_checked(replace(old, **given)), old.version)
            (did,) = await self._store.write(Write((put,)))
            return stored(put.record, did)

        return await retried(change, f"updating {shown(key)} in {self.home.path!r}")

    async def forget(
        self,
        key: Reference | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> int:
        """Forget one record, as `get` takes it, or all remembered texts here that pass every filter.

        Returns how many records were forgotten. A record that is changed meanwhile so that it no longer
        passes the filter stays. Raises InvalidValueError if neither a key nor a filter is given, or both,
        and if a key alone could be several records; ConflictError if others kept changing what was to be
        forgotten.
        """
        filtered = any(value is not None for value in (metadata, source, since, until))
        if filtered == (key is not None):
            raise InvalidValueError(
                "forget needs a key or a filter, and not both; it never forgets all unasked"
            )
        if key is not None:
            return await self._forget_one(key)
        where = conditions(metadata, since=since, until=until)
        if source is not None:
            where += (Condition("labels.source", "eq", source),)
        if not where:
            raise InvalidValueError("forget needs a filter that says something: it never forgets all unasked")
        scan = Scan(scope=self.home, kinds=(MEMORY,), where=where, bodies=False, limit=FORGOTTEN_AT_ONCE)
        forgotten = 0

        async def forget_matching() -> int:
            """Forget what passes the filter; what was changed before it could be is looked at again."""
            nonlocal forgotten
            while (page := await self._store.scan(scan)).items:
                gone = await write_each(self._store, [(Delete(r.ref, r.version),) for r in page.items])
                forgotten += sum(gone)
                if not any(gone):
                    raise ConflictError(f"{len(gone)} records that pass the filter were changed meanwhile")
            return forgotten

        return await retried(forget_matching, f"forgetting in {self.home.path!r}")

    async def recall(
        self,
        query: str,
        k: int = 5,
        *,
        kinds: Sequence[str] | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        roles: Sequence[Role] | Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        min_importance: float | None = None,
        min_score: float | None = None,
        as_of: datetime | None = None,
        neighbors: int = 0,
        diverse: bool = True,
        traffic: bool = False,
        exclude: Sequence[Hit | Record | Ref] = (),
        signals: Sequence[str] | str | None = None,
        uses: bool = True,
    ) -> list[Hit]:
        """Return the `k` records of this scope, and of those below it, that best answer, best first.

        Everything with text is searched: messages, remembered texts, notes, summaries and links, or
        only the `kinds` given. `as_of` keeps what was true then, which is now unless it is given.
        System messages, tools' answers and messages that only call tools are left out, unless `roles`
        names theirs or `traffic` is true. `neighbors` brings that many turns before and after each hit
        along; `diverse` leaves copies of a better hit out; what is in `exclude` is no hit; `signals` are the
        only ones that count, all unless they are given. A hit counts as a use of what was remembered, unless
        `uses` is false.
        """
        if kinds is not None and not kinds:
            return []
        search = Search(
            scope=self.home,
            query=query,
            kinds=() if kinds is None else check_kinds(kinds),
            where=conditions(metadata, roles=roles, since=since, until=until, min_importance=min_importance),
            as_of=now() if as_of is None else check_time(as_of, "as_of"),
            limit=check_count(k, "k"),
            signals=() if signals is None else names(signals, "signals"),
            min_score=min_score,
            neighbors=neighbors,
            diverse=diverse,
            traffic=traffic or roles is not None,
            exclude=tuple(ref_of(one, self.home) for one in exclude),
            uses=uses,
        )
        return await self._store.search(search)

    async def recent(self, n: int = 10) -> list[Record]:
        """Return what was remembered last in this scope, oldest first."""
        scan = Scan(scope=self.home, kinds=(MEMORY,), reverse=True, limit=check_count(n, "n"))
        return list(reversed((await self._store.scan(scan)).items))

    async def all(self) -> list[Record]:
        """Return everything that is remembered in this scope, oldest first."""
        return [record async for record in scan_all(self._store, Scan(scope=self.home, kinds=(MEMORY,)))]

    async def _remember(self, puts: list[Put], once: str | None, said: str | None) -> list[Record]:
        outcomes = await self._store.write(Write(tuple(puts), once, digest=said))
        if len(outcomes) != len(puts):
            # Sent again, it was done before, when other texts were there to be merged with or skipped for.
            did = {outcome.key: outcome for outcome in outcomes}
            outcomes = [did.get(put.record.key, Outcome()) for put in puts]
        pairs = list(zip(puts, outcomes, strict=True))
        # A key that is written anew is used: it does not fade from when it was first written.
        anew = (put for put, did in pairs if put.record.created is None and did.created != did.updated)
        await self._use([put.record.ref for put in anew])
        return [stored(put.record, did) for put, did in pairs]

    async def _found(self, key: Reference, derived: tuple[str, ...] = ()) -> Record:
        """Return the record that a caller means, with these derived values; raises as `get` does."""
        ref = self._ref(key) if isinstance(key, str) else ref_of(key, self.home)
        record = await self._at(ref, derived)
        if (
            record is None
            and isinstance(key, str)
            and (other := await find_key(self._store, self.home, key)) is not None
        ):
            record = await self._at(other, derived)
        if record is None:
            raise NotFoundError(f"{self.home.path!r} remembers nothing under {shown(ref.key)}")
        return record

    async def _at(self, ref: Ref, derived: tuple[str, ...]) -> Record | None:
        if not derived:
            return (await self._store.read([ref]))[0]
        where = (Condition("key", "eq", ref.key),)
        scan = Scan(scope=ref.scope, kinds=(ref.kind,), where=where, derived=derived)
        return next(iter((await self._store.scan(scan)).items), None)

    async def _forget_one(self, key: Reference) -> int:
        ref = self._ref(key) if isinstance(key, str) else ref_of(key, self.home)
        (did,) = await self._store.write(Write((Delete(ref),)))
        if (
            not did.removed
            and isinstance(key, str)
            and (other := await find_key(self._store, self.home, key)) is not None
        ):
            (did,) = await self._store.write(Write((Delete(other),)))
        return len(did.removed)

    async def _use(self, refs: Sequence[Ref], how: bytes = ONE_MORE) -> None:
        """Count a use of records."""
        if refs:
            await self._store.write(Write(tuple(Derive(ref, USE, how) for ref in dict.fromkeys(refs))))

    async def _distinct(
        self, puts: list[Put], policy: Duplicates
    ) -> tuple[list[int], list[Put], dict[int, Record]]:
        """Return for each text which write is its own, the writes, and what stands already instead of one."""
        places: list[int] = []
        distinct: list[Put] = []
        kept: dict[int, Record] = {}
        places_of: dict[tuple[str, ...], int] = {}
        for n, put in enumerate(puts):
            text = put.record.text or ""
            told = content_words(text)
            twin = places_of.get(told)
            if twin is not None and likeness(text, distinct[twin].record.text or "") < NEAR:
                twin = None
            others = [] if twin is not None else await self.alike(text, k=2)
            known = next((hit for hit in others if hit.record.key != put.record.key), None)
            if known is not None:
                # Another of these texts may be merged with the same one.
                twin = next((m for m, p in enumerate(distinct) if p.record.key == known.record.key), None)
            if policy == "refuse" and (known is not None or twin is not None):
                key = known.record.key if known is not None else distinct[twin or 0].record.key
                raise ConflictError(f"{shown(key)} says the same as {shown(text)}", key=key)
            if twin is not None:
                if policy == "merge":
                    distinct[twin] = Put(merged(distinct[twin].record, put.record), distinct[twin].if_version)
                places.append(twin)
            elif known is None:
                places_of.setdefault(told, len(distinct))
                places.append(len(distinct))
                distinct.append(put)
            elif policy == "skip":
                kept[n] = known.record
                places.append(-1)
            else:
                places_of.setdefault(told, len(distinct))
                places.append(len(distinct))
                distinct.append(Put(merged(known.record, put.record), known.record.version))
        return places, distinct, kept

    def _record(self, given: str | MemoryItem, once: str | None, n: int) -> Record:
        """Return the n-th text of a call as a record; sent again under a name, it has the same key."""
        item = given if isinstance(given, MemoryItem) else MemoryItem(text=given)
        text = check_text(item.text, "text")
        key = new_id() if once is None else digest_of((once, n, text)).hex()
        return _checked(
            Record(
                scope=self.home,
                kind=MEMORY,
                key=item.key if item.key is not None else key,
                text=text,
                importance=_importance(item.importance),
                meta=item.metadata or {},  # type: ignore[arg-type]
                labels=_labels(item.source),
                pinned=item.pinned,
                created=item.created,
                expires=None if item.ttl is None else now() + check_ttl(item.ttl),
                valid_from=item.valid_from,
                valid_to=item.valid_to,
            )
        )

    def _ref(self, key: str) -> Ref:
        return Ref(self.home, MEMORY, check_name(key, "key"))


def _importance(value: float) -> float:
    return check_number(value, "importance", least=0)


def _labels(source: str | None) -> dict[str, str]:
    return {} if source is None else {"source": check_name(source, "source")}


def _checked(record: Record) -> Record:
    """Raise InvalidValueError if the record is said to be true until before it is true."""
    start, end = record.valid_from, record.valid_to
    if (
        start is not None
        and end is not None
        and check_time(end, "valid_to") <= check_time(start, "valid_from")
    ):
        raise InvalidValueError(f"valid_to {end} is not after valid_from {start}")
    return record
