"""Every error that Mnemic raises, in one tree.

    MnemicError
    ├── InvalidValueError (ValueError)          a value that cannot be stored or asked for
    │   ├── TooLargeError                       a record over the size limit
    │   └── UnknownSchemeError                  a URL whose scheme no installed back-end serves
    ├── NotFoundError (LookupError)             a key, session or file that does not exist
    ├── ConflictError                           someone else wrote first, or the key exists already
    │   └── SettingsChangedError                the settings differ from those that the writer knew
    ├── LimitError                              a write that would leave a stream over its limit
    ├── BudgetError (ValueError)                a token budget too small for system message and turn
    ├── SignatureError (ValueError)             a signed document that was changed, or whose key is not trusted
    ├── EmbedderError                           an embedder that failed, or differs from that of the store
    ├── MissingExtraError (ImportError)         an optional dependency is not installed
    ├── EventLoopError (RuntimeError)           a call on an event loop that cannot serve it
    ├── ClosedError (RuntimeError)              use after close
    └── StoreError                              the back-end failed
        ├── UnreadableStoreError                not a Mnemic database, or a damaged one
        ├── NewerSchemaError                    written by a newer version of Mnemic
        ├── DecryptionError                     unknown key, not encrypted, modified or moved
        ├── AuditError                          the audit trail cannot be written
        ├── StorePermissionError (PermissionError)  the back-end may not be read or written
        │   ├── AccessDeniedError               not allowed by the scope or rights of a restricted memory
        │   └── HeldError                       a deletion that a legal hold forbids
        ├── StoreFullError (OSError)            no space left
        ├── StoreBusyError (TimeoutError)       locked by someone else for too long
        └── StoreUnavailableError (ConnectionError)  cannot be reached

Driver errors never leave a back-end: each is mapped onto this tree where it is caught. Every error says whether the
same call may succeed later (`retry`) and whether its change may have been made all the same (`unsure`).
"""

from __future__ import annotations

__all__ = [
    "AccessDeniedError", "AuditError", "BudgetError", "ClosedError", "ConflictError", "DecryptionError",
    "EmbedderError", "EventLoopError", "HeldError", "InvalidValueError", "LimitError", "MissingExtraError",
    "MnemicError", "NewerSchemaError", "NotFoundError", "SettingsChangedError", "SignatureError", "StoreBusyError",
    "StoreError", "StoreFullError", "StorePermissionError", "StoreUnavailableError", "TooLargeError",
    "UnknownSchemeError", "UnreadableStoreError",
]  # fmt: skip


class MnemicError(Exception):
    """The root of every error that Mnemic raises."""

    retry: bool = False
    """Whether the same call can succeed later, without anyone having changed it or the store's settings."""
    unsure: bool = False
    """Whether a change may have been made all the same; with an id (`once=`) it can be repeated, and is made once."""


class InvalidValueError(MnemicError, ValueError):
    """A value that cannot be stored or asked for; the message names the field and the value."""


class TooLargeError(InvalidValueError):
    """A record over the size limit."""


class UnknownSchemeError(InvalidValueError):
    """A store URL whose scheme no installed back-end serves, or more than one does."""


class NotFoundError(MnemicError, LookupError):
    """The key, id, session, file or scope does not exist."""


class ConflictError(MnemicError):
    """The record or stream is not at the version that the writer expected: someone else wrote first."""

    def __init__(self, message: str, *, key: str | None = None, current: int = 0, retry: bool = False) -> None:
        """Set `current` to the version stored now, 0 if there is none; `retry` if no version was expected."""
        super().__init__(message)
        self.retry = retry
        self.key = key
        self.current = current


class SettingsChangedError(ConflictError):
    """The stream's settings differ from those that the writer knew; `settings` has the stored ones."""

    def __init__(self, message: str, *, settings: str | None) -> None:
        """Set `settings` to the stored settings, None if there are none."""
        super().__init__(message)
        self.settings = settings


class LimitError(MnemicError):
    """The write would exceed a limit of the stream; nothing was stored."""

    def __init__(self, message: str, *, count: int, weight: int) -> None:
        """Set `count` and `weight` to the totals that the stream would have had."""
        super().__init__(message)
        self.count = count
        self.weight = weight


class BudgetError(MnemicError, ValueError):
    """The token budget is too small for the system message and the current turn."""


class SignatureError(MnemicError, ValueError):
    """A document was changed after it was signed, was not signed, or was signed with a key that is not trusted."""


class EmbedderError(MnemicError):
    """An embedder failed, returned vectors of the wrong shape, or differs from the one of the stored vectors."""


class MissingExtraError(MnemicError, ImportError):
    """An optional dependency is not installed; the message has the command that installs it."""


class EventLoopError(MnemicError, RuntimeError):
    """A call on an event loop that cannot serve it; the message says which loop can."""


class ClosedError(MnemicError, RuntimeError):
    """The memory or store was used after it was closed."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        """Set `unsure` if it was closed during the call."""
        super().__init__(message)
        self.unsure = unsure


class StoreError(MnemicError):
    """The back-end failed; the message has the store's URL without its password."""

    def __init__(self, message: str, *, retry: bool | None = None, unsure: bool | None = None) -> None:
        """Set `retry` and `unsure` if they differ from those of the class."""
        super().__init__(message)
        if retry is not None:
            self.retry = retry
        if unsure is not None:
            self.unsure = unsure


class UnreadableStoreError(StoreError):
    """Not a Mnemic store, or a damaged one."""

    def __init__(
        self,
        message: str,
        *,
        stream: tuple[str, str] | None = None,
        retry: bool | None = None,
        unsure: bool | None = None,
    ) -> None:
        """Set `stream` to scope and kind of a stream whose state is damaged; without a kind, all of the scope are."""
        super().__init__(message, retry=retry, unsure=unsure)
        self.stream = stream


class NewerSchemaError(StoreError):
    """The store was written by a newer version of Mnemic than this one."""


class DecryptionError(StoreError):
    """Stored data has an unknown key, is not encrypted, or was modified or moved."""


class AuditError(StoreError):
    """The audit log cannot be written; the message says whether the change itself was made."""


class StorePermissionError(StoreError, PermissionError):
    """No permission to read or write the back-end."""


class AccessDeniedError(StorePermissionError):
    """The scope or the rights of a restricted memory, or of a key, do not allow it."""


class HeldError(StorePermissionError):
    """A legal hold forbids the deletion; the message names the hold. Nothing was changed."""


class StoreFullError(StoreError, OSError):
    """The back-end has no space left; earlier data is intact."""


class StoreBusyError(StoreError, TimeoutError):
    """The back-end was locked, busy or throttled for longer than the timeout."""

    retry: bool = True


class StoreUnavailableError(StoreError, ConnectionError):
    """The back-end cannot be reached, or did not answer before the deadline.

    It is `unsure` unless nothing was sent, or nothing that changes anything.
    """

    retry: bool = True
    unsure: bool = True
