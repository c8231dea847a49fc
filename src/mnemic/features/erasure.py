"""Erases a scope and everything below it, with what was derived from it elsewhere; verifies that nothing is left.

All streams of one scope are purged in one write, so what another process writes meanwhile is erased or kept as a whole.
While it runs, a record in the scope says so: after an interruption, the next erasure finds it and finishes the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Protocol, cast, runtime_checkable

from msgspec.structs import replace

from ..checks import check_callable, check_name, check_several, new_id
from ..errors import HeldError
from ..layers.audit import AuditLayer, actor_of
from ..layers.audit_names import NAMELESS, drop_names
from ..layers.auxiliary_stores import open_auxiliary
from ..layers.hold import HoldLayer
from ..layers.index import CACHED_INDEXES
from ..layers.layer import ConfiningLayer, Layer, backend_of, find_layer, layers_of
from ..layers.redact import RedactLayer
from ..layers.restricted import RestrictedLayer, confined, require, unrestricted, visible_root
from ..records import AUDIT_KIND, ERASURE_KIND, VERSION, Record, ScopePath
from ..store.protocol import Capability, Scrubbed, Store, Unreached, all_streams, destroy, scan_all, scrub
from ..store.query import Delete, Put, Scan, StreamScan, Write
from ..store.registry import StoreURL
from .certificate import (
    ErasedArchive,
    ErasedDerivation,
    ErasedStream,
    ErasureCertificate,
    InterruptedErasure,
    Verification,
    check_signing,
    signed,
)
from .erasure_derived import DerivedErasure, Rebuild
from .purging import ERASED, Streams, purge, streams_of, total
from .session_settings import forget_known

NAMED_ENTRIES = "entries of the audit log that had names"
ROUNDS = 5
"""How often what others write meanwhile is erased as well; what they write after that stays."""


@runtime_checkable
class ErasingServer(Protocol):
    """A back-end that erases by itself: a server, which also has caches, layers and keys of its own."""

    async def erase(self, scope: ScopePath, **options: Any) -> Any:
        """Erase a scope with the options of `AsyncScope.erase`; return the certificate as JSON."""
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
        audited = find_layer(store, AuditLayer)
        self._unlogged = ConfiningLayer(
            unrestricted(store) if audited is None else audited._below, lambda: confined(store)
        )
        """The store for the record of this erasure, which the audit log does not name."""
        reached = store.reach(scope) if isinstance(store, RestrictedLayer) else scope
        self._reached = reached is not None
        self._scope = reached or scope
        self._records = Capability.RECORDS in store.capabilities
        self._name = self._scope.path if pseudonym is None else check_name(pseudonym, "pseudonym")
        self._pseudonym = pseudonym
        self._archives = [str(url) for url in check_several(archives, "archives")]
        check_callable(rebuild, "rebuild")
        self._rebuild = rebuild
        self._derived = DerivedErasure(self._inner, visible_root(store), self._scope, rebuild)
        self._names = check_several(names, "names")
        self._keep_audit_names = keep_audit_names
        self._unreached: list[Unreached] = []
        self._mark: Record | None = None
        """The record of this erasure, while it runs."""
        self._certificate = ErasureCertificate(
            id=new_id(),
            scope=self._name,
            store="" if isinstance(store, RestrictedLayer) else _url(store),
            started=store.clock(),
            finished=store.clock(),
            **cast("Any", actor_of(store)),
        )

    async def count(self) -> ErasureCertificate:
        """Count what would be erased; nothing is changed. Raises HeldError under a legal hold."""
        if not self._reached:
            return self._finished({}, [], [], dry_run=True, id="")
        if (backend := _erasing(self._store)) is not None and not self._archives:
            return await self._ask(backend, dry_run=True)
        await self._check_holds()
        async with AsyncExitStack() as stack:
            opened = await self._open_archives(stack)
            archives = [_archived(url, await streams_of(archive, self._scope)) for url, archive in opened.items()]
        found = await streams_of(self._store, self._scope)
        named = Scrubbed()
        named.add(NAMED_ENTRIES, await self._named_entries())
        interrupted = await self._interrupted()
        return self._finished(
            found, await self._derived.count(), archives, named, interrupted=interrupted, dry_run=True, id=""
        )

    async def run(self) -> ErasureCertificate:
        """Erase; return the signed certificate.

        Raises, before anything is changed, HeldError under a legal hold, and for an archive that cannot be opened, or a
        signing key that cannot be read.
        """
        require(self._store, "erase")
        if not self._reached:
            return self._finished({}, [], [])
        await check_signing(self._store)
        async with AsyncExitStack() as stack:
            archives = await self._open_archives(stack)
            if (backend := _erasing(self._store)) is not None:
                return await self._run_there(backend, archives)
            return await self._run_here(archives)

    async def _run_here(self, opened: dict[str, Store]) -> ErasureCertificate:
        store, scope = self._store, self._scope
        await self._check_holds()
        interrupted = await self._begin()
        elsewhere = await self._derived.run()
        erased = await self._purge()
        archives = [await self._erase_archive(url, archive) for url, archive in opened.items()]
        forget_known(scope)
        done = await destroy(store, scope)
        # What others wrote until a data key was destroyed cannot be read, and is erased as well.
        for at, counts in (await self._purge()).items():
            erased.setdefault(at, Counter()).update(counts)
        if self._mark is not None:
            await self._unlogged.write(Write((Put(self._mark),)))  # again, since it goes with its data key
        done.add(NAMED_ENTRIES, await self._drop_audit_names())
        await self._end()
        self._unreached += [*done.unreached, *(await scrub(store)).unreached]
        verified = await self._verify()
        self._name_outside()
        made = self._finished(erased, elsewhere, archives, done, interrupted=interrupted, verified=verified)
        return await signed(store, made)

    async def _run_there(self, backend: ErasingServer, opened: dict[str, Store]) -> ErasureCertificate:
        """Have a server erase; it looks where this process cannot, and this one in what the server cannot read."""
        elsewhere: list[tuple[Record, str]] = []
        if self._rebuild is not None:
            await self._check_holds()
            elsewhere = await self._derived.run()
        there = await self._ask(backend, dry_run=False)
        if self._rebuild is None:
            elsewhere = await self._derived.run()
        archives = [await self._erase_archive(url, archive) for url, archive in opened.items()]
        forget_known(self._scope)
        done = await destroy(self._store, self._scope)
        self._unreached += [*done.unreached, *(await scrub(self._store)).unreached]
        here = self._finished({}, elsewhere, archives, done)
        vault = await self._verify_vault()
        unreached = [one for one in here.unreached if one not in there.unreached]
        if not (archives or here.derived or unreached or vault or done.removed.keys() - {CACHED_INDEXES}):
            return there  # with the signature of the server
        made = replace(
            there,
            finished=here.finished,
            derived=there.derived + here.derived,
            archives=here.archives,
            removed=dict(Counter(there.removed) + Counter(here.removed)),
            verified=there.verified + vault,
            unreached=there.unreached + unreached,
            signature=None,
        )
        return await signed(self._store, made)

    async def _open_archives(self, stack: AsyncExitStack) -> dict[str, Store]:
        opened: dict[str, Store] = {}
        for url in self._archives:
            opened[url] = await open_auxiliary(self._store, url, existing=True)
            stack.push_async_callback(opened[url].close)
        return opened

    async def _ask(self, backend: ErasingServer, *, dry_run: bool) -> ErasureCertificate:
        """Have a server erase, or count."""
        options = {"pseudonym": self._pseudonym, "names": self._names, "keep_audit_names": self._keep_audit_names}
        return ErasureCertificate.from_dict(await backend.erase(self._scope, dry_run=dry_run, **options))

    async def _check_holds(self) -> None:
        if isinstance(backend := backend_of(self._store), ErasingServer):
            await self._ask(backend, dry_run=True)  # a server has the holds, and raises under one
        for layer in layers_of(self._store):
            if isinstance(layer, HoldLayer):
                with confined(self._store):
                    await layer.refuse_held(self._scope)

    async def _interrupted(self) -> list[InterruptedErasure]:
        """Return the erasures that began earlier and did not finish."""
        if not self._records:
            return []
        scan = Scan(scope=self._scope, kinds=(ERASURE_KIND,), below=True)
        # From the back-end, since the data key of the records may be destroyed already.
        return [_interrupted(record) async for record in scan_all(backend_of(self._store), scan)]

    async def _begin(self) -> list[InterruptedErasure]:
        """Record that an erasure has begun; return those that began earlier and did not finish.

        A writer of a hold looks for that record after the hold is stored, as this looks for holds after the record is:
        of an erasure and a hold that begin at once, at least one is refused.
        """
        before = await self._interrupted()
        found = await streams_of(self._store, self._scope)
        if self._records and (found or before):
            self._mark = Record(
                self._scope, ERASURE_KIND, self._certificate.id, weight=total(found), created=self._certificate.started
            )
            await self._unlogged.write(Write((Put(self._mark),)))
            try:
                await self._check_holds()
            except HeldError:
                await self._unlogged.write(Write((Delete(self._mark.ref),)))
                raise
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

    async def _erase_archive(self, url: str, archive: Store) -> ErasedArchive:
        erased = await Erasure(archive, self._scope)._purge()
        self._unreached += (await destroy(archive, self._scope)).unreached
        self._unreached += (await scrub(archive)).unreached
        return _archived(url, erased)

    async def _verify(self) -> list[Verification]:
        """Search the store again, in every layer, for what should be gone."""
        places = {"memory": self._store, "back-end": backend_of(self._store)}
        return [await self._verify_in(place, store) for place, store in places.items()] + await self._verify_vault()

    async def _verify_vault(self) -> list[Verification]:
        """Search the vault of redaction, if that is in another store."""
        layer = find_layer(self._store, RedactLayer)
        if layer is None or layer.separate is None:
            return []
        return [await self._verify_in("vault", layer.separate)]

    async def _verify_in(self, place: str, store: Store) -> Verification:
        left = await streams_of(store, self._scope, empty=True)
        what = "records that others wrote during the erasure"
        found = Unreached(what=what, until="until they are erased", finish="erase again")
        if left and found not in self._unreached:
            self._unreached.append(found)
        records = sum(counts.total() for counts in left.values())
        return Verification(place=place, time=self._store.clock(), records=records)

    async def _named_entries(self) -> int:
        """Return how many entries of the audit log are in logs that have the name of the scope."""
        layer = find_layer(self._store, AuditLayer)
        if layer is None or self._keep_audit_names:
            return 0
        logs = all_streams(layer.chain, StreamScan(scope=self._scope, kinds=(AUDIT_KIND,)))
        return sum([log.count async for log in logs if not log.scope.name.startswith(NAMELESS)])

    async def _drop_audit_names(self) -> int:
        """Remove names from the audit log, which needs the right "admin"; return how many entries had some."""
        if self._keep_audit_names:
            return 0
        if (lacks := await self._lacks_for_names()) is not None:
            left = Unreached(what="names in the audit log", until="until they are erased", finish=f"erase with {lacks}")
            self._unreached.append(left)
            return 0
        dropped = await drop_names(
            self._inner, self._scope, self._names, visible_root(self._store), certificate=self._certificate.id
        )
        for one in dropped.damaged:
            where = "" if self._pseudonym is not None else f" of {one.scope.path or 'the register of logs'}"
            what = f"entry {one.number}{where} in the audit log, which cannot be read"
            finish = "mend or remove the entry, then erase again"
            self._unreached.append(Unreached(what=what, until="until it is removed", finish=finish))
        for scope in dropped.headless:
            where = "the scope" if self._pseudonym is not None else scope.path
            what = f"the name of {where} in its audit log, whose head is missing"
            finish = "remove the log, then erase again"
            self._unreached.append(Unreached(what=what, until="until it is removed", finish=finish))
        return dropped.entries

    async def _lacks_for_names(self) -> str | None:
        """Return the right or option that this memory lacks to remove the names in the audit log."""
        if find_layer(self._store, AuditLayer) is None:
            logged = await self._unlogged.streams(StreamScan(scope=self._scope, kinds=(AUDIT_KIND,)))
            return "a memory that is opened with audit" if logged.items else None
        restricted = isinstance(self._store, RestrictedLayer) and "admin" not in self._store.rights
        return "the right 'admin'" if restricted else None

    def _name_outside(self) -> None:
        """Name what a restricted memory cannot look at."""
        if visible_root(self._store).path:
            what = "records derived from the erased data that a restricted memory does not see"
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
            records=total(erased),
            erased=[ErasedStream(scope=scope, kind=kind, records=n) for (scope, kind), n in sorted(counts.items())],
            derived=[
                ErasedDerivation(scope=scope, kind=kind, dropped=did["dropped"], rebuilt=did["rebuilt"])
                for (scope, kind), did in sorted(derived.items())
            ],
            archives=archives,
            removed={} if done is None else done.removed,
            unreached=self._unreached + self._derived.unreached,
            **more,
        )


def _erasing(store: Store) -> ErasingServer | None:
    """Return the back-end if it erases by itself, for a caller who may use all of it."""
    backend = backend_of(store)
    return backend if isinstance(backend, ErasingServer) and not isinstance(store, RestrictedLayer) else None


def _url(store: Store) -> str:
    return next((one.origin.id for one in layers_of(store) if isinstance(one, Layer) and one.origin.id), "")


def _archived(url: str, streams: Streams) -> ErasedArchive:
    return ErasedArchive(store=str(StoreURL.parse(url)), records=total(streams))


def _interrupted(record: Record) -> InterruptedErasure:
    started: datetime | None = record.created
    assert started is not None
    return InterruptedErasure(id=record.key, started=started, records=record.weight)
