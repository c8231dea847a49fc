"""The front door: from a memory to a scope, from a scope to what one does with it; and the layers below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import UNSET, UnsetType

from .checks import check_choice, check_several
from .errors import EmbedderError, InvalidValueError, NotFoundError
from .features.cleanup import Cleaned, Cleanup
from .features.context import Context, build_context
from .features.facts import AsyncFacts
from .features.fading import AsyncFading
from .features.jsonl import Exported, FileOrPath, Imported, export_file, import_file
from .features.kinds import AUDITED, MESSAGE
from .features.notes import AsyncNotes
from .features.overview import Stats, list_scopes, scope_stats
from .features.sessions import AsyncSession, SessionInfo
from .features.settings import GivenSettings, Overflow, Retention
from .layers.acting import OPERATIONS, Acting, Audit, AuditEntry
from .layers.lock import check_plain
from .layers.sealing import Keyring, Keys
from .models.embedder import Embedder
from .models.finding import AUTO
from .recall.entry import INDEX_BYTES
from .recall.meter import Metrics
from .records import AUDIT_KIND, EMBEDDER_KIND, ONCE_KIND, Hit, Ref, Role, ScopePath
from .store.nearest import Companion
from .store.protocol import Capability, Store, all_streams, scrub
from .store.query import Purge, StreamScan, Write
from .store.registry import StoreURL
from .tokens import DEFAULT_ENCODING, TokenCounter, counter

if TYPE_CHECKING:
    from .layers.audit import AuditLayer
    from .layers.encrypt import EncryptLayer
    from .layers.index import IndexLayer

Tokens: TypeAlias = str | TokenCounter | Callable[[str], int]
"""What counts tokens: an encoding's name, a counter, or a function from a text to a number."""


def indexed(
    store: Store,
    embedder: Embedder | str | None,
    companion: Companion | None = None,
    index_bytes: int = INDEX_BYTES,
) -> IndexLayer | None:
    """Return the layer that gives recall to a store; None if the store has it by itself."""
    if Capability.LEXICAL in store.capabilities:
        return None
    from .layers.index import IndexLayer

    return IndexLayer(store, embedder, companion, index_bytes)


def in_clear() -> InvalidValueError:
    """Return what is to be said of a companion index beside an encrypted store."""
    return InvalidValueError(
        "a companion index would hold in clear what is encrypted: give index or encryption_key, not both"
    )


class Layers:
    """The layers over a back-end. A call passes them in the order: audit, index, encryption, back-end.

    So the trail tells what callers did, not what layers do for them, and is encrypted with the rest; and what
    is indexed and embedded is the text, while the store sees nothing of either but ciphertext.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder | str | None,
        companion: Companion | None,
        keys: Keys | Keyring | None,
        audit: Audit | None,
        url: str,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        """Raise InvalidValueError for a companion index of an encrypted store."""
        self.backend = self.top = store
        self.encrypt: EncryptLayer | None = None
        self.audit: AuditLayer | None = None
        if keys is not None:
            from .layers.encrypt import EncryptLayer

            if companion is not None:
                raise in_clear()
            self.top = self.encrypt = EncryptLayer(self.top, keys, url)
        self.index = indexed(self.top, embedder, companion, index_bytes)
        self.top = self.index or self.top
        if audit is not None:
            from .layers.audit import AuditLayer

            if isinstance(audit.store, str):
                raise InvalidValueError("a URL of an audit trail is opened by open_async, not by AsyncMemory")
            self.top = self.audit = AuditLayer(self.top, audit, audit.store)


class AsyncMemory:
    """All that is remembered at one URL."""

    url: str

    def __init__(
        self,
        store: Store,
        tokens: Tokens = DEFAULT_ENCODING,
        url: str = "",
        embedder: Embedder | str | None = AUTO,
        companion: Companion | None = None,
        encryption_key: Keys | Keyring | None = None,
        audit: Audit | None = None,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        """`store` is any store, `companion` an index beside it; `open_async` finds both by their URLs."""
        self.url = url
        self._layers = Layers(store, embedder, companion, encryption_key, audit, url, index_bytes)
        self._index = self._layers.index
        self._store: Store = self._layers.top
        self._tokens = counter(tokens)

    def scope(self, *segments: ScopePath | str) -> AsyncScope:
        """Return what is remembered under a scope; each string is one segment.

        Raises InvalidValueError for a segment that is empty, too long, or holds '/' or control
        characters.
        """
        return AsyncScope(self._store, ScopePath.of(*segments), self._tokens)

    async def ping(self) -> timedelta:
        """Ask the store for something that is not there; return how long the answer took.

        Raises StoreUnavailableError, or another StoreError, if the store does not answer.
        """
        began = monotonic()
        await self._layers.backend.read([Ref(ScopePath(), "ping", "ping")])
        return timedelta(seconds=monotonic() - began)

    async def stats(self) -> Stats:
        """Count what is stored: sessions, messages, tokens, memories, notes and facts."""
        return await scope_stats(self._store, ScopePath())

    async def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List the scopes that hold something, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return await list_scopes(self._store, ScopePath(), limit)

    async def export_to(self, path: FileOrPath) -> Exported:
        """Write everything to a file of JSON lines, which is replaced whole or not at all.

        Vectors are left out: they are computed again. The file is not encrypted, even if the store is. Raises
        StorePermissionError or StoreFullError if it cannot be written.
        """
        return await export_file(self._store, ScopePath(), path)

    async def import_from(
        self, path: FileOrPath, *, overwrite: bool = False, progress: Callable[[int], object] | None = None
    ) -> Imported:
        """Add everything from a file that `export_to` wrote, where it was; what is there already is left alone.

        The file is checked as a whole before anything is written. `progress` is called with how many records are
        done. Raises InvalidValueError that names the line if the file is not a whole export, ConflictError if
        a record is there with another content, unless `overwrite` is true.
        """
        return await import_file(self._store, path, None, overwrite=overwrite, progress=progress)

    async def sweep(self) -> int:
        """Remove from the store what has expired, which reads hide already; return how many records."""
        return await _purge_all(self._store, ScopePath(), expired_only=True)

    async def reembed(
        self, embedder: Embedder | str, *, progress: Callable[[int, int], object] | None = None
    ) -> int:
        """Make the vectors of all that is stored with another embedder, then use it; return how many texts.

        Recall goes on with the old vectors until all are made. Called again after it was broken off, it
        goes on where it was. `progress` is called with how many records are done and how many there are.
        Other processes that have the store open must open it again afterwards: what they ask for raises
        EmbedderError. Raises EmbedderError if the embedder fails.
        """
        return await self._own_index().move(embedder, progress)

    async def warm(self, *segments: ScopePath | str) -> int:
        """Make all that recall in a scope needs, and read it in, so that the first recall is as fast as any.

        Returns how many texts can be found there; 0 if the store searches by itself, and needs none of it.
        """
        scope = ScopePath.of(*segments)
        return 0 if self._index is None else await self._index.warm(scope)

    async def reindex(self, *, progress: Callable[[int, int], object] | None = None) -> int:
        """Make the companion index anew from the records; return how many texts it holds then.

        `progress` is called with how many records are done and how many there are. Raises
        InvalidValueError if the memory was opened without one.
        """
        return await self._own_index().reindex(progress)

    async def rotate(
        self, *, archives: Sequence[str] = (), progress: Callable[[int, int], object] | None = None
    ) -> int:
        """Encrypt anew, with the first of the keys, all that another has encrypted; return how many records.

        That is the store, the audit trail that this memory was opened with if it lies at a URL of its own,
        and the `archives`: the URLs of those that `cleanup` filled and of encrypted copies. The memory does
        not know them unless they are named here, and an old key is needed for those that are not. Others may
        go on reading and writing, if they know both keys. Called again after it was broken off, it goes on
        where it was. `progress` is called, for one store after the other, with how many records are done and
        how many there are. Raises InvalidValueError if the memory was opened without a key, NotFoundError
        for an archive that holds nothing, StoreError if others go on writing with another than the first.
        """
        if self._layers.encrypt is None:
            raise InvalidValueError(
                "there is nothing to rotate: the memory was opened without encryption_key"
            )
        from .layers.encrypt import EncryptLayer

        urls = check_several(archives, "archives")
        changed = await self._layers.encrypt.rotate(progress)
        trail = None if self._layers.audit is None else self._layers.audit.apart
        if isinstance(trail, EncryptLayer):
            changed += await trail.rotate(progress)
        for url in urls:
            changed += await self._rotate_archive(url, progress)
        return changed

    async def _rotate_archive(self, url: str, progress: Callable[[int, int], object] | None) -> int:
        from .layers.encrypt import EncryptLayer
        from .layers.ported import open_beside

        archive = await open_beside(self._store, url)
        try:
            assert isinstance(archive, EncryptLayer), "beside an encrypted store everything is encrypted"
            if not await archive.holds_anything():
                raise NotFoundError(f"there is nothing encrypted at {StoreURL.parse(url)}")
            return await archive.rotate(progress)
        finally:
            await archive.close()

    def acting(
        self, *, actor: str | None = None, session: str | None = None, address: str | None = None
    ) -> Acting:
        """Return a context in which all that is done is done by this actor, as the audit trail tells it.

        What is left out is as it was outside. It holds for the thread or task that says so, and for the tasks
        that it starts. Raises InvalidValueError for a name that is none.
        """
        return Acting(actor, session, address)

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
        """Return who changed what in a scope, such as "acme/alice", or anywhere, and below it, oldest first.

        `since` and `until` include their moments. Raises InvalidValueError for an unknown kind or operation,
        and if the memory was opened without audit.
        """
        if self._layers.audit is None:
            raise InvalidValueError("there is no audit trail: the memory was opened without audit")
        return await self._layers.audit.trail(
            scope if isinstance(scope, ScopePath) else ScopePath("" if scope is None else scope),
            since=since,
            until=until,
            actor=actor,
            session=session,
            address=address,
            operation=None if operation is None else check_choice(operation, "operation", OPERATIONS),
            kind=None if kind is None else check_choice(kind, "kind", AUDITED),
            key=key,
            flag=flag,
        )

    async def metrics(self) -> Metrics:
        """Return how recall has done since the memory was opened: what it found, what was used, its drift.

        Raises EmbedderError if the store searches by itself.
        """
        return await self._own_index().metrics()

    def _own_index(self) -> IndexLayer:
        if self._index is None:
            raise EmbedderError(f"{self.url or 'this store'} searches by itself, without an index of ours")
        return self._index

    async def _prepare(self) -> None:
        if self._layers.encrypt is not None:
            await self._layers.encrypt.prepare()
        else:
            await check_plain(self._layers.backend, self.url)
        if self._index is not None:
            await self._index.prepare()

    async def close(self) -> None:
        """Let go of files, connections and threads; everything after that raises ClosedError."""
        await self._store.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncScope(AsyncFading):
    """What is remembered under one scope, and the ways to it."""

    notes: AsyncNotes
    facts: AsyncFacts

    def __init__(self, store: Store, home: ScopePath, tokens: TokenCounter) -> None:
        super().__init__(store, home)
        self._tokens = tokens
        self.notes = AsyncNotes(store, home)
        self.facts = AsyncFacts(store, home)

    def scope(self, *segments: ScopePath | str) -> AsyncScope:
        """Return what is remembered under a scope below this one; raises InvalidValueError."""
        return AsyncScope(self._store, ScopePath.of(self.home, *segments), self._tokens)

    def session(
        self,
        name: str,
        *,
        max_messages: int | None | UnsetType = UNSET,
        max_tokens: int | None | UnsetType = UNSET,
        overflow: Overflow | UnsetType = UNSET,
        keep: float | UnsetType = UNSET,
        retention: Retention | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
    ) -> AsyncSession:
        """Return the conversation of this name, which begins with its first message.

        Its settings are stored with it: those that are given here hold for every handle from this one's
        next message on, the others stay as they are. Past `max_messages` or `max_tokens` the oldest
        messages overflow: "archive", the default, moves them to the session's archive, where recall
        finds them; "drop" deletes them; a function is called with them first; and `Summarize` archives
        them and keeps a running summary. All but "drop" make room down to `keep`, 0.8, of the limit.
        `retention` and `ttl` say when it is cleared, never unless they are given. Raises
        InvalidValueError for a name or a value that is not allowed.
        """
        given = GivenSettings(max_messages, max_tokens, overflow, keep, retention, ttl)
        return AsyncSession(self._store, self.home / name, self._tokens, given)

    async def context(
        self,
        query: str | None = None,
        max_tokens: int = 4000,
        *,
        session: str | None = None,
        share: float = 0.5,
        k: int = 40,
        min_score: float | None = None,
        kinds: Sequence[str] | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        roles: Sequence[Role] | Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        min_importance: float | None = None,
        as_of: datetime | None = None,
    ) -> Context:
        """Return one block for a prompt that costs at most `max_tokens`.

        In it, oldest first and nothing twice: the system message and the running summary of the
        `session`, at most `k` hits that recall finds in this scope for the query (for the user's last
        message if none is given), and the session's newest turns. What was recalled stands in a message of
        the user's, quoted between tags, since a user or a web page may once have said it. `share` of the
        budget is recall's, if it needs it; what it leaves goes to older turns. `min_score` and the filters
        are those of `recall`. Raises BudgetError if the budget is too small for what must be in it.
        """
        chat = None if session is None else self.session(session)
        if query is None and chat is None:
            raise InvalidValueError("context needs a query, or a session whose last message is one")

        async def find(query: str) -> list[Hit]:
            return await self.recall(
                query,
                k,
                kinds=kinds,
                metadata=metadata,
                roles=roles,
                since=since,
                until=until,
                min_importance=min_importance,
                min_score=min_score,
                as_of=as_of,
                uses=False,
            )

        return await build_context(self, self._tokens, chat, query, max_tokens, share, find)

    async def sessions(self) -> list[SessionInfo]:
        """Return the conversations below this scope with their counts, tokens and last activity."""
        scan = StreamScan(scope=self.home, kinds=(MESSAGE,))
        return [SessionInfo.of(stream) async for stream in all_streams(self._store, scan)]

    async def stats(self) -> Stats:
        """Count what is stored here and below: sessions, messages, tokens, memories, notes and facts."""
        return await scope_stats(self._store, self.home)

    async def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List the scopes here and below that hold something, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return await list_scopes(self._store, self.home, limit)

    async def export_to(self, path: FileOrPath) -> Exported:
        """Write everything here and below to a file of JSON lines, which is replaced whole or not at all.

        Vectors are left out: they are computed again. The file is not encrypted, even if the store is. Raises
        StorePermissionError or StoreFullError if it cannot be written.
        """
        return await export_file(self._store, self.home, path)

    async def import_from(
        self, path: FileOrPath, *, overwrite: bool = False, progress: Callable[[int], object] | None = None
    ) -> Imported:
        """Add everything from a file that `export_to` wrote to this scope; what is there already is left alone.

        The file is checked as a whole before anything is written. `progress` is called with how many records are
        done. Raises InvalidValueError that names the line if the file is not a whole export, ConflictError if
        a record is there with another content, unless `overwrite` is true.
        """
        return await import_file(self._store, path, self.home, overwrite=overwrite, progress=progress)

    async def cleanup(
        self,
        *,
        older_than: timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        kinds: Sequence[str] | str | None = None,
        archive: str | None = None,
        dry_run: bool = False,
    ) -> Cleaned:
        """Remove what is old, or has this metadata, here and below; archived first at the URL `archive`.

        Messages, remembered texts and facts are as old as they are; notes and summaries as their last
        change. Nothing that is pinned goes, and no tool's call without its answers. With an archive, which
        is encrypted if this memory is, nothing is removed before all of it has been written there and
        read back; what changes meanwhile stays. Called again after it was broken off, it goes on. With
        `dry_run` it only counts. Raises InvalidValueError if nothing says what is to go, StoreError if the
        archive fails.
        """
        cleanup = Cleanup(self._store, self.home, older_than=older_than, metadata=metadata, kinds=kinds)
        if dry_run or archive is None:
            return await (cleanup.count() if dry_run else cleanup.run(None))
        from .layers.ported import open_beside

        store = await open_beside(self._store, archive)
        try:
            return await cleanup.run(store)
        finally:
            await store.close()

    async def erase(self) -> int:
        """Remove everything in this scope and below it, of every kind; return how many records.

        Not even the names of the scopes are left behind, but for what an audit trail tells of them. When it
        returns, SQLite's files hold nothing of it either. Raises StoreBusyError if another process keeps the
        database busy for so long that the texts, though removed, stay in its write-ahead file: call it again.
        """
        removed = await _purge_all(self._store, self.home, drop=True)
        await scrub(self._store)
        return removed


async def _purge_all(
    store: Store, scope: ScopePath, *, expired_only: bool = False, drop: bool = False
) -> int:
    removed = 0
    scans = [StreamScan(scope=scope, kinds=kinds, empty=True) for kinds in ((), (ONCE_KIND,))]
    for stream in [stream for scan in scans async for stream in all_streams(store, scan)]:
        if stream.kind == AUDIT_KIND:
            continue
        (did,) = await store.write(Write((Purge(stream.scope, stream.kind, (), expired_only, drop),)))
        # What the store notes about itself was nobody's to count.
        removed += did.count if stream.kind not in (EMBEDDER_KIND, ONCE_KIND) else 0
    return removed
