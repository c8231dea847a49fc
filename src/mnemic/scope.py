"""A scope: its sessions, notes, memories and facts, and shortcuts for the most common calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from .checks import check_count, check_name, check_names, check_several, check_time, check_weights, shown, storable_text
from .errors import InvalidValueError, NotFoundError
from .features.as_of import as_of_store
from .features.certificate import ErasureCertificate
from .features.context import Context, build_context
from .features.erasure import Erasure
from .features.erasure_derived import Rebuild
from .features.export import Exported, FileOrPath, SubjectExport
from .features.facts import AsyncFacts
from .features.forgetting import ForgetFilters, Forgetting, Forgotten
from .features.hits import Hit, Item, Reference, delete_refs, find_ref, is_readable, to_hit, to_item_of
from .features.holds import list_holds, release_hold, set_hold
from .features.listing import AsyncSessions, SessionInfo, Stats, list_scopes, scope_stats, session_path
from .features.memories import AsyncMemories
from .features.memory_items import Duplicates, MemoryItem
from .features.notes import AsyncNotes
from .features.record_import import Imported
from .features.redaction_scan import RedactionScan, Scanned
from .features.session_settings import GivenSettings, Overflow, Retention
from .features.sessions import AsyncSession
from .features.state import AsyncState
from .features.versions import Version, item_history, restore_item
from .layers.auxiliary_stores import open_auxiliary
from .layers.hold import Hold
from .layers.redact import reveal
from .layers.restricted import require
from .messages import Role
from .records import MEMORY, ScopePath
from .redaction.config import Redacting
from .store.matching import conditions, recalled_kinds
from .store.protocol import SearchableStore
from .store.query import Search
from .telemetry.calls import observed
from .tokens import TokenCounter

if TYPE_CHECKING:
    import pandas


@observed
class AsyncScope:
    """Data of one path of names: a tenant, a user, an agent, a team.

    Reads cover this scope and those below it, writes only this scope; `notes`, `memories`, `facts` and `state`
    are of this scope alone. Each method says what it covers.
    """

    path: ScopePath
    sessions: AsyncSessions
    notes: AsyncNotes
    memories: AsyncMemories
    facts: AsyncFacts
    state: AsyncState

    def __init__(self, store: SearchableStore, path: ScopePath, tokens: TokenCounter) -> None:
        self.path = path
        self.sessions = AsyncSessions(store, path)
        self.notes = AsyncNotes(store, path)
        self.memories = AsyncMemories(store, path)
        self.facts = AsyncFacts(store, path)
        self.state = AsyncState(store, path)
        self._store = store
        self._tokens = tokens

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path.path!r}>"

    @property
    def now(self) -> datetime:
        """The current time, by the clock that the memory was opened with."""
        return self._store.clock()

    def scope(self, *segments: ScopePath | str) -> AsyncScope:
        """Return the scope at a path below this one; raises InvalidValueError for an invalid segment."""
        return AsyncScope(self._store, ScopePath.of(self.path, *segments), self._tokens)

    def session(
        self,
        name: SessionInfo | str,
        *,
        max_messages: int | None | UnsetType = UNSET,
        max_tokens: int | None | UnsetType = UNSET,
        overflow: Overflow | UnsetType = UNSET,
        keep: float | UnsetType = UNSET,
        retention: Retention | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
    ) -> AsyncSession:
        """Return a session of this scope by name, or a listed one; it is created with its first message.

        Settings are stored with the session: those given here apply to every handle from this handle's next
        message on, others stay unchanged. When `max_messages` or `max_tokens` is exceeded, the oldest messages
        overflow: "archive" (default) moves them to the session's archive, which recall searches; "drop" deletes
        them; a function is called with them first; `Summarize` archives them and updates a running summary.
        For a function or `Summarize`, the session shrinks to `keep` (0.8) of the limit. If it fails, the message is
        stored, the error is raised, and the next message tries again: retry `add` with the same message or `once`.
        `retention` and `ttl` define when the session is cleared; by default never. Raises InvalidValueError for an
        invalid name or value.
        """
        given = GivenSettings(max_messages, max_tokens, overflow, keep, retention, ttl)
        return AsyncSession(self._store, session_path(self.path, name), self._tokens, given)

    async def remember(
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
        """Remember a text in this scope, replacing the text with the same `id`; shortcut for `memories.add`."""
        return await self.memories.add(
            text,
            id=id,
            importance=importance,
            metadata=metadata,
            source=source,
            valid_from=valid_from,
            valid_to=valid_to,
            created=created,
            ttl=ttl,
            pinned=pinned,
            once=once,
            duplicates=duplicates,
        )

    async def remember_many(
        self, items: Iterable[str | MemoryItem], *, once: str | None = None, duplicates: Duplicates = "keep"
    ) -> list[MemoryItem]:
        """Remember texts in this scope, all or none; shortcut for `memories.add_many`."""
        return await self.memories.add_many(items, once=once, duplicates=duplicates)

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
        exclude: Sequence[Reference] = (),
        signals: Sequence[str] | str | None = None,
        weights: Mapping[str, float] | None = None,
        uses: bool = True,
    ) -> list[Hit]:
        """Search messages, memories, notes, facts and summaries here and below; return the `k` best hits, best first.

        `kinds` restricts the search. `metadata`, `roles`, `since`, `until` and `min_importance` filter;
        `min_score` drops weak hits. `as_of` keeps what was valid then, by default now. System messages, tool
        results and messages that only call tools are excluded, unless `roles` names them or `traffic` is true.
        `neighbors` adds that many turns before and after each hit; `diverse` drops near-duplicates of a better
        hit; records in `exclude` are skipped; `signals` restricts the ranking signals, and `weights` multiplies
        what each adds. A hit counts as a use of a memory, unless `uses` is false. Raises InvalidValueError for an
        unknown kind, role or signal.
        """
        if kinds is not None and not kinds:
            return []
        search = Search(
            scope=self.path,
            # Someone's message, which may hold anything; it is compared, not stored.
            query=storable_text(query, "query"),
            kinds=() if kinds is None else recalled_kinds(kinds),
            where=conditions(metadata, roles=roles, since=since, until=until, min_importance=min_importance),
            as_of=self._store.clock() if as_of is None else check_time(as_of, "as_of"),
            limit=check_count(k, "k"),
            signals=() if signals is None else check_names(signals, "signals"),
            weights=() if weights is None else check_weights(weights),
            min_score=min_score,
            neighbors=neighbors,
            diverse=diverse,
            traffic=traffic or roles is not None,
            exclude=tuple(
                [await find_ref(self._store, self.path, one, MEMORY) for one in check_several(exclude, "exclude")]
            ),
            uses=uses,
        )
        return [to_hit(match) for match in await self._store.search(search) if is_readable(match)]

    async def get(self, item: Reference) -> Item:
        """Return the current message, memory, note or fact, here or below, by id or hit.

        Raises NotFoundError if it does not exist, InvalidValueError if the id is ambiguous.
        """
        ref = await find_ref(self._store, self.path, item, MEMORY)
        (record,) = await self._store.read([ref])
        if record is None:
            raise NotFoundError(f"{self.path.path!r} has nothing with the id {shown(ref.key)}")
        return to_item_of(record)

    async def update(
        self,
        item: Reference,
        *,
        importance: float | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
        pinned: bool | UnsetType = UNSET,
        if_version: int | None = None,
    ) -> Item:
        """Change the importance, metadata or pin of anything that recall finds here or below.

        `memories.update` changes more fields of a memory. Raises NotFoundError if it does not exist, ConflictError if
        it has another version than `if_version`, if given, or if concurrent writes win every attempt.
        """
        version = None if if_version is None else check_count(if_version, "if_version")
        changes = {"importance": importance, "meta": metadata, "pinned": pinned}
        given = {name: value for name, value in changes.items() if value is not UNSET}
        return to_item_of(await self.memories._change(item, given, only=False, if_version=version))

    async def history(self, item: Reference | Version, *, kind: str | None = None) -> list[Version]:
        """Return the versions of a message, memory, note or fact, here or below, newest first; also of a deleted one.

        `kind` tells apart items that have, or had, the same id, such as a "note" and a "memory". Earlier versions are
        kept if the memory is opened with `history`, as long as that says. Raises NotFoundError if there is none,
        InvalidValueError if the id is ambiguous.
        """
        return await item_history(self._store, self.path, item, kind)

    async def restore(
        self, item: Reference | Version, version: Version | int | None = None, *, kind: str | None = None
    ) -> Item:
        """Write an earlier version of an item, here or below, again, and return the item; also of a deleted one.

        Without a `version`, that is the one before the current one. `kind` tells apart items that have, or had, the
        same id. It is a change like any other, and has its place in the history; a deleted message comes back at the
        end of its session. Raises NotFoundError if there is no such version, InvalidValueError if the id is ambiguous,
        ConflictError if concurrent writes win every attempt.
        """
        return await restore_item(self._store, self.path, self._tokens, item, version, kind)

    async def as_of(self, moment: datetime) -> AsyncScope:
        """Return this scope, with those below it, as it was at a moment, for reading: also lists, recall and windows.

        What it reads is held in memory. What has expired since, and the uses and settings of then, are not known.
        Raises InvalidValueError if the moment is not within the history; later writes raise StorePermissionError.
        """
        return AsyncScope(await as_of_store(self._store, moment), self.path, self._tokens)

    async def used(self, *hits: Reference) -> int:
        """Report hits, here or below, as useful, so that they fade more slowly; return how many still exist.

        It also counts as a success in the recall metrics.
        """
        return await self.memories.used(*hits)

    async def forget(
        self,
        *items: Reference,
        older_than: timedelta | None = None,
        faded_below: float | None = None,
        half_life: timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        kinds: Sequence[str] | str | None = None,
        archive: str | bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Delete, here and below, the given hits or ids, or everything that passes all filters.

        `older_than` compares creation times, for notes and summaries the last change. `faded_below` selects
        memories whose decayed importance is lower. Filters never delete pinned records, or a tool call without
        its results. With `archive`, the URL of another store (encrypted if this memory is), everything is first
        written there and read back, and only then deleted; `archive=True` moves memories to the archive of their
        scope, for `memories.restore`, and leaves other kinds alone. Records that change meanwhile and no longer match
        are kept. With `dry_run` it only counts. Raises InvalidValueError without items and filters, StoreError if the
        archive fails.
        """
        filters = ForgetFilters(
            older_than=older_than,
            faded_below=faded_below,
            half_life=half_life,
            metadata=metadata,
            source=source,
            since=since,
            until=until,
            kinds=kinds,
        )
        if items:
            if filters != ForgetFilters() or archive:
                raise InvalidValueError("forget takes items, or filters, not both")
            return await self._forget_items(items, dry_run)
        forgetting = Forgetting(self._store, self.path, filters)
        if dry_run:
            return await forgetting.count()
        require(self._store, "erase")
        if archive is False:
            return await forgetting.delete()
        if archive is True:
            return await forgetting.archive_beside()
        store = await open_auxiliary(self._store, archive)
        try:
            return await forgetting.archive_to(store)
        finally:
            await store.close()

    async def _forget_items(self, items: Sequence[Reference], dry_run: bool) -> Forgotten:
        refs = [await find_ref(self._store, self.path, item, MEMORY) for item in items]
        if dry_run:
            found = await self._store.read(list(dict.fromkeys(refs)))
            return Forgotten(matched=sum(record is not None for record in found))
        deleted = await delete_refs(self._store, refs)
        return Forgotten(matched=deleted, deleted=deleted)

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
        exclude: Sequence[Reference] = (),
    ) -> Context:
        """Build a block for a prompt, of at most `max_tokens`, from what is here and below.

        It has, oldest first and without repetition: the system message and running summary of the `session`, up
        to `k` recalled hits for the query (by default the user's last message), and the session's newest turns.
        Recalled text is quoted in a user message, since anyone may have written it. `share` of the budget is for
        recall; what it does not use goes to older turns. If the best hit is too long for it, its text is cut.
        `min_score`, `exclude` and the filters are those of `recall`.
        Raises BudgetError if the system message and the last turn do not fit.
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
                exclude=exclude,
                uses=False,
            )

        return await build_context(self._store, self._tokens, chat, query, max_tokens, share, find)

    async def stats(self) -> Stats:
        """Count what is stored here and below: sessions, messages, tokens, memories, notes and facts."""
        return await scope_stats(self._store, self.path)

    async def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List the non-empty scopes here and below, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return await list_scopes(self._store, self.path, limit)

    async def export_to(
        self, path: FileOrPath, *, format: str | None = None, progress: Callable[[int, int], object] | None = None
    ) -> Exported:
        """Export everything here and below to a file, which is replaced atomically, or a new folder.

        The format is "jsonl" (lossless, for `import_from`), "markdown" (a folder to read) or "csv" (a table); without
        one, the ending of the file's name, .jsonl or .csv, tells it, and an open file gets "jsonl". Vectors are not
        exported, since they can be recomputed. The file is not encrypted, even if the store is. `progress` is called
        with the number of records done and the total. Raises InvalidValueError if the format cannot be told,
        StorePermissionError or StoreFullError if the file cannot be written.
        """
        from .transfer.exporting import export_any

        return await export_any(self._store, self.path, path, format, progress)

    async def to_pandas(self, kinds: Sequence[str] | str | None = None) -> pandas.DataFrame:
        """Return messages, memories, notes, facts, summaries and titles here and below as a table, a row each.

        `kinds` restricts it. Raises MissingExtraError if pandas is not installed, InvalidValueError for an unknown
        kind.
        """
        from .transfer.exporting import to_pandas

        return await to_pandas(self._store, self.path, kinds)

    async def import_from(
        self,
        path: FileOrPath,
        *,
        format: str | None = None,
        overwrite: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Imported:
        """Import a file into this scope; existing records are kept.

        The format is found from the content unless `format` names it: a file that `export_to` wrote ("mnemic"), or
        an export of another tool, as the guide to import and export lists them. The whole file is validated before
        anything is written; with `dry_run` nothing is. `progress` is called with how much is done and the total.
        Raises InvalidValueError, which says where, if the file is not valid, ConflictError if a record exists with
        different content, unless `overwrite` is true; of another tool's export it is reported as skipped instead.
        """
        from .transfer.importing import import_any

        return await import_any(
            self._store,
            self.path,
            self._tokens,
            path,
            format=format,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )

    async def reveal(self, text: str) -> str:
        """Return a text with the values that redaction has replaced by hashes, as far as the vault has them here.

        Raises as `Memory.reveal` does.
        """
        return await reveal(self._store, self.path, text)

    async def scan(
        self, *, mend: bool = False, redact: Redacting = None, progress: Callable[[int, int], object] | None = None
    ) -> Scanned:
        """Find personal data and secrets in what is stored here and below; with `mend`, redact them in place.

        It looks for what the memory redacts, or for what `redact` says if the memory does not redact, by default for
        all known types. Others may write meanwhile. If interrupted, it resumes when called again. `progress` is called
        with the number of records done and the total. Raises InvalidValueError for another redaction than the memory's.
        """
        return await RedactionScan(self._store, redact, mend=mend).run(self.path, progress)

    async def erase(
        self,
        *,
        dry_run: bool = False,
        archives: Sequence[str] = (),
        pseudonym: str | None = None,
        rebuild: Rebuild | None = None,
        names: Sequence[str] = (),
        keep_audit_names: bool = False,
    ) -> ErasureCertificate:
        """Delete everything here and below, of every kind, without a trace; return a signed certificate.

        It covers vectors, indexes, caches, idempotency ids, archived messages, and records elsewhere that were derived
        from what is erased: they are dropped, or, given `rebuild`, a function from messages to text, rebuilt from their
        other sources. `archives` are URLs of other stores that `forget` filled. The audit log keeps what was done, and
        loses the names, unless `keep_audit_names` is true; in other scopes it loses `names`, such as a login. The
        certificate's `unreached` says what remains where, until when, and how it is finished. It names the scope by a
        `pseudonym`, if given. With `dry_run` it only counts. If interrupted, call it again. Raises, before anything is
        changed, HeldError under a legal hold, also with `dry_run`, and NotFoundError if there is no such archive.
        """
        erasure = Erasure(
            self._store,
            self.path,
            pseudonym=pseudonym,
            archives=archives,
            rebuild=rebuild,
            names=names,
            keep_audit_names=keep_audit_names,
        )
        return await (erasure.count() if dry_run else erasure.run())

    async def subject_export(self, path: str | PathLike[str]) -> SubjectExport:
        """Write everything about the subject of this scope to a .zip, for people and for programs, replaced atomically.

        It has all records here and below, as text to read and as `export_to` writes them, records elsewhere that were
        derived from them, the earlier versions of both, and the audit log. It is not encrypted. Raises NotFoundError if
        there is nothing, StorePermissionError or StoreFullError if the file cannot be written.
        """
        from .transfer.subject_export import export_subject

        return await export_subject(self._store, self.path, path)

    async def hold(self, reason: str, *, until: datetime | None = None) -> Hold:
        """Put everything here and below under a legal hold: nothing is deleted, evicted or expires until its release.

        Calls that delete raise HeldError; limits and times to live are suspended. It ends at `until`, if given. When it
        returns, every process knows of it. Raises InvalidValueError without a reason.
        """
        return await set_hold(self._store, self.path, reason, until)

    async def holds(self) -> list[Hold]:
        """Return the holds in force here, above or below, oldest first."""
        return await list_holds(self._store, self.path)

    async def release(self, hold: Hold | str) -> Hold:
        """End a hold on this scope or below, given as such or by its id; return it.

        What would have expired meanwhile expires now. Raises NotFoundError if there is no such hold.
        """
        id = hold.id if isinstance(hold, Hold) else check_name(hold, "hold")
        return await release_hold(self._store, self.path, id)
