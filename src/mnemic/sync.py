"""The sync API: each class wraps an async object. Made by tools/generate_sync.py; do not edit."""

# fmt: off
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from .checks import JSON
from .copying import Copied, copy_async
from .event_loop import BorrowedDriver, Driver, Inline, Portal
from .features.certificate import ErasureCertificate
from .features.context import Context
from .features.erasure_derived import Rebuild
from .features.export import Exported, FileOrPath, SubjectExport
from .features.fact_items import Fact
from .features.facts import MAX_FACTS, AsyncFacts, FactGraph, Neighborhood
from .features.forgetting import Forgotten
from .features.hits import Hit, Item, Reference
from .features.listing import AsyncSessions, SessionInfo, Stats
from .features.memories import AsyncMemories
from .features.memory_items import Duplicates, Faded, MemoryItem
from .features.notes import AsyncNotes, Note, NoteInfo, NoteSettings
from .features.record_import import Imported
from .features.redaction_scan import Scanned
from .features.session_settings import Overflow, Retention, SessionSettings
from .features.sessions import AsyncSession
from .features.state import AsyncState, StateItem
from .features.versions import Version
from .layers.audit_entry import AuditEntry, AuditPage
from .layers.audit_settings import Acting, Auditing
from .layers.audit_verify import AuditVerification
from .layers.hold import Hold
from .layers.master_key import EncryptionKeys
from .layers.restricted import Right
from .memory import AsyncMemory, Tokens, logs_inline, open_async
from .messages import Content, Message, MessageLike, Role
from .models.embedder import AUTO, Embedder
from .recall.index_entry import INDEX_BYTES
from .recall.metrics import Metrics
from .recall.text_analysis import NEAR
from .records import ScopePath
from .redaction.config import Redacting
from .scope import AsyncScope
from .signing import SigningKey, SigningKeys
from .store import registry
from .store.protocol import Indexing
from .tokens import DEFAULT_ENCODING

if TYPE_CHECKING:
    import networkx
    import pandas

__all__ = ["Facts", "Memories", "Memory", "Notes", "Scope", "Session", "Sessions", "State", "copy", "open"]


class Session:
    """One conversation.

    Its settings, such as limits, are stored with it, and every handle obeys the newest. With `ttl` it expires
    that long after its last message. Its retention defines when it is cleared: after each `run()`, at the end of
    a `with`, or never.
    """

    def __init__(self, wrapped: AsyncSession, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        return f'<{type(self).__name__} {self.scope.path!r}>'

    @property
    def name(self) -> str:
        """The last segment of the session's scope."""
        return self._async.name

    def add(
        self, message: MessageLike | Role | None = None, content: Content = None, *, role: Role | None = None,
        ttl: timedelta | None = None, once: str | None = None, **fields: Any,
    ) -> Message:
        """Add a message: a role and content with other message fields, a dict of these, or a Message.

        Image paths are read now and stored as data; the returned message has the data. With `ttl` the message
        expires. A message that exists already is not added again. `once` is an idempotency id of this call in
        this session: a retry within 24 hours returns the first message, even if it has another id or was evicted.
        Raises ConflictError if a different message has its id, or different content the same `once`;
        InvalidValueError for a value that cannot be stored; NotFoundError for a missing image file, TooLargeError
        for one that is too large.
        """
        return self._driver.run(self._async.add(message, content, role=role, ttl=ttl, once=once, **fields))

    def add_many(
        self, messages: Iterable[MessageLike], *, ttl: timedelta | None = None, once: str | None = None,
        open_images: bool = True,
    ) -> list[Message]:
        """Add messages, or dicts of their fields, in order, all or none; existing ones are skipped.

        `ttl`, `once` and errors are as in `add`. Without `open_images`, for messages from an untrusted source, image
        paths stay paths and are never opened.
        """
        return self._driver.run(self._async.add_many(messages, ttl=ttl, once=once, open_images=open_images))

    def messages(
        self, limit: int | None = None, offset: int = 0, *, roles: Sequence[Role] | Role | None = None,
        metadata: Mapping[str, Any] | None = None, since: datetime | None = None, until: datetime | None = None,
    ) -> list[Message]:
        """Return the messages that pass all filters, oldest first.

        `limit` and `offset` count back from the newest. `metadata` tests equality, or membership in a list.
        `since` and `until` are inclusive.
        """
        return self._driver.run(self._async.messages(
            limit, offset, roles=roles, metadata=metadata, since=since, until=until,
        ))

    def recent(self, limit: int = 10) -> list[Message]:
        """Return the newest `limit` messages, oldest first."""
        return self._driver.run(self._async.recent(limit))

    def transcript(self, limit: int = 10) -> str:
        """Return the newest `limit` messages as text, one line each: who said what."""
        return self._driver.run(self._async.transcript(limit))

    def get(self, id: str) -> Message:
        """Return one message; raises NotFoundError."""
        return self._driver.run(self._async.get(id))

    def system(self) -> Message | None:
        """Return the system message: the one that was set, or else the newest that was added."""
        return self._driver.run(self._async.system())

    def set_system(self, content: str) -> Message:
        """Set the system message, replacing the previous one; limits never evict it."""
        return self._driver.run(self._async.set_system(content))

    def settings(self) -> SessionSettings:
        """Return the session's settings: the stored ones, with those this handle was opened with."""
        return self._driver.run(self._async.settings())

    def configure(
        self, *, max_messages: int | None | UnsetType = UNSET, max_tokens: int | None | UnsetType = UNSET,
        overflow: Overflow | UnsetType = UNSET, keep: float | UnsetType = UNSET,
        retention: Retention | UnsetType = UNSET, ttl: timedelta | None | UnsetType = UNSET,
    ) -> SessionSettings:
        """Change the given settings for every handle; others stay. Returns all settings.

        None removes a limit or the time to live. A lower limit takes effect with the next message. Raises
        InvalidValueError for an invalid value, ConflictError if concurrent changes win every attempt.
        """
        return self._driver.run(self._async.configure(
            max_messages=max_messages, max_tokens=max_tokens, overflow=overflow, keep=keep, retention=retention,
            ttl=ttl,
        ))

    def clear(self, *, keep_system: bool = False) -> None:
        """Delete all messages, the archive and the summary; with `keep_system`, keep the system messages."""
        self._driver.run(self._async.clear(keep_system=keep_system))

    def delete(self, *messages: Message | str) -> int:
        """Delete messages, given as such or by id, in one write; return how many existed.

        Raises InvalidValueError for anything else.
        """
        return self._driver.run(self._async.delete(*messages))

    def pop(self) -> Message | None:
        """Delete the newest message and return it; None if there is none.

        Concurrent calls return different messages. Raises ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.pop())

    def archive(self, *messages: Message | str) -> int:
        """Move messages, given as such or by id, to the archive, in one write; return how many existed.

        They leave the conversation, and recall still finds them. Raises InvalidValueError for anything else,
        ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.archive(*messages))

    def edit(self, message: MessageLike, *, open_images: bool = True) -> Message:
        """Replace the message with the same id, which keeps its place; return the new one.

        A dict without a timestamp keeps the old one. Images are as in `add_many`. Raises NotFoundError if there is no
        such message, InvalidValueError without an id, ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.edit(message, open_images=open_images))

    def replace(
        self, messages: Iterable[MessageLike] | Callable[[list[Message]], Iterable[MessageLike]], *,
        archive: bool = False, open_images: bool = True,
    ) -> list[Message]:
        """Replace all messages by these, or by the result of a function of them, in one write; return the new ones.

        Messages are identified by their ids; unchanged ones are not written. With `archive`, those that are not among
        the new ones move to the archive. On concurrent writes the function is
        called again with the current messages. New image paths are read, unless `open_images` is false; stored
        ones are not. Raises InvalidValueError for duplicate ids, ConflictError if concurrent writes win every
        attempt; the session is then unchanged.
        """
        return self._driver.run(self._async.replace(messages, archive=archive, open_images=open_images))

    def fork(self, name: str, at: str | None = None) -> Session:
        """Copy the session, up to the message `at` or all of it, to a new session beside it.

        The archive, summary and settings are copied too. Raises NotFoundError if there is no such message,
        ConflictError if the new session has messages.
        """
        return Session(self._driver.run(self._async.fork(name, at)), self._driver)

    def prefill(self, messages: Iterable[MessageLike]) -> bool:
        """Add messages if the session has none except system messages; return whether it did."""
        return self._driver.run(self._async.prefill(messages))

    def window(self, max_tokens: int, *, interrupted: str | None = None, partial: bool = False) -> list[Message]:
        """Return the newest messages that fit into `max_tokens`, oldest first.

        Always included are the system messages and the user's last message, and a running summary if there is
        room. Tool calls and their results are never separated: an unanswered call is skipped or, with
        `interrupted`, shown with that text as the missing result. Raises BudgetError if the required messages do
        not fit; with `partial`, they are skipped instead.
        """
        return self._driver.run(self._async.window(max_tokens, interrupted=interrupted, partial=partial))

    def archived(self) -> list[Message]:
        """Return the archived messages, oldest first."""
        return self._driver.run(self._async.archived())

    def summary(self) -> str | None:
        """Return the running summary of evicted messages; None if there is none."""
        return self._driver.run(self._async.summary())

    def info(self) -> SessionInfo | None:
        """Return title, counts, tokens and last activity; None if the session is empty."""
        return self._driver.run(self._async.info())

    def history(self, limit: int | None = None) -> list[Version]:
        """Return the messages that were replaced or deleted, as they were, the last change first.

        They are kept if the memory is opened with `history`, as long as that says.
        """
        return self._driver.run(self._async.history(limit))

    def restore(self) -> int:
        """Bring back the messages, archive, summary and settings that the last clearing or deletion removed.

        Messages that were added since then come after them. Returns how many messages are back, without those that the
        limits of the session leave no room for. Raises NotFoundError if the history knows no clearing
        or deletion, ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.restore())

    def save(self, path: str | PathLike[str], *, plain: bool = False) -> int:
        """Save the session to a JSON file, which is replaced atomically; return the number of messages.

        Includes the archive and the summary. The file of an encrypted memory is encrypted with the same key, unless
        `plain` is true. Raises StorePermissionError or StoreFullError if the file cannot be written.
        """
        return self._driver.run(self._async.save(path, plain=plain))

    def load(self, path: str | PathLike[str]) -> int:
        """Replace the session by a saved one, within its limits; return the number of messages.

        Raises NotFoundError if the file does not exist, InvalidValueError if it is not a saved session,
        DecryptionError if it is encrypted with another key; the session is then unchanged.
        """
        return self._driver.run(self._async.load(path))

    @contextmanager
    def run(self) -> Iterator[Session]:
        """Mark one run of an agent; a single-run session is cleared before and after it."""
        context = self._async.run()
        self._driver.run(context.__aenter__())
        try:
            yield self
        finally:
            self._driver.run(context.__aexit__(None, None, None))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self._driver.run(self._async.__aexit__(*error))


class Sessions:
    """The sessions of one scope; the scope's `session` opens one."""

    def __init__(self, wrapped: AsyncSessions, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of {self.scope.path!r}>'

    def get(self, session: SessionInfo | str) -> SessionInfo:
        """Return title, counts, tokens and last activity of a session of this scope by name, or of a listed one.

        Raises NotFoundError if it is empty or does not exist, InvalidValueError if it is in another scope.
        """
        return self._driver.run(self._async.get(session))

    def delete(self, session: SessionInfo | str) -> bool:
        """Delete a session of this scope by name, or a listed one, with its archive, summary and settings.

        Returns whether it existed. Raises InvalidValueError if it is in another scope.
        """
        return self._driver.run(self._async.delete(session))

    def list(self) -> list[SessionInfo]:
        """List the sessions here and below, with titles, counts, tokens and last activity."""
        return self._driver.run(self._async.list())


class Notes:
    """The notes of one scope: any JSON value under a key, with a description.

    The settings, two limits, are stored with the notes: a write that would exceed them raises LimitError and
    changes nothing.
    """

    def __init__(self, wrapped: AsyncNotes, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of {self.scope.path!r}>'

    def settings(self) -> NoteSettings:
        """Return the limits of this scope's notes."""
        return self._driver.run(self._async.settings())

    def configure(
        self, *, max_notes: int | None | UnsetType = UNSET, max_bytes: int | None | UnsetType = UNSET,
    ) -> NoteSettings:
        """Change the given limits of this scope's notes, for all writers; others stay.

        None removes a limit. Existing notes stay. Returns all settings. Raises InvalidValueError for a limit
        below 1, ConflictError if concurrent changes win every attempt.
        """
        return self._driver.run(self._async.configure(max_notes=max_notes, max_bytes=max_bytes))

    def write(
        self, key: str, value: JSON, *, description: str | None = None, metadata: Mapping[str, Any] | None = None,
        source: str | None = None, created: datetime | None = None, if_version: int | None = None,
    ) -> NoteInfo:
        """Write a value under a key of this scope, replacing the previous one.

        An omitted description or metadata stays unchanged; `source` is the origin of this value. `created` is for a
        note that is older than this store: a copy, or one that was deleted. With `if_version`,
        the note must have that version, 0 for new; otherwise ConflictError is raised, whose `current` is the stored
        version. Without, ConflictError means that concurrent writes won every attempt. Raises LimitError
        if a limit would be exceeded, InvalidValueError if the value is not JSON.
        """
        return self._driver.run(self._async.write(
            key, value, description=description, metadata=metadata, source=source, created=created,
            if_version=if_version,
        ))

    def read(self, key: str) -> JSON:
        """Return the value under a key of this scope; raises NotFoundError."""
        return self._driver.run(self._async.read(key))

    def read_many(self, keys: Sequence[str]) -> dict[str, JSON]:
        """Return the values of those of these keys that exist in this scope."""
        return self._driver.run(self._async.read_many(keys))

    def read_all(self) -> dict[str, JSON]:
        """Return all values of this scope by key, in order of creation."""
        return self._driver.run(self._async.read_all())

    def get(self, key: str) -> Note:
        """Return a note of this scope with its value, description and version; raises NotFoundError."""
        return self._driver.run(self._async.get(key))

    def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete a note of this scope; return whether it existed.

        With `if_version`, a note with another version is not deleted, and ConflictError is raised.
        """
        return self._driver.run(self._async.delete(key, if_version=if_version))

    def rename(self, key: str, to: str, *, if_version: int | None = None) -> NoteInfo:
        """Change the key of a note of this scope.

        Raises NotFoundError if it does not exist, ConflictError if the new key is taken, or if the note has another
        version than `if_version`, if given.
        """
        return self._driver.run(self._async.rename(key, to, if_version=if_version))

    def stale(self, older_than: timedelta) -> list[NoteInfo]:
        """Return the notes of this scope that were last written longer ago than this."""
        return self._driver.run(self._async.stale(older_than))

    def usage(self) -> tuple[int, int]:
        """Return the number of notes of this scope, and the bytes of their values as JSON."""
        return self._driver.run(self._async.usage())

    def clear(self) -> None:
        """Delete all notes of this scope."""
        self._driver.run(self._async.clear())

    def list(self, metadata: Mapping[str, Any] | None = None, *, prefix: str = "") -> list[NoteInfo]:
        """List the notes of this scope without values, in order of creation; those whose key begins with `prefix`."""
        return self._driver.run(self._async.list(metadata, prefix=prefix))


class Memories:
    """The memories of one scope."""

    def __init__(self, wrapped: AsyncMemories, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of {self.scope.path!r}>'

    def add(
        self, text: str, *, id: str | None = None, importance: float = 1.0, metadata: Mapping[str, Any] | None = None,
        source: str | None = None, valid_from: datetime | None = None, valid_to: datetime | None = None,
        created: datetime | None = None, ttl: timedelta | None = None, pinned: bool = False, once: str | None = None,
        duplicates: Duplicates = "keep",
    ) -> MemoryItem:
        """Remember a text in this scope, under a new id or replacing the memory with this id.

        `source` is its origin, `valid_from` and `valid_to` the time in which it is true; with `ttl` it expires.
        `once` is an idempotency id of this call in this scope: a retry within 24 hours changes nothing, and other
        content under the same id raises ConflictError. `duplicates` handles a text that is already remembered:
        "keep" both, "merge" (the old id stays, the old text moves to `data`), "skip" (return the existing
        memory), or "refuse" with a ConflictError. Raises InvalidValueError for a value that cannot be stored.
        """
        return self._driver.run(self._async.add(
            text, id=id, importance=importance, metadata=metadata, source=source, valid_from=valid_from,
            valid_to=valid_to, created=created, ttl=ttl, pinned=pinned, once=once, duplicates=duplicates,
        ))

    def add_many(
        self, items: Iterable[str | MemoryItem], *, once: str | None = None, duplicates: Duplicates = "keep",
    ) -> list[MemoryItem]:
        """Remember texts in this scope, all or none, as `add` does."""
        return self._driver.run(self._async.add_many(items, once=once, duplicates=duplicates))

    def get(self, id: Reference) -> MemoryItem:
        """Return the current memory by its id, a hit or an item, of this scope or below.

        Raises NotFoundError if it does not exist, InvalidValueError if the id is ambiguous.
        """
        return self._driver.run(self._async.get(id))

    def update(
        self, id: Reference, *, text: str | UnsetType = UNSET, importance: float | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET, source: str | None | UnsetType = UNSET,
        valid_from: datetime | None | UnsetType = UNSET, valid_to: datetime | None | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET, pinned: bool | UnsetType = UNSET, if_version: int | None = None,
    ) -> MemoryItem:
        """Change the given fields of a memory of this scope or below; `id` as in `get`; with `ttl` it expires.

        With `if_version`, the memory must have that version. Raises as `get` does, and ConflictError if it has another
        one, whose `current` is the stored version, or if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.update(
            id, text=text, importance=importance, metadata=metadata, source=source, valid_from=valid_from,
            valid_to=valid_to, ttl=ttl, pinned=pinned, if_version=if_version,
        ))

    def delete(self, *ids: Reference, if_version: int | None = None) -> int:
        """Delete memories of this scope or below, each given as in `get`; return how many existed.

        With `if_version`, a memory with another version is not deleted, and ConflictError is raised.
        """
        return self._driver.run(self._async.delete(*ids, if_version=if_version))

    def similar(self, text: str, *, min_score: float = NEAR, k: int = 5) -> list[Hit]:
        """Return the memories of this scope that duplicate `text`, most similar first.

        A score of 1 means the same words in the same order. Texts that differ in a number or a negation are never
        similar.
        """
        return self._driver.run(self._async.similar(text, min_score=min_score, k=k))

    def used(self, *hits: Reference) -> int:
        """Report hits of this scope or below as useful, so that they fade more slowly; return how many still exist.

        Each is given as in `get`, of any kind that recall finds. It also counts as a success in the recall
        metrics.
        """
        return self._driver.run(self._async.used(*hits))

    def fading(
        self, below: float | None = None, *, limit: int = 100, half_life: timedelta | None = None,
    ) -> list[Faded]:
        """Return the memories of this scope that decay, weakest first, or only those weaker than `below`.

        Pinned memories do not decay. Importance halves after each `half_life` without use.
        """
        return self._driver.run(self._async.fading(below, limit=limit, half_life=half_life))

    def decay(self, *, half_life: timedelta | None = None) -> int:
        """Write the decayed importance of the memories of this scope to the store; return how many changed.

        Calling it often or rarely makes no difference. Recall uses the decayed importance in any case;
        `min_importance` filters see the stored one.
        """
        return self._driver.run(self._async.decay(half_life=half_life))

    def archived(self) -> list[MemoryItem]:
        """Return the archived memories of this scope, oldest first."""
        return self._driver.run(self._async.archived())

    def restore(self, id: str, *, used: bool = True) -> MemoryItem:
        """Restore an archived memory of this scope, counted as used now; raises NotFoundError or ConflictError.

        With `used=False` it fades on as if it had never been archived.
        """
        return self._driver.run(self._async.restore(id, used=used))

    def list(self, *, limit: int | None = None, newest: bool = True) -> list[MemoryItem]:
        """Return the memories of this scope, oldest first; with `limit`, only the newest, or else only the oldest."""
        return self._driver.run(self._async.list(limit=limit, newest=newest))


class Facts:
    """The facts of one scope. Queries use indexes, and graph searches are bounded."""

    def __init__(self, wrapped: AsyncFacts, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of {self.scope.path!r}>'

    def add(
        self, subject: str, predicate: str, object: str, *, single: bool = False, valid_from: datetime | None = None,
        valid_to: datetime | None = None, source: str | None = None, confidence: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
    ) -> Fact:
        """Add a fact to this scope, valid from now unless given; return it as stored.

        Adding it again updates it. With `single`, the predicate has one object at a time: the currently valid
        fact ends when this one begins and stays as history. Raises InvalidValueError for invalid names or
        numbers, ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.add(
            subject, predicate, object, single=single, valid_from=valid_from, valid_to=valid_to, source=source,
            confidence=confidence, metadata=metadata,
        ))

    def update(
        self, subject: str, predicate: str, object: str | None = None, *, valid_to: datetime | None = None,
    ) -> int:
        """End the facts of this scope that are valid at `valid_to`, by default now; return how many.

        With `object`, only facts with that object. Ended facts stay as history. Raises ConflictError if
        concurrent writes win every attempt.
        """
        return self._driver.run(self._async.update(subject, predicate, object, valid_to=valid_to))

    def delete(self, subject: str, predicate: str, object: str | None = None) -> int:
        """Delete facts of this scope with their history; return how many."""
        return self._driver.run(self._async.delete(subject, predicate, object))

    def ask(
        self, subject: str | None = None, predicate: str | None = None, object: str | None = None, *,
        as_of: datetime | None = None, history: bool = False, limit: int | None = None,
    ) -> list[Fact]:
        """Return facts of this scope by subject, predicate and object, each optional.

        By default those valid now; with `as_of`, those valid then; with `history`, all. Sorted by start of
        validity; `limit` keeps the first that were added.
        """
        return self._driver.run(self._async.ask(subject, predicate, object, as_of=as_of, history=history, limit=limit))

    def neighbors(
        self, name: str, depth: int = 1, *, predicates: Sequence[str] | str | None = None,
        as_of: datetime | None = None, max_facts: int = MAX_FACTS,
    ) -> Neighborhood:
        """Return everything in this scope that is connected with a name, in either direction, within `depth` steps."""
        return self._driver.run(self._async.neighbors(
            name, depth, predicates=predicates, as_of=as_of, max_facts=max_facts,
        ))

    def path(
        self, start: str, end: str, *, max_depth: int = 6, predicates: Sequence[str] | str | None = None,
        as_of: datetime | None = None, max_facts: int = 10 * MAX_FACTS,
    ) -> list[Fact] | None:
        """Return a shortest path between two names in this scope, in either direction; None if there is none.

        Raises LimitError if it would have to read more than `max_facts` facts.
        """
        return self._driver.run(self._async.path(
            start, end, max_depth=max_depth, predicates=predicates, as_of=as_of, max_facts=max_facts,
        ))

    def graph(self, *, max_facts: int = MAX_FACTS) -> FactGraph:
        """Return the facts of this scope with their history, sorted by start of validity, and how many there are.

        If there are more than `max_facts`, those that were added last.
        """
        return self._driver.run(self._async.graph(max_facts=max_facts))

    def to_networkx(self, *, as_of: datetime | None = None, history: bool = False) -> networkx.MultiDiGraph[str]:
        """Return the facts of this scope as a networkx graph; raises MissingExtraError if networkx is not installed."""
        return self._driver.run(self._async.to_networkx(as_of=as_of, history=history))

    def save_graphml(self, path: str | PathLike[str], *, as_of: datetime | None = None, history: bool = False) -> int:
        """Write the facts of this scope to a GraphML file; return how many. Raises as `to_networkx` does."""
        return self._driver.run(self._async.save_graphml(path, as_of=as_of, history=history))


class State:
    """The state that an application keeps in one scope: checkpoints, cursors, settings; any JSON value under a key.

    Values are found by key, prefix or metadata alone: recall and the context do not see them, and redaction does not
    change them, since they may be serialized data.
    """

    def __init__(self, wrapped: AsyncState, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.scope: ScopePath = wrapped.scope

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of {self.scope.path!r}>'

    def get(self, key: str) -> StateItem | None:
        """Return the value under a key of this scope with its version, or None."""
        return self._driver.run(self._async.get(key))

    def get_many(self, keys: Sequence[str]) -> dict[str, StateItem]:
        """Return the values of those of these keys that exist in this scope."""
        return self._driver.run(self._async.get_many(keys))

    def set(
        self, key: str, value: JSON, *, metadata: Mapping[str, Any] | None = None, ttl: timedelta | None = None,
        if_version: int | None = None,
    ) -> StateItem:
        """Set the value under a key of this scope, with its metadata; with `ttl` it expires.

        With `if_version`, the key must have that version, 0 for none; otherwise ConflictError is raised, whose
        `current` is the stored version. Raises InvalidValueError if the value is not JSON.
        """
        return self._driver.run(self._async.set(key, value, metadata=metadata, ttl=ttl, if_version=if_version))

    def set_many(
        self, values: Mapping[str, JSON], *, metadata: Mapping[str, Any] | None = None, ttl: timedelta | None = None,
        delete: Sequence[str] = (), if_versions: Mapping[str, int] | None = None,
    ) -> None:
        """Set the values under these keys of this scope, and delete others, all or none; `metadata` is for each value.

        With `if_versions`, these of the keys must have these versions, as with `if_version` of `set`; otherwise
        ConflictError is raised. Raises InvalidValueError if a value is not JSON.
        """
        self._driver.run(self._async.set_many(
            values, metadata=metadata, ttl=ttl, delete=delete, if_versions=if_versions,
        ))

    def update(self, key: str, change: Callable[[JSON], JSON]) -> StateItem:
        """Replace the value under a key of this scope by a function of it, which gets None if there is none.

        On concurrent writes the function is called again with the current value; metadata and expiry stay. Raises
        InvalidValueError if the value is not JSON, ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.update(key, change))

    def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete a key of this scope; return whether it existed.

        With `if_version`, a value with another version is not deleted, and ConflictError is raised.
        """
        return self._driver.run(self._async.delete(key, if_version=if_version))

    def clear(self) -> None:
        """Delete all state of this scope."""
        self._driver.run(self._async.clear())

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of this scope that begin with `prefix`, in order of their first writes."""
        return self._driver.run(self._async.keys(prefix))

    def list(
        self, prefix: str = "", *, before: str | None = None, metadata: Mapping[str, Any] | None = None,
        limit: int | None = None, reverse: bool = False, below: bool = False,
    ) -> list[StateItem]:
        """List the values of this scope, in order of their first writes, or with `reverse` newest first.

        Those whose key begins with `prefix`, sorts before `before`, and whose `metadata` are equal, or in a list.
        With `below`, also those of the scopes below, one scope after the other.
        """
        return self._driver.run(self._async.list(
            prefix, before=before, metadata=metadata, limit=limit, reverse=reverse, below=below,
        ))


class Memory:
    """Everything stored at one URL."""

    def __init__(self, wrapped: AsyncMemory, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.url: str = wrapped.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url or 'a store'}>"

    def scope(self, *segments: ScopePath | str) -> Scope:
        """Return a scope; each string is one segment of its path.

        Raises InvalidValueError for a segment that is empty or too long, or has '/' or control characters.
        """
        return Scope(self._async.scope(*segments), self._driver)

    def restricted(
        self, scope: ScopePath | str, rights: Sequence[Right] | Right = ('read', 'write', 'erase'),
    ) -> Memory:
        """Return a memory that is confined to a scope, such as "acme/alice", and those below it, and to some rights.

        Whatever is elsewhere looks as if it did not exist, and writing there raises AccessDeniedError, as does
        anything that the rights do not include, or that concerns the whole store, such as `reembed`. "read" is for
        reading; "write" for adding, changing and deleting single records; "erase" for erasing scopes, clearing and
        deleting sessions, and forgetting by filter; "admin" for the audit log. Closing it leaves the store open.
        Raises InvalidValueError for an unknown right or an empty scope, AccessDeniedError for more than this memory may
        do itself.
        """
        return Memory(self._async.restricted(scope, rights), BorrowedDriver(self._driver))

    def ping(self) -> timedelta:
        """Check that the store answers; return the round-trip time.

        Raises StoreUnavailableError, or another StoreError, if it does not.
        """
        return self._driver.run(self._async.ping())

    def stats(self) -> Stats:
        """Count what is stored: sessions, messages, tokens, memories, notes and facts."""
        return self._driver.run(self._async.stats())

    def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List all scopes that are not empty, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return self._driver.run(self._async.scopes(limit=limit))

    def export_to(
        self, path: FileOrPath, *, format: str | None = None, progress: Callable[[int, int], object] | None = None,
    ) -> Exported:
        """Export everything to a file or folder, as a scope's `export_to` does."""
        return self._driver.run(self._async.export_to(path, format=format, progress=progress))

    def import_from(
        self, path: FileOrPath, *, format: str | None = None, overwrite: bool = False, dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Imported:
        """Import a file, into its original scopes or else into the root, as a scope's `import_from` does."""
        return self._driver.run(self._async.import_from(
            path, format=format, overwrite=overwrite, dry_run=dry_run, progress=progress,
        ))

    def compact(self) -> int:
        """Delete expired records from the store, which reads already hide; return how many."""
        return self._driver.run(self._async.compact())

    def finish_erasure(self, certificate: ErasureCertificate) -> ErasureCertificate:
        """Remove what an erasure could not reach at once, as far as possible; return a new certificate.

        It may take long, and lock the store: on PostgreSQL, tables are rewritten. Raises InvalidValueError for a
        certificate of another store or of a dry run, and for a store on a server; SignatureError for a certificate that
        was changed or not signed here.
        """
        return self._driver.run(self._async.finish_erasure(certificate))

    def reembed(self, embedder: Embedder | str, *, progress: Callable[[int, int], object] | None = None) -> int:
        """Recompute all vectors with another embedder, then switch to it; return the number of texts.

        Recall uses the old vectors until all new ones exist. If interrupted, it resumes when called again.
        `progress` is called with the number of records done and the total. Other processes must then reopen the
        store: their calls raise EmbedderError. Raises EmbedderError if the embedder fails.
        """
        return self._driver.run(self._async.reembed(embedder, progress=progress))

    def warm(self, *segments: ScopePath | str) -> int:
        """Compute and load the index of a scope, so that the first recall is fast.

        Returns the number of searchable texts.
        """
        return self._driver.run(self._async.warm(*segments))

    def reindex(self, *, progress: Callable[[int, int], object] | None = None) -> int:
        """Rebuild the companion index from the records; return the number of texts in it.

        `progress` is called with the number of records done and the total. Raises InvalidValueError if the memory
        was opened without one.
        """
        return self._driver.run(self._async.reindex(progress=progress))

    def rotate(
        self, *, archives: Sequence[str] = (), data_keys: bool = False,
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
        return self._driver.run(self._async.rotate(archives=archives, data_keys=data_keys, progress=progress))

    def acting(self, *, actor: str | None = None, session: str | None = None, address: str | None = None) -> Acting:
        """Return a context manager that sets the actor for the audit log.

        Omitted fields keep their outer values. It applies to the current thread or task, and to tasks that it
        starts. Raises InvalidValueError for an invalid name.
        """
        return self._async.acting(actor=actor, session=session, address=address)

    def reveal(self, text: str) -> str:
        """Return a text with the values that redaction has replaced by hashes, as far as the vault has them.

        Raises InvalidValueError if the memory was opened without a vault, DecryptionError if the vault has another
        key, AccessDeniedError for a restricted memory without the right "admin".
        """
        return self._driver.run(self._async.reveal(text))

    def scan(
        self, *, mend: bool = False, redact: Redacting = None, progress: Callable[[int, int], object] | None = None,
    ) -> Scanned:
        """Find personal data and secrets in all that is stored; with `mend`, redact them, as a scope's `scan` does."""
        return self._driver.run(self._async.scan(mend=mend, redact=redact, progress=progress))

    @property
    def audited(self) -> bool:
        """Whether this memory has an audit log."""
        return self._async.audited

    def audit_trail(
        self, scope: ScopePath | str | None = None, *, since: datetime | None = None, until: datetime | None = None,
        actor: str | None = None, session: str | None = None, address: str | None = None, operation: str | None = None,
        kind: str | None = None, key: str | None = None, flag: str | None = None,
    ) -> list[AuditEntry]:
        """Return audit log entries of a scope, such as "acme/alice", and below, or of all, oldest first.

        `since` and `until` are inclusive. Raises InvalidValueError for an unknown kind or operation, and if the
        memory was opened without audit.
        """
        return self._driver.run(self._async.audit_trail(
            scope, since=since, until=until, actor=actor, session=session, address=address, operation=operation,
            kind=kind, key=key, flag=flag,
        ))

    def audit_page(
        self, scope: ScopePath | str | None = None, *, limit: int = 100, cursor: str | None = None,
        since: datetime | None = None, until: datetime | None = None, actor: str | None = None,
        session: str | None = None, address: str | None = None, operation: str | None = None, kind: str | None = None,
        key: str | None = None, flag: str | None = None,
    ) -> AuditPage:
        """Return the newest entries that `audit_trail` returns, at most `limit`, newest first, without reading all.

        The page's `cursor` requests the next one. Raises InvalidValueError as `audit_trail` does, and for an
        invalid cursor.
        """
        return self._driver.run(self._async.audit_page(
            scope, limit=limit, cursor=cursor, since=since, until=until, actor=actor, session=session, address=address,
            operation=operation, kind=kind, key=key, flag=flag,
        ))

    def audit_verify(
        self, scope: ScopePath | str | None = None, *, checkpoint: Mapping[str, Any] | None = None,
    ) -> AuditVerification:
        """Check the audit log of a scope and below, or all of it: nothing removed, changed, reordered or inserted.

        A `checkpoint` that `audit_checkpoint` returned earlier, and that was kept elsewhere, also shows that no entries
        were cut off at the end. Raises InvalidValueError for something that is not a checkpoint, SignatureError for
        one that was changed, or is not signed although a signing key is given.
        """
        return self._driver.run(self._async.audit_verify(scope, checkpoint=checkpoint))

    def audit_checkpoint(self) -> dict[str, Any]:
        """Return the numbers and links of the last entries of the audit log as a JSON document, to be kept elsewhere.

        It is signed if `mnemic[encryption]` is installed, and has no names. The log itself notes them as well.
        """
        return self._driver.run(self._async.audit_checkpoint())

    def signing_keys(self) -> list[SigningKey]:
        """Return the keys of the audit log and of certificates, the current one first; none before the first use."""
        return self._driver.run(self._async.signing_keys())

    def metrics(self) -> Metrics:
        """Return recall metrics since the memory was opened: hit ratio, uses, scores, drift and latency."""
        return self._driver.run(self._async.metrics())

    def close(self) -> None:
        """Close files, connections and threads; later calls raise ClosedError."""
        self._driver.close(self._async.close())

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Scope:
    """Data of one path of names: a tenant, a user, an agent, a team.

    Reads cover this scope and those below it, writes only this scope; `notes`, `memories`, `facts` and `state`
    are of this scope alone. Each method says what it covers.
    """

    def __init__(self, wrapped: AsyncScope, driver: Driver) -> None:
        self._driver = driver
        self._async = wrapped
        self.path: ScopePath = wrapped.path
        self.sessions: Sessions = Sessions(wrapped.sessions, driver)
        self.notes: Notes = Notes(wrapped.notes, driver)
        self.memories: Memories = Memories(wrapped.memories, driver)
        self.facts: Facts = Facts(wrapped.facts, driver)
        self.state: State = State(wrapped.state, driver)

    def __repr__(self) -> str:
        return f'<{type(self).__name__} {self.path.path!r}>'

    @property
    def now(self) -> datetime:
        """The current time, by the clock that the memory was opened with."""
        return self._async.now

    def scope(self, *segments: ScopePath | str) -> Scope:
        """Return the scope at a path below this one; raises InvalidValueError for an invalid segment."""
        return Scope(self._async.scope(*segments), self._driver)

    def session(
        self, name: SessionInfo | str, *, max_messages: int | None | UnsetType = UNSET,
        max_tokens: int | None | UnsetType = UNSET, overflow: Overflow | UnsetType = UNSET,
        keep: float | UnsetType = UNSET, retention: Retention | UnsetType = UNSET,
        ttl: timedelta | None | UnsetType = UNSET,
    ) -> Session:
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
        return Session(self._async.session(
            name, max_messages=max_messages, max_tokens=max_tokens, overflow=overflow, keep=keep, retention=retention,
            ttl=ttl,
        ), self._driver)

    def remember(
        self, text: str, *, id: str | None = None, importance: float = 1.0, metadata: Mapping[str, Any] | None = None,
        source: str | None = None, valid_from: datetime | None = None, valid_to: datetime | None = None,
        created: datetime | None = None, ttl: timedelta | None = None, pinned: bool = False, once: str | None = None,
        duplicates: Duplicates = "keep",
    ) -> MemoryItem:
        """Remember a text in this scope, replacing the text with the same `id`; shortcut for `memories.add`."""
        return self._driver.run(self._async.remember(
            text, id=id, importance=importance, metadata=metadata, source=source, valid_from=valid_from,
            valid_to=valid_to, created=created, ttl=ttl, pinned=pinned, once=once, duplicates=duplicates,
        ))

    def remember_many(
        self, items: Iterable[str | MemoryItem], *, once: str | None = None, duplicates: Duplicates = "keep",
    ) -> list[MemoryItem]:
        """Remember texts in this scope, all or none; shortcut for `memories.add_many`."""
        return self._driver.run(self._async.remember_many(items, once=once, duplicates=duplicates))

    def recall(
        self, query: str, k: int = 5, *, kinds: Sequence[str] | str | None = None,
        metadata: Mapping[str, Any] | None = None, roles: Sequence[Role] | Role | None = None,
        since: datetime | None = None, until: datetime | None = None, min_importance: float | None = None,
        min_score: float | None = None, as_of: datetime | None = None, neighbors: int = 0, diverse: bool = True,
        traffic: bool = False, exclude: Sequence[Reference] = (), signals: Sequence[str] | str | None = None,
        weights: Mapping[str, float] | None = None, uses: bool = True,
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
        return self._driver.run(self._async.recall(
            query, k, kinds=kinds, metadata=metadata, roles=roles, since=since, until=until,
            min_importance=min_importance, min_score=min_score, as_of=as_of, neighbors=neighbors, diverse=diverse,
            traffic=traffic, exclude=exclude, signals=signals, weights=weights, uses=uses,
        ))

    def get(self, item: Reference) -> Item:
        """Return the current message, memory, note or fact, here or below, by id or hit.

        Raises NotFoundError if it does not exist, InvalidValueError if the id is ambiguous.
        """
        return self._driver.run(self._async.get(item))

    def update(
        self, item: Reference, *, importance: float | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET, pinned: bool | UnsetType = UNSET,
        if_version: int | None = None,
    ) -> Item:
        """Change the importance, metadata or pin of anything that recall finds here or below.

        `memories.update` changes more fields of a memory. Raises NotFoundError if it does not exist, ConflictError if
        it has another version than `if_version`, if given, or if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.update(
            item, importance=importance, metadata=metadata, pinned=pinned, if_version=if_version,
        ))

    def history(self, item: Reference | Version, *, kind: str | None = None) -> list[Version]:
        """Return the versions of a message, memory, note or fact, here or below, newest first; also of a deleted one.

        `kind` tells apart items that have, or had, the same id, such as a "note" and a "memory". Earlier versions are
        kept if the memory is opened with `history`, as long as that says. Raises NotFoundError if there is none,
        InvalidValueError if the id is ambiguous.
        """
        return self._driver.run(self._async.history(item, kind=kind))

    def restore(
        self, item: Reference | Version, version: Version | int | None = None, *, kind: str | None = None,
    ) -> Item:
        """Write an earlier version of an item, here or below, again, and return the item; also of a deleted one.

        Without a `version`, that is the one before the current one. `kind` tells apart items that have, or had, the
        same id. It is a change like any other, and has its place in the history; a deleted message comes back at the
        end of its session. Raises NotFoundError if there is no such version, InvalidValueError if the id is ambiguous,
        ConflictError if concurrent writes win every attempt.
        """
        return self._driver.run(self._async.restore(item, version, kind=kind))

    def as_of(self, moment: datetime) -> Scope:
        """Return this scope, with those below it, as it was at a moment, for reading: also lists, recall and windows.

        What it reads is held in memory. What has expired since, and the uses and settings of then, are not known.
        Raises InvalidValueError if the moment is not within the history; later writes raise StorePermissionError.
        """
        return Scope(self._driver.run(self._async.as_of(moment)), self._driver)

    def used(self, *hits: Reference) -> int:
        """Report hits, here or below, as useful, so that they fade more slowly; return how many still exist.

        It also counts as a success in the recall metrics.
        """
        return self._driver.run(self._async.used(*hits))

    def forget(
        self, *items: Reference, older_than: timedelta | None = None, faded_below: float | None = None,
        half_life: timedelta | None = None, metadata: Mapping[str, Any] | None = None, source: str | None = None,
        since: datetime | None = None, until: datetime | None = None, kinds: Sequence[str] | str | None = None,
        archive: str | bool = False, dry_run: bool = False,
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
        return self._driver.run(self._async.forget(
            *items, older_than=older_than, faded_below=faded_below, half_life=half_life, metadata=metadata,
            source=source, since=since, until=until, kinds=kinds, archive=archive, dry_run=dry_run,
        ))

    def context(
        self, query: str | None = None, max_tokens: int = 4000, *, session: str | None = None, share: float = 0.5,
        k: int = 40, min_score: float | None = None, kinds: Sequence[str] | str | None = None,
        metadata: Mapping[str, Any] | None = None, roles: Sequence[Role] | Role | None = None,
        since: datetime | None = None, until: datetime | None = None, min_importance: float | None = None,
        as_of: datetime | None = None, exclude: Sequence[Reference] = (),
    ) -> Context:
        """Build a block for a prompt, of at most `max_tokens`, from what is here and below.

        It has, oldest first and without repetition: the system message and running summary of the `session`, up
        to `k` recalled hits for the query (by default the user's last message), and the session's newest turns.
        Recalled text is quoted in a user message, since anyone may have written it. `share` of the budget is for
        recall; what it does not use goes to older turns. If the best hit is too long for it, its text is cut.
        `min_score`, `exclude` and the filters are those of `recall`.
        Raises BudgetError if the system message and the last turn do not fit.
        """
        return self._driver.run(self._async.context(
            query, max_tokens, session=session, share=share, k=k, min_score=min_score, kinds=kinds, metadata=metadata,
            roles=roles, since=since, until=until, min_importance=min_importance, as_of=as_of, exclude=exclude,
        ))

    def stats(self) -> Stats:
        """Count what is stored here and below: sessions, messages, tokens, memories, notes and facts."""
        return self._driver.run(self._async.stats())

    def scopes(self, *, limit: int | None = None) -> list[Stats]:
        """List the non-empty scopes here and below, in order of their paths, each with its own counts.

        A session counts for the scope that it was opened in.
        """
        return self._driver.run(self._async.scopes(limit=limit))

    def export_to(
        self, path: FileOrPath, *, format: str | None = None, progress: Callable[[int, int], object] | None = None,
    ) -> Exported:
        """Export everything here and below to a file, which is replaced atomically, or a new folder.

        The format is "jsonl" (lossless, for `import_from`), "markdown" (a folder to read) or "csv" (a table); without
        one, the ending of the file's name, .jsonl or .csv, tells it, and an open file gets "jsonl". Vectors are not
        exported, since they can be recomputed. The file is not encrypted, even if the store is. `progress` is called
        with the number of records done and the total. Raises InvalidValueError if the format cannot be told,
        StorePermissionError or StoreFullError if the file cannot be written.
        """
        return self._driver.run(self._async.export_to(path, format=format, progress=progress))

    def to_pandas(self, kinds: Sequence[str] | str | None = None) -> pandas.DataFrame:
        """Return messages, memories, notes, facts, summaries and titles here and below as a table, a row each.

        `kinds` restricts it. Raises MissingExtraError if pandas is not installed, InvalidValueError for an unknown
        kind.
        """
        return self._driver.run(self._async.to_pandas(kinds))

    def import_from(
        self, path: FileOrPath, *, format: str | None = None, overwrite: bool = False, dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Imported:
        """Import a file into this scope; existing records are kept.

        The format is found from the content unless `format` names it: a file that `export_to` wrote ("mnemic"), or
        an export of another tool, as the guide to import and export lists them. The whole file is validated before
        anything is written; with `dry_run` nothing is. `progress` is called with how much is done and the total.
        Raises InvalidValueError, which says where, if the file is not valid, ConflictError if a record exists with
        different content, unless `overwrite` is true; of another tool's export it is reported as skipped instead.
        """
        return self._driver.run(self._async.import_from(
            path, format=format, overwrite=overwrite, dry_run=dry_run, progress=progress,
        ))

    def reveal(self, text: str) -> str:
        """Return a text with the values that redaction has replaced by hashes, as far as the vault has them here.

        Raises as `Memory.reveal` does.
        """
        return self._driver.run(self._async.reveal(text))

    def scan(
        self, *, mend: bool = False, redact: Redacting = None, progress: Callable[[int, int], object] | None = None,
    ) -> Scanned:
        """Find personal data and secrets in what is stored here and below; with `mend`, redact them in place.

        It looks for what the memory redacts, or for what `redact` says if the memory does not redact, by default for
        all known types. Others may write meanwhile. If interrupted, it resumes when called again. `progress` is called
        with the number of records done and the total. Raises InvalidValueError for another redaction than the memory's.
        """
        return self._driver.run(self._async.scan(mend=mend, redact=redact, progress=progress))

    def erase(
        self, *, dry_run: bool = False, archives: Sequence[str] = (), pseudonym: str | None = None,
        rebuild: Rebuild | None = None, names: Sequence[str] = (), keep_audit_names: bool = False,
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
        return self._driver.run(self._async.erase(
            dry_run=dry_run, archives=archives, pseudonym=pseudonym, rebuild=rebuild, names=names,
            keep_audit_names=keep_audit_names,
        ))

    def subject_export(self, path: str | PathLike[str]) -> SubjectExport:
        """Write everything about the subject of this scope to a .zip, for people and for programs, replaced atomically.

        It has all records here and below, as text to read and as `export_to` writes them, records elsewhere that were
        derived from them, the earlier versions of both, and the audit log. It is not encrypted. Raises NotFoundError if
        there is nothing, StorePermissionError or StoreFullError if the file cannot be written.
        """
        return self._driver.run(self._async.subject_export(path))

    def hold(self, reason: str, *, until: datetime | None = None) -> Hold:
        """Put everything here and below under a legal hold: nothing is deleted, evicted or expires until its release.

        Calls that delete raise HeldError; limits and times to live are suspended. It ends at `until`, if given. When it
        returns, every process knows of it. Raises InvalidValueError without a reason.
        """
        return self._driver.run(self._async.hold(reason, until=until))

    def holds(self) -> list[Hold]:
        """Return the holds in force here, above or below, oldest first."""
        return self._driver.run(self._async.holds())

    def release(self, hold: Hold | str) -> Hold:
        """End a hold on this scope or below, given as such or by its id; return it.

        What would have expired meanwhile expires now. Raises NotFoundError if there is no such hold.
        """
        return self._driver.run(self._async.release(hold))



def open(
    url: str, *, tokens: Tokens = DEFAULT_ENCODING, embedder: Embedder | str | None = AUTO, index: Indexing = None,
    encryption_key: EncryptionKeys | None = None, audit: Auditing = None,
    signing_key: SigningKeys | None = None, redact: Redacting = None,
    history: timedelta | bool | Literal["recorded"] | None = None, index_bytes: int = INDEX_BYTES,
    clock: Callable[[], datetime] | None = None,
) -> Memory:
    """Open the memory at a URL, such as `sqlite:///agent.db` or `memory://`.

    `tokens` selects the token counter, `embedder` the vectors: an Embedder or its name; "auto" is the one that made
    the store's vectors, None is keyword search only. `index` is the URL of a companion index for recall, or a
    LangChain vector store.
    `encryption_key` encrypts all content: 32 bytes, a Fernet key, "file:PATH", "env:NAME", a `MasterKey`, a list of
    these whose first encrypts, or an `Encryption`. `audit` logs all changes: True for the same store, another store
    or its URL, or an `Audit`. `signing_key` signs the audit log and certificates: a `SigningKey`, 32 bytes,
    "file:PATH", "env:NAME", or a list whose first key signs; None is a key that is kept in the store. `redact`
    replaces personal data and secrets before they are stored: True for all known types, or a `Redaction`. `history`
    is how long versions that are replaced or deleted are kept, for `history`, `restore` and `as_of` of a scope;
    with True, as long as before, or 30 days in a store without a history; with "recorded", only if it has one.
    `index_bytes` bounds the memory of all cached indexes together, except for a single larger one. `clock` is a
    function that returns the current time, for tests that move it; by default the system's. Raises
    InvalidValueError for a bad URL or key, UnknownSchemeError, MissingExtraError, EmbedderError if the store's
    vectors have another embedder, or a StoreError if the store cannot be opened, such as DecryptionError with a
    wrong key.
    """
    _, backend = registry.find(url)
    inline = backend.inline and index is None and logs_inline(audit, redact)
    driver: Driver = Inline() if inline else Portal()
    try:
        opening = open_async(
            url, tokens=tokens, embedder=embedder, index=index, encryption_key=encryption_key, audit=audit,
            signing_key=signing_key, redact=redact, history=history, index_bytes=index_bytes, clock=clock,
        )
        memory = driver.run(opening._opened())
        driver.close_when_dropped(memory.close)
        return Memory(memory, driver)
    except BaseException:
        driver.close()
        raise


def copy(
    source: str, target: str, *, scope: ScopePath | str | None = None, reembed: bool = False, merge: bool = False,
    source_key: EncryptionKeys | None = None, target_key: EncryptionKeys | None = None, redact: Redacting = None,
    progress: Callable[[int, int], object] | None = None,
) -> Copied:
    """Copy everything at one URL, or one scope of it, to another URL, and verify it.

    If interrupted, call it again: it resumes. Vectors are copied; EmbedderError is raised if the target has another
    embedder, unless `reembed` recomputes them. A target stream with records that the source does not have raises
    ConflictError, unless `merge` is true. `source_key` decrypts the source, `target_key` encrypts the target; with
    neither, ciphertext is copied as it is. `redact` replaces personal data and secrets in the copy, as `open` does;
    without a vault. `progress` is called with the number of records done and the total. Raises NotFoundError if the
    source does not exist or has nothing to copy, DecryptionError if a key is missing or wrong, StoreError if the
    verification fails.
    """
    inline = all(registry.find(url)[1].inline for url in (source, target))
    driver: Driver = Inline() if inline else Portal()
    try:
        return driver.run(copy_async(
            source, target, scope=scope, reembed=reembed, merge=merge, source_key=source_key, target_key=target_key,
            redact=redact, progress=progress,
        ))
    finally:
        driver.close()
