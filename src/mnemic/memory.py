"""A memory: all scopes at one URL, how it is opened, and the layers over the store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from copy import copy
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Literal, TypeAlias, TypedDict

from msgspec.structs import replace

from .checks import check_callable, check_count, check_names, check_several, check_time, shown
from .errors import AccessDeniedError, InvalidValueError, NotFoundError
from .features.certificate import ErasureCertificate, finish
from .features.erasure import ErasingServer
from .features.export import Exported, FileOrPath
from .features.holds import release_ended
from .features.listing import Stats, list_scopes, scope_stats
from .features.purging import compact
from .features.record_import import Imported
from .features.redaction_scan import RedactionScan, Scanned
from .layers.audit import AuditLayer
from .layers.audit_chain import ChainLayer, has_own_log
from .layers.audit_entry import AuditEntry, AuditPage
from .layers.audit_settings import Acting, Audit, Auditing, audit_of
from .layers.audit_verify import AuditVerification, AuditVerifier, make_checkpoint, read_checkpoint
from .layers.auxiliary_stores import open_auxiliary, open_encrypted
from .layers.encryption import EncryptLayer, check_plain
from .layers.history import HistoryLayer, check_keeping, kept_time
from .layers.hold import HoldLayer
from .layers.index import IndexLayer
from .layers.layer import whole_store
from .layers.master_key import EncryptionKeys
from .layers.redact import RedactLayer, reveal
from .layers.restricted import RIGHTS, RestrictedLayer, Right, confined, require, require_whole, visible_root
from .layers.server_search import ServerSearchLayer
from .layers.store_signing import StoreSigning
from .models.embedder import AUTO, Embedder, find_embedder
from .recall.index_entry import INDEX_BYTES
from .recall.metrics import Metrics
from .records import Ref, ScopePath
from .redaction.config import Redacting, Redaction, redaction_of
from .scope import AsyncScope
from .signing import SigningKey, SigningKeys, signing_keys
from .store import registry
from .store.availability import optional
from .store.protocol import Capability, Companion, Indexing, SearchableStore, Store
from .store.registry import INDEX_GROUP, StoreURL
from .telemetry.calls import Origin, observed
from .tokens import DEFAULT_ENCODING, TokenCounter, counter

Tokens: TypeAlias = str | TokenCounter | Callable[[str], int]
"""A token counter: an encoding's name, a counter, or a function from a text to a number."""


class OpenOptions(TypedDict, total=False):
    """The options of `open` and `open_async`, for what opens a memory on behalf of a caller and passes them on."""

    tokens: Tokens
    embedder: Embedder | str | None
    index: Indexing
    encryption_key: EncryptionKeys | None
    audit: Auditing
    signing_key: SigningKeys | None
    redact: Redacting
    history: timedelta | bool | Literal["recorded"] | None
    index_bytes: int
    clock: Callable[[], datetime] | None


SERVERS_AUDIT = (
    "the audit log of a store on a server is kept by the server: open the memory without audit, or with the URL of "
    "another store for the log"
)
SERVERS_HISTORY = (
    "the history of a store on a server is kept by the server: open the memory without history, and set history there"
)
PLAIN_INDEX = (
    "a companion index cannot be used with an encrypted store, since it would hold plain text: pass index or "
    "encryption_key, not both"
)


@observed
class AsyncMemory:
    """Everything stored at one URL."""

    url: str

    def __init__(
        self,
        store: Store,
        tokens: Tokens = DEFAULT_ENCODING,
        url: str = "",
        embedder: Embedder | str | None = AUTO,
        companion: Companion | None = None,
        encryption_key: EncryptionKeys | EncryptLayer | None = None,
        audit: Audit | None = None,
        index_bytes: int = INDEX_BYTES,
        signing_key: SigningKeys | None = None,
        redact: Redaction | None = None,
        history: timedelta | None = None,
    ) -> None:
        """Put the layers over a store: audit, holds, redaction, history, index and encryption, outermost first.

        The audit log therefore records what callers do, not what layers do for them, and is encrypted with the
        rest. What is redacted reaches nothing below. The index sees plain text, the back-end only ciphertext.
        `open_async` opens a store by its URL. Raises InvalidValueError for a companion
        index with an encrypted store.
        """
        if encryption_key is not None and companion is not None:
            raise InvalidValueError(PLAIN_INDEX)
        trail = None if audit is None else audit.store
        if audit is not None and trail is None and Capability.SEARCH in store.capabilities:
            raise InvalidValueError(SERVERS_AUDIT)
        if isinstance(trail, str):
            raise InvalidValueError("a URL of an audit trail is opened by open_async, not by AsyncMemory")
        self.url = url
        self._tokens = counter(tokens)
        self._backend = store
        self._encryption: EncryptLayer | None = None
        if encryption_key is not None:
            given = encryption_key
            self._encryption = given if isinstance(given, EncryptLayer) else EncryptLayer(store, given, url)
        below: Store = self._encryption or store
        # A server keeps a key of its own, and does not store others.
        keeps_keys = Capability.RECORDS in store.capabilities and Capability.SEARCH not in store.capabilities
        self._signing = signing = StoreSigning(below if trail is None or keeps_keys else trail, signing_key)
        chain = None if audit is None else ChainLayer(below if trail is None else trail, signing)
        if chain is not None and trail is None:
            below = chain
        own = embedder != AUTO or companion is not None or Capability.SEARCH not in below.capabilities
        self._index = IndexLayer(below, embedder, companion, index_bytes) if own else ServerSearchLayer(below)
        kept: HistoryLayer | IndexLayer | ServerSearchLayer = self._index
        if history is not None:
            if Capability.SEARCH in store.capabilities:
                raise InvalidValueError(SERVERS_HISTORY)
            if Capability.RECORDS not in store.capabilities:
                raise InvalidValueError(
                    f"{url or 'this store'} stores only some kinds of records, and keeps no history"
                )
            kept = HistoryLayer(self._index, history)
        self._redact = None if redact is None else RedactLayer(kept, redact)
        redacted = self._redact or kept
        # The holds of a store on a server are kept, and obeyed, there.
        held = redacted if Capability.SEARCH in store.capabilities else HoldLayer(redacted)
        self._audit = None if chain is None else AuditLayer(held, chain, audit, trail)
        outermost = self._audit or held
        outermost.origin = Origin(url)
        outermost.signing = signing
        self._store: SearchableStore = outermost

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url or 'a store'}>"

    def scope(self, *segments: ScopePath | str) -> AsyncScope:
        """Return a scope; each string is one segment of its path.

        Raises InvalidValueError for a segment that is empty or too long, or has '/' or control characters.
        """
        return AsyncScope(self._store, ScopePath.of(*segments), self._tokens)

    def restricted(
        self, scope: ScopePath | str, rights: Sequence[Right] | Right = ("read", "write", "erase")
    ) -> AsyncMemory:
        """Return a memory that is confined to a scope, such as "acme/alice", and those below it, and to some rights.

        Whatever is elsewhere looks as if it did not exist, and writing there raises AccessDeniedError, as does
        anything that the rights do not include, or that concerns the whole store, such as `reembed`. "read" is for
        reading; "write" for adding, changing and deleting single records; "erase" for erasing scopes, clearing and
        deleting sessions, and forgetting by filter; "admin" for the audit log. Closing it leaves the store open.
        Raises InvalidValueError for an unknown right or an empty scope, AccessDeniedError for more than this memory may
        do itself.
        """
        if isinstance(scope, str) and not scope:
            raise InvalidValueError("restricted needs a scope, not an empty text; ScopePath() is the whole store")
        path = scope if isinstance(scope, ScopePath) else ScopePath(scope)
        layer = RestrictedLayer(self._store, path, check_names(rights, "right", RIGHTS))  # type: ignore[arg-type]
        if isinstance(self._store, RestrictedLayer) and not self._store.includes(layer):
            raise AccessDeniedError(
                "a restricted memory can only be restricted further: a scope and rights within its own"
            )
        view = copy(self)
        view._store = layer
        return view

    async def ping(self) -> timedelta:
        """Check that the store answers; return the round-trip time.

        Raises StoreUnavailableError, or another StoreError, if it does not.
        """
        began = monotonic()
        await self._backend.read([Ref(ScopePath(), "ping", "ping")])
        return timedelta(seconds=monotonic() - began)

    async def stats(self) -> Stats:
        """Count what is stored: sessions, messages, tokens, memories, notes and facts."""
        return await scope_stats(self._store, visible_root(self._store))

    async def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List all scopes that are not empty, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return await list_scopes(self._store, visible_root(self._store), limit)

    async def export_to(
        self, path: FileOrPath, *, format: str | None = None, progress: Callable[[int, int], object] | None = None
    ) -> Exported:
        """Export everything to a file or folder, as a scope's `export_to` does."""
        from .transfer.exporting import export_any

        return await export_any(self._store, visible_root(self._store), path, format, progress)

    async def import_from(
        self,
        path: FileOrPath,
        *,
        format: str | None = None,
        overwrite: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Imported:
        """Import a file, into its original scopes or else into the root, as a scope's `import_from` does."""
        from .transfer.importing import import_any

        return await import_any(
            self._store,
            None,
            self._tokens,
            path,
            format=format,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )

    async def compact(self) -> int:
        """Delete expired records from the store, which reads already hide; return how many."""
        await release_ended(self._store)
        return await compact(self._store, visible_root(self._store))

    async def finish_erasure(self, certificate: ErasureCertificate) -> ErasureCertificate:
        """Remove what an erasure could not reach at once, as far as possible; return a new certificate.

        It may take long, and lock the store: on PostgreSQL, tables are rewritten. Raises InvalidValueError for a
        certificate of another store or of a dry run, and for a store on a server; SignatureError for a certificate that
        was changed or not signed here.
        """
        require_whole(self._store, "finish_erasure")
        if not isinstance(certificate, ErasureCertificate):
            raise InvalidValueError(f"finish_erasure takes the certificate of an erasure, not {shown(certificate)}")
        if isinstance(self._backend, ErasingServer):
            raise InvalidValueError("the server has erased this: run mnemic erase --finish there, on its store")
        # Those of restricted memories do not name the store.
        if certificate.store not in ("", Origin(self.url).id) or certificate.dry_run:
            raise InvalidValueError(f"the certificate is of an erasure in {certificate.store!r}, or of a dry run")
        return await finish(self._store, certificate)

    async def reembed(self, embedder: Embedder | str, *, progress: Callable[[int, int], object] | None = None) -> int:
        """Recompute all vectors with another embedder, then switch to it; return the number of texts.

        Recall uses the old vectors until all new ones exist. If interrupted, it resumes when called again.
        `progress` is called with the number of records done and the total. Other processes must then reopen the
        store: their calls raise EmbedderError. Raises EmbedderError if the embedder fails.
        """
        require_whole(self._store, "reembed")
        return await self._index.reembed(embedder, progress)

    async def warm(self, *segments: ScopePath | str) -> int:
        """Compute and load the index of a scope, so that the first recall is fast.

        Returns the number of searchable texts.
        """
        scope = self._reach(ScopePath.of(*segments), "read")
        with confined(self._store):
            return 0 if scope is None else await self._index.warm(scope)

    async def reindex(self, *, progress: Callable[[int, int], object] | None = None) -> int:
        """Rebuild the companion index from the records; return the number of texts in it.

        `progress` is called with the number of records done and the total. Raises InvalidValueError if the memory
        was opened without one.
        """
        require_whole(self._store, "reindex")
        return await self._index.reindex(progress)

    async def rotate(
        self,
        *,
        archives: Sequence[str] = (),
        data_keys: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Wrap all data keys with the first key, so that the others are no longer needed; return how many changed.

        No record is written. With `data_keys`, every record of a subject is also encrypted again with a new data key,
        and the number of these records is returned; what is encrypted with keys of the store's own (audit log, API
        keys, holds, signing keys) stays as it is. Covers the store, the audit log and the vault that this memory was
        opened with if they have their own URLs, and the `archives`: URLs of archives that `forget` filled and of
        encrypted copies. Others are not known here, and need the old key until they are rotated. Other processes may
        read and write meanwhile. If interrupted, it resumes when called again. `progress` is called, for each store,
        with the number of keys, or records, done and the total. Raises InvalidValueError if the memory was opened
        without a key, NotFoundError for an empty archive.
        """
        require_whole(self._store, "rotate")
        if self._encryption is None:
            raise InvalidValueError("rotate needs a memory that was opened with encryption_key")
        urls = check_several(archives, "archives")
        changed = await self._encryption.rotate(progress, data_keys=data_keys)
        for layer in (self._audit, self._redact):
            if layer is not None and isinstance(layer.separate, EncryptLayer):
                changed += await layer.separate.rotate(progress, data_keys=data_keys)
        for url in urls:
            changed += await self._rotate_archive(url, progress, data_keys)
        return changed

    async def _rotate_archive(self, url: str, progress: Callable[[int, int], object] | None, data_keys: bool) -> int:
        archive = await open_auxiliary(self._store, url)
        try:
            assert isinstance(archive, EncryptLayer), "beside an encrypted store everything is encrypted"
            if not await archive.holds_anything():
                raise NotFoundError(f"there is nothing encrypted at {StoreURL.parse(url)}")
            return await archive.rotate(progress, data_keys=data_keys)
        finally:
            await archive.close()

    def acting(self, *, actor: str | None = None, session: str | None = None, address: str | None = None) -> Acting:
        """Return a context manager that sets the actor for the audit log.

        Omitted fields keep their outer values. It applies to the current thread or task, and to tasks that it
        starts. Raises InvalidValueError for an invalid name.
        """
        return Acting(actor, session, address)

    async def reveal(self, text: str) -> str:
        """Return a text with the values that redaction has replaced by hashes, as far as the vault has them.

        Raises InvalidValueError if the memory was opened without a vault, DecryptionError if the vault has another
        key, AccessDeniedError for a restricted memory without the right "admin".
        """
        return await reveal(self._store, visible_root(self._store), text)

    async def scan(
        self, *, mend: bool = False, redact: Redacting = None, progress: Callable[[int, int], object] | None = None
    ) -> Scanned:
        """Find personal data and secrets in all that is stored; with `mend`, redact them, as a scope's `scan` does."""
        return await RedactionScan(self._store, redact, mend=mend).run(visible_root(self._store), progress)

    @property
    def audited(self) -> bool:
        """Whether this memory has an audit log."""
        return self._audit is not None

    async def audit_trail(
        self,
        scope: ScopePath | str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
        session: str | None = None,
        address: str | None = None,
        operation: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        flag: str | None = None,
    ) -> list[AuditEntry]:
        """Return audit log entries of a scope, such as "acme/alice", and below, or of all, oldest first.

        `since` and `until` are inclusive. Raises InvalidValueError for an unknown kind or operation, and if the
        memory was opened without audit.
        """
        path = self._reach(_scope_of(scope), "admin")
        logged = self._logged()
        if path is None:
            return []
        return await logged.trail(
            path,
            since=since,
            until=until,
            actor=actor,
            session=session,
            address=address,
            operation=operation,
            kind=kind,
            key=key,
            flag=flag,
        )

    async def audit_page(
        self,
        scope: ScopePath | str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
        session: str | None = None,
        address: str | None = None,
        operation: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        flag: str | None = None,
    ) -> AuditPage:
        """Return the newest entries that `audit_trail` returns, at most `limit`, newest first, without reading all.

        The page's `cursor` requests the next one. Raises InvalidValueError as `audit_trail` does, and for an
        invalid cursor.
        """
        path = self._reach(_scope_of(scope), "admin")
        logged = self._logged()
        if path is None:
            return AuditPage(entries=[])
        return await logged.page(
            path,
            limit=limit,
            cursor=cursor,
            since=since,
            until=until,
            actor=actor,
            session=session,
            address=address,
            operation=operation,
            kind=kind,
            key=key,
            flag=flag,
        )

    async def audit_verify(
        self, scope: ScopePath | str | None = None, *, checkpoint: Mapping[str, Any] | None = None
    ) -> AuditVerification:
        """Check the audit log of a scope and below, or all of it: nothing removed, changed, reordered or inserted.

        A `checkpoint` that `audit_checkpoint` returned earlier, and that was kept elsewhere, also shows that no entries
        were cut off at the end. Raises InvalidValueError for something that is not a checkpoint, SignatureError for
        one that was changed, or is not signed although a signing key is given.
        """
        path = self._reach(_scope_of(scope), "admin")
        chain = self._logged().chain
        known = None if checkpoint is None else await read_checkpoint(chain, checkpoint)
        if path is None:
            return AuditVerification(chains=0, entries=0, problems=[], notes=[], keyed=chain.keys.given)
        return await AuditVerifier(chain, path, known).run()

    async def audit_checkpoint(self) -> dict[str, Any]:
        """Return the numbers and links of the last entries of the audit log as a JSON document, to be kept elsewhere.

        It is signed if `mnemic[encryption]` is installed, and has no names. The log itself notes them as well.
        """
        require_whole(self._store, "audit_checkpoint")
        return await make_checkpoint(self._logged().chain)

    async def signing_keys(self) -> list[SigningKey]:
        """Return the keys of the audit log and of certificates, the current one first; none before the first use."""
        require_whole(self._store, "signing_keys")
        return await self._signing.keys()

    def _logged(self) -> AuditLayer:
        if self._audit is None and Capability.SEARCH in self._backend.capabilities:
            raise InvalidValueError(
                "the audit log of a store on a server is read there: GET /api/v1/audit, with a key that has the right "
                "'admin', or the dashboard"
            )
        if self._audit is None:
            raise InvalidValueError("there is no audit log: open the memory with audit=…")
        return self._audit

    async def metrics(self) -> Metrics:
        """Return recall metrics since the memory was opened: hit ratio, uses, scores, drift and latency."""
        require(self._store, "admin")
        if visible_root(self._store).path:
            require_whole(self._store, "metrics")
        return await self._index.metrics()

    def _reach(self, scope: ScopePath, right: Right) -> ScopePath | None:
        """Return the part of a scope that this memory may use; None if it may use nothing of it."""
        require(self._store, right)
        return self._store.reach(scope) if isinstance(self._store, RestrictedLayer) else scope

    async def _prepare(self) -> None:
        with optional():
            if self._encryption is not None:
                await self._encryption.prepare()
            else:
                await check_plain(self._backend, self.url)
            await self._index.prepare()

    async def close(self) -> None:
        """Close files, connections and threads; later calls raise ClosedError."""
        await self._store.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Opening:
    """A memory being opened: `await` it, or use it with `async with`."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, AsyncMemory]]) -> None:
        self._opened = opened
        self._memory: AsyncMemory | None = None

    def __await__(self) -> Generator[Any, None, AsyncMemory]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncMemory:
        self._memory = await self._opened()
        return self._memory

    async def __aexit__(self, *error: object) -> None:
        if self._memory is not None:
            await self._memory.close()


def open_async(
    url: str,
    *,
    tokens: Tokens = DEFAULT_ENCODING,
    embedder: Embedder | str | None = AUTO,
    index: Indexing = None,
    encryption_key: EncryptionKeys | None = None,
    audit: Auditing = None,
    signing_key: SigningKeys | None = None,
    redact: Redacting = None,
    history: timedelta | bool | Literal["recorded"] | None = None,
    index_bytes: int = INDEX_BYTES,
    clock: Callable[[], datetime] | None = None,
) -> Opening:
    """Open the memory at a URL for use on an event loop: await it, or use it with `async with`.

    `tokens` selects the token counter, `embedder` the vectors: an Embedder or its name; "auto" is the one that
    made the store's vectors, None is keyword search only. `index` is the URL of a companion index for recall, or a
    LangChain vector store.
    `encryption_key` encrypts all content: 32 bytes, a Fernet key, "file:PATH", "env:NAME", a `MasterKey`, a list of
    these whose first encrypts, or an `Encryption`. `audit`
    logs all changes: True for the same store, another store or its URL, or an `Audit`.
    `signing_key` signs the audit log and certificates: a `SigningKey`, 32 bytes, "file:PATH", "env:NAME", or a list
    whose first key signs; None is a key that is kept in the store. `redact` replaces personal data and secrets
    before they are stored: True for all known types, or a `Redaction`. `history` is how long versions that are
    replaced or deleted are kept, for `history`, `restore` and `as_of` of a scope; with True, as long as before, or 30
    days in a store without a history; with "recorded", only if it has one. `index_bytes` bounds the memory of
    all cached indexes together, except for a single larger one. `clock` is a function that returns the current time,
    for tests that move it; by default the system's. Raises InvalidValueError, EmbedderError, MissingExtraError
    or a StoreError, such as DecryptionError, when awaited.
    """
    check_count(index_bytes, "index_bytes")
    check_callable(clock, "clock")
    check_keeping(history)

    async def opened() -> AsyncMemory:
        parsed, backend = registry.find(url)
        token_counter = counter(tokens)
        found = embedder if embedder == AUTO else find_embedder(embedder)
        if encryption_key is not None and index is not None:
            raise InvalidValueError(PLAIN_INDEX)
        logged = audit_of(audit)
        signing = None if signing_key is None else signing_keys(signing_key)
        redaction = redaction_of(redact)
        companion: Companion | None = None
        async with AsyncExitStack() as stack:
            if isinstance(index, str):
                index_url, maker = registry.found_in(INDEX_GROUP, index)
                companion = await maker.open(index_url)
                stack.push_async_callback(companion.close)
            store = await backend.open(parsed)
            stack.push_async_callback(store.close)
            if clock is not None:
                store.clock = lambda: check_time(clock(), "the clock's time")
            if index is not None and companion is None:
                from .indexes.langchain import open_vector_store

                companion = await open_vector_store(index, whole_store(store))
            encrypted: EncryptLayer | None = None
            if encryption_key is not None:
                encrypted = await open_encrypted(store, encryption_key, str(parsed))
                stack.push_async_callback(encrypted.close)
            if logged is not None and logged.existing and logged.store is None:
                logged = logged if await has_own_log(encrypted or store, signing is not None) else None
            if logged is not None and isinstance(logged.store, str):
                trail = await open_auxiliary(encrypted or store, logged.store)
                stack.push_async_callback(trail.close)
                logged = replace(logged, store=trail)
            vault = None if redaction is None else redaction.vault
            if redaction is not None and vault is not None and isinstance(vault.store, str):
                beside = await open_auxiliary(encrypted or store, vault.store)
                stack.push_async_callback(beside.close)
                redaction = replace(redaction, vault=replace(vault, store=beside))
            memory = AsyncMemory(
                store,
                token_counter,
                str(parsed),
                found,
                companion,
                encrypted,
                logged,
                index_bytes,
                signing,
                redaction,
                await kept_time(encrypted or store, history),
            )
            await memory._prepare()
            stack.pop_all()
        return memory

    return Opening(opened)


def _scope_of(scope: ScopePath | str | None) -> ScopePath:
    return scope if isinstance(scope, ScopePath) else ScopePath("" if scope is None else scope)


def logs_inline(audit: Auditing, redact: Redacting) -> bool:
    """Return whether an audit log, and the values behind hashes, can be written without an event loop."""
    logged, redaction = audit_of(audit), redaction_of(redact)
    vault = None if redaction is None else redaction.vault
    stores = [one.store for one in (logged, vault) if one is not None and one.store is not None]
    return all(isinstance(store, str) and registry.find(store)[1].inline for store in stores)
