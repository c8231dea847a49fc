"""The kinds of records, and how layers and features treat each of them.

A new kind is added to `KINDS`. One that is not there is treated as the defaults of `Kind` say: as something that a user
has written.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Access: TypeAlias = Literal["open", "read", "purge", "none"]
"""Operations of a restricted memory on such records: all that its rights allow; read and purge; purge alone; none."""
Erasing: TypeAlias = Literal["counted", "uncounted", "found", "apart", "kept"]
"""The treatment by an erasure: such records are deleted and counted; deleted; deleted where a stream of them is found;
deleted in a step of its own; kept."""

MESSAGE = "message"
"""A message in a session."""
ARCHIVED = "archived"
"""A message moved to the session's archive by a limit."""
SUMMARY = "summary"
"""The running summary of a session."""
TITLE = "title"
"""The title of a session."""
MEMORY = "memory"
"""A memory."""
NOTE = "note"
"""A note."""
FACT = "fact"
"""A fact."""
STATE = "state"
"""A value of an application, which is found by its key alone."""
PRUNED = "pruned"
"""An archived memory: it has no text, so recall does not find it."""
HISTORY = "memory-history"
"""An event of a memory that was changed or deleted through mem0's API, without its text."""
JOURNAL = "journal"
"""A journal entry of an agent's write."""
PROGRESS = "progress"
"""How far a learner has processed a session."""
LEASE = "lease"
"""A lease: the exclusive right of one writer to shrink a session."""
GUARD = "fact-guard"
"""A record through which concurrent writers of a single-valued predicate conflict."""
VAULT = "vault"
"""The encrypted value behind a hash that redaction has put in its place."""
ONCE_KIND = "once"
"""Kind of the records of write ids (idempotency); scans return them only if they name the kind."""
VERSION = "version"
"""Kind of the records of earlier versions (history); scans return them only if they name the kind."""
ERASURE_KIND = "erasure"
"""Kind of the record, in a scope that is being erased, that says so until it is done."""
EMBEDDER_KIND = "embedder"
"""Kind of the record, at the root, that identifies the embedder of the stored vectors."""
API_KEY_KIND = "api-key"
"""Kind of the records, at the root, of the API keys of a server."""
HOLD_KIND = "hold"
"""Kind of the records, at the root, of legal holds."""
SIGNING_KIND = "signing-key"
"""Kind of the records, at the root, of the signing keys that a store keeps."""
AUDIT_KIND = "audit"
"""Kind of audit log entries; append-only."""
CHAINS_KIND = "audit-chains"
"""Kind of the entries, at the root, of the register of audit chains; append-only."""
ENCRYPTION_KIND = "encryption"
"""Kind of the records, at the root, that mark a store as encrypted, and hold its wrapped keys."""
FENCE_KIND = "key-fence"
"""Kind of a stream without records in each scope of an encrypted store, whose settings name the current data key."""
INDEXED = "indexed"
"""Kind of the records that say which documents of a LangChain vector store another record of their scope has."""
INDEX_POSITION = "index-position"
"""Kind of the records that say how far a LangChain vector store has followed the streams of their scope."""
CLIENT_EMBEDDER, CLIENT_ENCRYPTION = "client-embedder", "client-encryption"
"""Kinds, on a server, of the records EMBEDDER_KIND and ENCRYPTION_KIND of a client's own layers."""
CLIENT_FENCE, CLIENT_ROOT_FENCE = "client-key-fence", "client-root-fence"
"""Kinds, on a server, of the streams FENCE_KIND of a client: in its scope, and that of the root."""


class Kind(Struct, frozen=True, kw_only=True):
    """How layers and features treat records of a kind."""

    recalled: bool = False
    """Has a text or a title, which recall searches."""
    of_session: bool = False
    """Is in a session's own scope."""
    versioned: bool = False
    """A history keeps its earlier versions."""
    written: bool = True
    """Holds what users write: redaction covers it, and `forget` can delete it."""
    counted: bool = True
    """Is counted as a record by `mnemic doctor`."""
    audited: bool = True
    """The audit log can be asked for its changes."""
    held: bool = True
    """Is not deleted under a legal hold; the others hold nothing about anyone."""
    exported: bool = True
    """Is exported and imported."""
    listed: bool = True
    """Is in scans and lists of streams that name no kinds."""
    access: Access = "open"
    erasing: Erasing = "counted"


KINDS: dict[str, Kind] = {
    MESSAGE: Kind(recalled=True, of_session=True, versioned=True),
    ARCHIVED: Kind(recalled=True, of_session=True, versioned=True),
    SUMMARY: Kind(recalled=True, of_session=True, versioned=True),
    TITLE: Kind(recalled=True, of_session=True, versioned=True),
    MEMORY: Kind(recalled=True, versioned=True),
    NOTE: Kind(recalled=True, versioned=True),
    FACT: Kind(recalled=True, versioned=True),
    STATE: Kind(written=False),
    PRUNED: Kind(versioned=True),
    HISTORY: Kind(),
    JOURNAL: Kind(),
    PROGRESS: Kind(of_session=True, counted=False),
    LEASE: Kind(of_session=True, written=False, counted=False, held=False, exported=False),
    GUARD: Kind(written=False, counted=False, held=False),
    VAULT: Kind(written=False, audited=False, access="purge", erasing="uncounted"),
    ONCE_KIND: Kind(
        written=False, counted=False, audited=False, held=False, exported=False, listed=False, access="purge",
        erasing="uncounted",
    ),
    VERSION: Kind(
        written=False, counted=False, audited=False, exported=False, listed=False, access="read", erasing="uncounted"
    ),
    ERASURE_KIND: Kind(written=False, counted=False, audited=False, held=False, exported=False, erasing="apart"),
    EMBEDDER_KIND: Kind(written=False, counted=False, exported=False, access="none", erasing="found"),
    API_KEY_KIND: Kind(written=False, counted=False, exported=False, access="none", erasing="kept"),
    HOLD_KIND: Kind(written=False, counted=False, held=False, exported=False, access="none", erasing="kept"),
    SIGNING_KIND: Kind(written=False, counted=False, audited=False, exported=False, access="none", erasing="kept"),
    AUDIT_KIND: Kind(written=False, audited=False, exported=False, access="none", erasing="kept"),
    CHAINS_KIND: Kind(written=False, counted=False, audited=False, exported=False, access="none", erasing="kept"),
    ENCRYPTION_KIND: Kind(written=False, counted=False, audited=False, exported=False, access="none", erasing="apart"),
    FENCE_KIND: Kind(written=False, counted=False, audited=False, exported=False, access="none", erasing="found"),
    INDEXED: Kind(
        written=False, counted=False, audited=False, held=False, exported=False, listed=False, erasing="kept"
    ),
    INDEX_POSITION: Kind(
        written=False, counted=False, audited=False, held=False, exported=False, listed=False, erasing="kept"
    ),
    CLIENT_EMBEDDER: Kind(written=False, counted=False, audited=False, erasing="found"),
    CLIENT_ENCRYPTION: Kind(written=False, counted=False, audited=False, erasing="found"),
    CLIENT_FENCE: Kind(written=False, counted=False, audited=False, held=False, erasing="found"),
    CLIENT_ROOT_FENCE: Kind(written=False, counted=False, audited=False, held=False, erasing="found"),
}  # fmt: skip

AUDIT_KINDS = (AUDIT_KIND, CHAINS_KIND)
"""Kinds of the audit log, which have no text."""
RECALLED = tuple(name for name, kind in KINDS.items() if kind.recalled)
"""Kinds with a text or a title, which recall searches."""
OF_SESSIONS = tuple(name for name, kind in KINDS.items() if kind.of_session)
"""Kinds in a session's own scope."""
WRITTEN = tuple(name for name, kind in KINDS.items() if kind.written)
"""Kinds with what users write."""
NOT_WRITTEN = frozenset(KINDS).difference(WRITTEN)
"""Kinds of internal records and of state, which redaction and `forget` leave as they are."""
AUDITED = tuple(name for name, kind in KINDS.items() if kind.audited)
"""Kinds whose changes are audited."""
UNLISTED = tuple(name for name, kind in KINDS.items() if not kind.listed)
"""Kinds that scans and lists of streams leave out unless they name them."""
KEPT_BY_ERASURE = tuple(name for name, kind in KINDS.items() if kind.erasing == "kept")
"""Kinds that an erasure keeps: keys, what was done, and holds; encrypted with keys of the store's own."""
