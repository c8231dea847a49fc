"""Erases a scope and everything below it, with what was derived from it elsewhere; verifies that nothing is left.

All streams of one scope are purged in one write, so what another process writes meanwhile is erased or kept as a whole.
While it runs, a record in the scope says so: after an interruption, the next erasure finds it and finishes the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec.structs import replace

from ..checks import check_callable, check_name, check_several, new_id
from ..errors import ConflictError, HeldError
from ..event_loop import call
from ..layers.audit import AuditLayer, actor_of
from ..layers.audit_names import audit_layer, drop_names
from ..layers.beside import open_beside
from ..layers.history import HistoryLayer
from ..layers.hold import HoldLayer
from ..layers.layer import Layer, layers_of
from ..layers.restricted import RestrictedLayer, require, visible_root
from ..messages import Message, decode
from ..records import (
    ARCHIVED,
    AUDIT_KIND,
    EMBEDDER_KIND,
    ENCRYPTION_KIND,
    ERASURE_KIND,
    FACT,
    GUARD,
    HISTORY,
    JOURNAL,
    KEPT,
    LEASE,
    MEMORY,
    MESSAGE,
    NOTE,
    PROGRESS,
    PRUNED,
    SUMMARY,
    TITLE,
    UNLISTED,
    VAULT,
    VERSION,
    Record,
    ScopePath,
)
from ..store.protocol import Capability, Scrubbed, Store, Unreached, all_streams, scan_all, scrub
from ..store.query import Delete, Op, Purge, Put, Scan, StreamScan, Write
from ..store.registry import StoreURL
from .certificate import (
    ErasedArchive,
    ErasedDerivation,
    ErasedStream,
    ErasureCertificate,
    InterruptedErasure,
    Verification,
    signed,
)
from .provenance import Derivations, without_sources
from .settings import forget_known

Rebuild: TypeAlias = Callable[[list[Message]], Awaitable[str] | str]
"""Makes the new text of a derived record, from the sources that stay."""

INTERNAL = (*KEPT, EMBEDDER_KIND, ERASURE_KIND, VAULT, *UNLISTED)
"""Kinds of internal records, which are not counted as records of the scope."""
ERASED = (
    MESSAGE, ARCHIVED, SUMMARY, TITLE, MEMORY, PRUNED, NOTE, FACT, GUARD, HISTORY, JOURNAL, PROGRESS, LEASE,
    VAULT, *UNLISTED,
)  # fmt: skip
"""Kinds that are purged in each scope together, whether or not they were listed."""
ROUNDS = 5
"""How often what others write meanwhile is erased as well; what they write after that stays."""

Streams: TypeAlias = dict[ScopePath, Counter[str]]
"""How many records of each kind a scope has."""


@runtime_checkable
class Erasing(Protocol):
    """A back-end that erases by itself: a server, which also has caches, layers and keys of its own."""

    async def erase(self, scope: ScopePath, pseudonym: str | None, *, dry_run: bool) -> Any:
        """Erase a scope; return the certificate as JSON."""
        ...


class Erasure:
    """One erasure of a scope."""

    def __init__(
        self,
        store: Store,
        scope: ScopePath,
        *,
        pseudonym: str | None = None,
        archives: Sequence[str] = (),
        rebuild: Rebuild | None = None,
        names: Sequence[str] = (),
        keep_audit_names: bool = False,
    ) -> None:
        """Raise InvalidValueError for an invalid pseudonym, archive or function."""
        self._store = store
        self._inner = store._below if isinstance(store, RestrictedLayer) else store
        """The store for derived records, of which a restricted memory can see some."""
        self._unlogged = next(one for one in layers_of(self._inner) if not isinstance(one, AuditLayer))
        """The store for the record of this erasure."""
        reached = store.reach(scope) if isinstance(store, RestrictedLayer) else scope
        self._reached = reached is not None
        self._scope = reached or scope
        self._records = Capability.RECORDS in store.capabilities
        self._name = self._scope.path if pseudonym is None else check_name(pseudonym, "pseudonym")
        self._pseudonym = pseudonym
        self._archives = [str(url) for url in check_several(archives, "archives")]
        check_callable(rebuild, "rebuild")
        self._rebuild = rebuild
        self._names = check_several(names, "names")
        self._keep_audit_names = keep_audit_names
        self._unreached: list[Unreached] = []
        self._certificate = ErasureCertificate(
            id=new_id(),
            scope=self._name,
            store=next((one.origin.id for one in layers_of(store) if isinstance(one, Layer) and one.origin.id), ""),
            started=store.clock(),
            finished=store.clock(),
            **cast("Any", actor_of(store)),
        )

    async def count(self) -> ErasureCertificate:
        """Count what would be erased; nothing is changed."""
        if not self._reached:
            return self._finished({}, [], [], dry_run=True, id="")
        if (backend := _erasing(self._store)) is not None and not self._archives:
            return ErasureCertificate.from_dict(await backend.erase(self._scope, self._pseudonym, dry_run=True))
        found = await streams_of(self._store, self._scope)
        derived = Derivations(self._scope)
        elsewhere = [
            (record, "rebuilt" if self._rebuild and derived.remaining(record) else "dropped")
            for record in await derived.find(self._inner, visible_root(self._store))
        ]
        archives: list[ErasedArchive] = []
        for url in self._archives:
            archive = await open_beside(self._store, url)
            try:
                archives.append(_archived(url, await streams_of(archive, self._scope)))
            finally:
                await archive.close()
        return self._finished(found, elsewhere, archives, dry_run=True, id="")

    async def run(self) -> ErasureCertificate:
        """Erase; return the signed certificate. Raises HeldError, before anything is changed, under a legal hold."""
        store, scope = self._store, self._scope
        require(store, "erase")
        if not self._reached:
            return self._finished({}, [], [])
        await self._check_holds()
        interrupted = await self._begin()
        elsewhere = await self._erase_derived()
        backend, served = _erasing(store), None
        if backend is not None:
            served = ErasureCertificate.from_dict(await backend.erase(scope, self._pseudonym, dry_run=False))
        erased = await self._purge()
        archives = [await self._erase_archive(url) for url in self._archives]
        forget_known(scope)
        done = await scrub(store, scope)
        # What others wrote until a data key was destroyed cannot be read, and is erased as well.
        for at, counts in (await self._purge()).items():
            erased.setdefault(at, Counter()).update(counts)
        await self._end()
        done.add("entries of the audit log that had names", await self._drop_audit_names())
        self._unreached += (await scrub(store, scope)).unreached
        verified = await self._verify()
        self._name_outside()
        if served is not None and not archives and not elsewhere:
            return served  # the server has looked where this process cannot
        made = self._finished(erased, elsewhere, archives, done, interrupted=interrupted, verified=verified)
        return await signed(store, made)

    async def _check_holds(self) -> None:
        for layer in layers_of(self._store):
            if isinstance(layer, HoldLayer):
                for hold in await layer.active(fresh=True):
                    if hold.touches(self._scope):
                        raise hold.seen_from(visible_root(self._store)).error(f"scope {self._scope.path!r}")

    async def _begin(self) -> list[InterruptedErasure]:
        """Record that an erasure has begun; return those that began earlier and did not finish."""
        if not self._records:
            return []
        scan = Scan(scope=self._scope, kinds=(ERASURE_KIND,), below=True)
        before = [_interrupted(record) async for record in scan_all(self._unlogged, scan)]
        found = await streams_of(self._store, self._scope)
        if not found and not before:
            return []
        data = {"records": _total(found), "actor": self._certificate.actor}
        mark = Record(self._scope, ERASURE_KIND, self._certificate.id, data=data, created=self._certificate.started)
        await self._unlogged.write(Write((Put(mark),)))
        return before

    async def _end(self) -> None:
        """Remove the records of this and of interrupted erasures."""
        marks = all_streams(self._unlogged, StreamScan(scope=self._scope, kinds=(ERASURE_KIND,), empty=True))
        for stream in [stream async for stream in marks]:
            await purge(self._unlogged, stream.scope, {ERASURE_KIND, VERSION})

    async def _purge(self) -> Streams:
        """Purge every scope, and again what others have written meanwhile; return how many records were erased."""
        erased: Streams = {}
        for number in range(ROUNDS):
            found = await streams_of(self._store, self._scope, empty=True)
            if not found:
                break
            for scope, kinds in found.items():
                # Kinds that were not listed may have been written since, together with some that were.
                more = () if not self._records else ERASED if number else (VERSION,)
                erased.setdefault(scope, Counter()).update(await purge(self._store, scope, {*kinds, *more}))
        return {scope: +counts for scope, counts in erased.items()}

    async def _erase_derived(self) -> list[tuple[Record, str]]:
        """Drop or rebuild what was derived from the scope and stands elsewhere; return it, and what was done."""
        derivations, done = Derivations(self._scope), list[tuple[Record, str]]()
        for record in await derivations.find(self._inner, visible_root(self._store)):
            try:
                op, did = await self._replacement(record, derivations)
                await self._inner.write(Write((op,)))
            except (ConflictError, HeldError) as error:
                until = "until the hold is released" if isinstance(error, HeldError) else "until it is erased again"
                what = f"{record.kind} {record.key!r} of {record.scope.path!r}, which was derived from the erased data"
                self._unreached.append(Unreached(what=f"{what}: {error}", until=until, finish="erase again"))
            else:
                done.append((record, did))
        if self._records:
            await self._drop_versions(derivations)
        return done

    async def _drop_versions(self, derivations: Derivations) -> None:
        """Delete the earlier versions, in other scopes, of what was derived from the scope."""
        kept = next((one for one in layers_of(self._inner) if isinstance(one, HistoryLayer)), None)
        store = self._inner if kept is None else kept._below
        scan = Scan(scope=visible_root(self._store), kinds=(VERSION,), below=True)
        async for version in scan_all(store, scan):
            if not self._scope.holds(version.scope) and derivations.concerns_version(version):
                await store.write(Write((Delete(version.ref),)))

    async def _replacement(self, record: Record, derivations: Derivations) -> tuple[Op, str]:
        """Return the operation that drops a derived record, or rebuilds it from the sources that stay."""
        left = derivations.remaining(record) if self._rebuild is not None and record.kind != FACT else []
        sources = [found for found in await self._inner.read(left) if found is not None and found.text]
        if self._rebuild is None or not sources:
            return Delete(record.ref, record.version), "dropped"
        messages = [decode(one) if one.kind in (MESSAGE, ARCHIVED) else Message("user", one.text) for one in sources]
        text = await call(self._rebuild, messages)
        meta = without_sources(record.meta, derivations.found, self._scope)
        return Put(replace(record, text=text, meta=meta, derived={}), record.version), "rebuilt"

    async def _erase_archive(self, url: str) -> ErasedArchive:
        archive = await open_beside(self._store, url)
        try:
            inner = Erasure(archive, self._scope)
            erased = await inner._purge()
            self._unreached += (await scrub(archive, self._scope)).unreached
            return _archived(url, erased)
        finally:
            await archive.close()

    async def _verify(self) -> list[Verification]:
        """Search the store again, in every layer, for what should be gone."""
        places = {"memory": self._store, "back-end": _backend(self._store)}
        checks = []
        for place, store in places.items():
            left = await streams_of(store, self._scope, empty=True)
            checks.append(Verification(place=place, time=self._store.clock(), records=sum(map(len, left.values()))))
        if any(check.records for check in checks):
            what = "records that others wrote during the erasure"
            self._unreached.append(Unreached(what=what, until="until they are erased", finish="erase again"))
        return checks

    async def _drop_audit_names(self) -> int:
        """Remove names from the audit log, which needs the right "admin"; return how many entries had some."""
        if self._keep_audit_names:
            return 0
        needs = None
        if audit_layer(self._store) is None:
            logged = StreamScan(scope=self._scope, kinds=(AUDIT_KIND,))
            needs = "a memory that is opened with audit" if (await self._unlogged.streams(logged)).items else ""
        elif isinstance(self._store, RestrictedLayer) and "admin" not in self._store.rights:
            needs = "the right 'admin'"
        if needs:
            left = Unreached(what="names in the audit log", until="until they are erased", finish=f"erase with {needs}")
            self._unreached.append(left)
        if needs is not None:
            return 0
        dropped = await drop_names(self._inner, self._scope, self._names, certificate=self._certificate.id)
        for one in dropped.damaged:
            where = "" if self._pseudonym is not None else f" of {one.scope.path or 'the register of logs'}"
            what = f"entry {one.number}{where} in the audit log, which cannot be read"
            finish = "mend or remove the entry, then erase again"
            self._unreached.append(Unreached(what=what, until="until it is removed", finish=finish))
        return dropped.entries

    def _name_outside(self) -> None:
        """Name what a restricted memory cannot look at."""
        if (root := visible_root(self._store)).path:
            what = f"records outside of {self._name if self._pseudonym is not None else root.path} that were derived"
            finish = "erase with a memory that is not restricted"
            self._unreached.append(Unreached(what=what, until="until they are erased", finish=finish))

    def _finished(
        self,
        erased: Streams,
        elsewhere: list[tuple[Record, str]],
        archives: list[ErasedArchive],
        done: Scrubbed | None = None,
        **more: Any,
    ) -> ErasureCertificate:
        counts: Counter[tuple[str, str]] = Counter()
        for scope, kinds in erased.items():
            for kind, count in kinds.items():
                counts[scope.path if self._pseudonym is None else self._name, kind] += count
        derived: dict[tuple[str, str], Counter[str]] = {}
        for record, did in elsewhere:
            derived.setdefault((record.scope.path, record.kind), Counter())[did] += 1
        return replace(
            self._certificate,
            finished=self._store.clock(),
            records=_total(erased),
            erased=[ErasedStream(scope=scope, kind=kind, records=n) for (scope, kind), n in sorted(counts.items())],
            derived=[
                ErasedDerivation(scope=scope, kind=kind, dropped=did["dropped"], rebuilt=did["rebuilt"])
                for (scope, kind), did in sorted(derived.items())
            ],
            archives=archives,
            removed={} if done is None else done.removed,
            unreached=self._unreached,
            **more,
        )


async def streams_of(store: Store, scope: ScopePath, *, empty: bool = False) -> Streams:
    """Return how many records of each kind there are, by scope, without those that are kept."""
    found: Streams = {}
    for kinds in ((), UNLISTED):
        async for stream in all_streams(store, StreamScan(scope=scope, kinds=kinds, empty=empty)):
            if stream.kind not in (*KEPT, ENCRYPTION_KIND, ERASURE_KIND):
                found.setdefault(stream.scope, Counter())[stream.kind] = stream.count
    return found


async def purge(store: Store, scope: ScopePath, kinds: set[str], *, expired_only: bool = False) -> Counter[str]:
    """Delete streams of a scope, or what has expired in them, all or none; return how many records of each.

    With VERSION among them, no earlier versions of the records are kept.
    """
    ops = tuple(Purge(scope, kind, (), expired_only, drop=not expired_only) for kind in sorted(kinds))
    outcomes = await store.write(Write(ops))
    return Counter({op.kind: outcome.count for op, outcome in zip(ops, outcomes, strict=True)})


async def compact(store: Store, scope: ScopePath) -> int:
    """Delete what has expired in a scope and below; return how many records."""
    found = await streams_of(store, scope, empty=True)
    return _total({at: await purge(store, at, set(kinds), expired_only=True) for at, kinds in found.items()})


def _erasing(store: Store) -> Erasing | None:
    """Return the back-end if it erases by itself, for a caller who may use all of it."""
    backend = _backend(store)
    return backend if isinstance(backend, Erasing) and not isinstance(store, RestrictedLayer) else None


def _backend(store: Store) -> Store:
    *_, backend = layers_of(store)
    return backend


def _total(streams: Streams) -> int:
    return sum(n for kinds in streams.values() for kind, n in kinds.items() if kind not in INTERNAL)


def _archived(url: str, streams: Streams) -> ErasedArchive:
    return ErasedArchive(store=str(StoreURL.parse(url)), records=_total(streams))


def _interrupted(record: Record) -> InterruptedErasure:
    data: Any = record.data
    started: datetime | None = record.created
    assert started is not None
    return InterruptedErasure(id=record.key, started=started, records=data.get("records", 0))
