"""One scope: the four parts of what it holds, and the short ways to the commonest calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, UnsetType

from .checks import check_count, check_time, shown
from .errors import InvalidValueError, NotFoundError
from .features.context import Context, build_context
from .features.duplicates import Duplicates
from .features.facts import AsyncFacts
from .features.filters import conditions, names
from .features.forgetting import Filters, Forgetting, Forgotten
from .features.hits import Hit, Item, to_hit, to_item_of
from .features.jsonl import Exported, FileOrPath, Imported, export_file, import_file
from .features.kinds import MEMORY, recalled_kinds
from .features.memories import AsyncMemories
from .features.memory_items import MemoryItem
from .features.notes import AsyncNotes
from .features.overview import Stats, list_scopes, scope_stats
from .features.references import Reference, find_ref
from .features.session_list import AsyncSessions
from .features.sessions import AsyncSession
from .features.settings import GivenSettings, Overflow, Retention
from .records import AUDIT_KIND, EMBEDDER_KIND, ONCE_KIND, Role, ScopePath, now
from .store.protocol import Store, all_streams, scrub
from .store.query import Delete, Purge, Search, StreamScan, Write
from .tokens import TokenCounter


class AsyncScope:
    """What is remembered under one path of names: a tenant, a user, an agent, a team.

    Reading looks here and below, writing writes here; a call says so where it differs.
    """

    path: ScopePath
    sessions: AsyncSessions
    notes: AsyncNotes
    memories: AsyncMemories
    facts: AsyncFacts

    def __init__(self, store: Store, path: ScopePath, tokens: TokenCounter) -> None:
        self.path = path
        self.sessions = AsyncSessions(store, path)
        self.notes = AsyncNotes(store, path)
        self.memories = AsyncMemories(store, path)
        self.facts = AsyncFacts(store, path)
        self._store = store
        self._tokens = tokens

    def __repr__(self) -> str:
        """Return the class and the path of the scope."""
        return f"<{type(self).__name__} {self.path.path!r}>"

    def scope(self, *segments: ScopePath | str) -> AsyncScope:
        """Return the scope at a path below this one; raises InvalidValueError."""
        return AsyncScope(self._store, ScopePath.of(self.path, *segments), self._tokens)

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
        return AsyncSession(self._store, self.path / name, self._tokens, given)

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
        """Remember a text in this scope; the short way to `memories.add`."""
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
        self,
        items: Iterable[str | MemoryItem],
        *,
        once: str | None = None,
        duplicates: Duplicates = "keep",
    ) -> list[MemoryItem]:
        """Remember texts in this scope, all or none; the short way to `memories.add_many`."""
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
        uses: bool = True,
    ) -> list[Hit]:
        """Return the `k` messages, memories, notes, facts and summaries here and below that best answer, best first.

        `kinds` searches only some of these. `metadata`, `roles`, `since`, `until` and `min_importance` filter, and
        `min_score` leaves out what answers too little. `as_of` keeps what was true then, by default now.
        System messages, tools' answers and messages that only call tools are left out, unless `roles` names theirs or
        `traffic` is true. `neighbors` brings that many turns before and after each hit along; `diverse` leaves out
        copies of a better hit; what is in `exclude` is no hit; `signals` are the only ones that count. A hit counts
        as a use of what was remembered, unless `uses` is false.
        """
        if kinds is not None and not kinds:
            return []
        search = Search(
            scope=self.path,
            query=query,
            kinds=() if kinds is None else recalled_kinds(kinds),
            where=conditions(metadata, roles=roles, since=since, until=until, min_importance=min_importance),
            as_of=now() if as_of is None else check_time(as_of, "as_of"),
            limit=check_count(k, "k"),
            signals=() if signals is None else names(signals, "signals"),
            min_score=min_score,
            neighbors=neighbors,
            diverse=diverse,
            traffic=traffic or roles is not None,
            exclude=tuple([await find_ref(self._store, self.path, one, MEMORY) for one in exclude]),
            uses=uses,
        )
        return [to_hit(match) for match in await self._store.search(search)]

    async def get(self, item: Reference) -> Item:
        """Return the message, memory, note or fact, here or below, that an id or a hit names, as it is now.

        Raises NotFoundError if it is not there, InvalidValueError if several have this id.
        """
        ref = await find_ref(self._store, self.path, item, MEMORY)
        (record,) = await self._store.read([ref])
        if record is None:
            raise NotFoundError(f"{self.path.path!r} holds nothing with the id {shown(ref.key)}")
        return to_item_of(record)

    async def update(
        self,
        item: Reference,
        *,
        importance: float | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
        pinned: bool | UnsetType = UNSET,
    ) -> Item:
        """Change the importance, the metadata or the pin of anything that recall found here or below.

        `memories.update` changes more of a remembered text. Raises NotFoundError if it is gone, and ConflictError if
        others wrote it first at every attempt.
        """
        changes = {"importance": importance, "meta": metadata, "pinned": pinned}
        given = {name: value for name, value in changes.items() if value is not UNSET}
        return to_item_of(await self.memories._change(item, given, only=False))

    async def used(self, *hits: Reference) -> int:
        """Say that hits were of use, which makes them fade more slowly; return how many are still there.

        It also counts as a success of recall in the memory's metrics.
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
        """Forget, here and below, what recall returned or an id names, or everything that passes every filter.

        Messages, memories and facts are as old as they are, notes and summaries as their last change. `faded_below`
        is about memories alone: those of whose importance less than that is left. A filter spares what is pinned, and
        a tool's call whose answer it does not take. With `archive`, the URL of another store, which is encrypted if
        this memory is, nothing is deleted before all of it was written there and read back; with `archive=True`
        memories move to the archive of their scope, from which `memories.restore` brings them back. What others
        change meanwhile so that it no longer matches stays. With `dry_run` it only counts. Raises
        InvalidValueError if nothing says what to forget, StoreError if the archive fails.
        """
        filters = Filters(
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
            if filters != Filters() or archive:
                raise InvalidValueError("forget takes items, or filters, not both")
            return await self._forget_items(items, dry_run)
        forgetting = Forgetting(self._store, self.path, filters)
        if dry_run:
            return await forgetting.count()
        if archive is False:
            return await forgetting.delete()
        if archive is True:
            return await forgetting.archive_beside()
        from .layers.ported import open_beside

        store = await open_beside(self._store, archive)
        try:
            return await forgetting.archive_to(store)
        finally:
            await store.close()

    async def _forget_items(self, items: Sequence[Reference], dry_run: bool) -> Forgotten:
        refs = list(dict.fromkeys([await find_ref(self._store, self.path, item, MEMORY) for item in items]))
        matched = sum(record is not None for record in await self._store.read(refs))
        if dry_run:
            return Forgotten(matched=matched)
        deleted = 0
        for ref in refs:
            (did,) = await self._store.write(Write((Delete(ref),)))
            deleted += len(did.removed)
        return Forgotten(matched=matched, deleted=deleted)

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

        return await build_context(self._store, self._tokens, chat, query, max_tokens, share, find)

    async def stats(self) -> Stats:
        """Count what is stored here and below: sessions, messages, tokens, memories, notes and facts."""
        return await scope_stats(self._store, self.path)

    async def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List the scopes here and below that hold something, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return await list_scopes(self._store, self.path, limit)

    async def export_to(
        self, path: FileOrPath, *, progress: Callable[[int, int], object] | None = None
    ) -> Exported:
        """Write everything here and below to a file of JSON lines, which is replaced whole or not at all.

        Vectors are left out: they are computed again. The file is not encrypted, even if the store is. `progress`
        is called with how many records are done and how many there are. Raises StorePermissionError or
        StoreFullError if it cannot be written.
        """
        return await export_file(self._store, self.path, path, progress)

    async def import_from(
        self,
        path: FileOrPath,
        *,
        overwrite: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Imported:
        """Add everything from a file that `export_to` wrote to this scope; what is there already is left alone.

        The file is checked as a whole before anything is written. `progress` is called with how many records are
        done and how many there are. Raises InvalidValueError that names the line if the file is not a whole
        export, ConflictError if a record is there with another content, unless `overwrite` is true.
        """
        return await import_file(self._store, path, self.path, overwrite=overwrite, progress=progress)

    async def erase(self, *, dry_run: bool = False) -> int:
        """Delete everything here and below, of every kind, with every trace; return how many records.

        Not even the names of the scopes are left behind, but for what an audit trail tells of them. When it
        returns, SQLite's files hold nothing of it either. With `dry_run` it only counts. Raises StoreBusyError if
        another process keeps the database busy for so long that the texts, though deleted, stay in its write-ahead
        file: call it again.
        """
        if dry_run:
            streams = all_streams(self._store, StreamScan(scope=self.path))
            return sum([stream.count async for stream in streams if stream.kind not in UNCOUNTED])
        removed = await purge_all(self._store, self.path, drop=True)
        await scrub(self._store)
        return removed


UNCOUNTED = (AUDIT_KIND, EMBEDDER_KIND, ONCE_KIND)
"""The kinds of what a store notes about itself, which was nobody's to count."""


async def purge_all(store: Store, scope: ScopePath, *, expired_only: bool = False, drop: bool = False) -> int:
    """Remove everything in a scope and below it, or what has expired; return how many records."""
    removed = 0
    scans = [StreamScan(scope=scope, kinds=kinds, empty=True) for kinds in ((), (ONCE_KIND,))]
    for stream in [stream for scan in scans async for stream in all_streams(store, scan)]:
        if stream.kind == AUDIT_KIND:
            continue
        (did,) = await store.write(Write((Purge(stream.scope, stream.kind, (), expired_only, drop),)))
        # What the store notes about itself was nobody's to count.
        removed += did.count if stream.kind not in (EMBEDDER_KIND, ONCE_KIND) else 0
    return removed
