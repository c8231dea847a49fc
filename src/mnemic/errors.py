"""Every error that Mnemic raises, in one tree.

MnemicError
├── InvalidValueError (ValueError)          a value that cannot be stored or asked for
│   ├── TooLargeError                       a record over the size limit
│   └── UnknownSchemeError                  a URL whose scheme no installed back-end serves
├── NotFoundError (LookupError)             a key that is not there
├── ConflictError                           someone else wrote first, or the key exists already
│   └── SettingsChangedError                a stream has other settings than the writer knew
├── LimitError                              a write that would leave a stream over its limit
├── BudgetError (ValueError)                a token budget too small for what must be in it
├── EmbedderError                           an embedder that failed, or is not the one of the stored vectors
├── MissingExtraError (ImportError)         an optional dependency is not installed
├── EventLoopError (RuntimeError)           a call on an event loop that cannot serve it
├── ClosedError (RuntimeError)              use after close
└── StoreError                              the back-end failed
    ├── UnreadableStoreError                not a database of ours, or a damaged one
    ├── NewerSchemaError                    written by a newer version of Mnemic
    ├── DecryptionError                     another key's, not encrypted, changed, or moved
    ├── AuditError                          the audit trail cannot be written
    ├── StorePermissionError (PermissionError)  the back-end may not be read or written
    ├── StoreFullError (OSError)            no space left
    ├── StoreBusyError (TimeoutError)       locked by someone else for too long
    └── StoreUnavailableError (ConnectionError)  cannot be reached

Driver errors never leave a back-end: each is mapped onto this tree where it is caught.
"""

from __future__ import annotations

__all__ = [
    "AuditError",
    "BudgetError",
    "ClosedError",
    "ConflictError",
    "DecryptionError",
    "EmbedderError",
    "EventLoopError",
    "InvalidValueError",
    "LimitError",
    "MissingExtraError",
    "MnemicError",
    "NewerSchemaError",
    "NotFoundError",
    "SettingsChangedError",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StorePermissionError",
    "StoreUnavailableError",
    "TooLargeError",
    "UnknownSchemeError",
    "UnreadableStoreError",
]


class MnemicError(Exception):
    """The root of every error that Mnemic raises."""


class InvalidValueError(MnemicError, ValueError):
    """A value that cannot be stored or asked for; the message names the field and the value."""


class TooLargeError(InvalidValueError):
    """A record over the size limit."""


class UnknownSchemeError(InvalidValueError):
    """A store URL whose scheme no installed back-end serves, or that two of them claim."""


class NotFoundError(MnemicError, LookupError):
    """A key that is not there."""


class ConflictError(MnemicError):
    """The record, or the stream, is no longer at the version that the writer expected."""

    def __init__(self, message: str, *, key: str | None = None, current: int = 0) -> None:
        """Take the version that is stored now as `current`, 0 if there is none."""
        super().__init__(message)
        self.key = key
        self.current = current


class SettingsChangedError(ConflictError):
    """The stream has other settings than those that the writer knew; `settings` are its own."""

    def __init__(self, message: str, *, settings: str | None) -> None:
        """Take what the stream has as `settings`, None if it has none."""
        super().__init__(message)
        self.settings = settings


class LimitError(MnemicError):
    """A write that would leave a stream over its limit; nothing of it was stored."""

    def __init__(self, message: str, *, count: int, weight: int) -> None:
        """Take what the stream would have held as `count` and `weight`."""
        super().__init__(message)
        self.count = count
        self.weight = weight


class BudgetError(MnemicError, ValueError):
    """A token budget too small for the system message and the current turn."""


class EmbedderError(MnemicError):
    """An embedder failed, gave vectors of another shape, or is not the one that made the stored vectors."""


class MissingExtraError(MnemicError, ImportError):
    """An optional dependency is not installed; the message says which command installs it."""


class EventLoopError(MnemicError, RuntimeError):
    """A call was made on an event loop that cannot serve it; the message says which one can."""


class ClosedError(MnemicError, RuntimeError):
    """The memory or store was used after it was closed."""


class StoreError(MnemicError):
    """The back-end failed; the message names the store's URL without its password."""


class UnreadableStoreError(StoreError):
    """The URL leads to something that is not a store of ours, or to a damaged one."""


class NewerSchemaError(StoreError):
    """The store was written by a newer version of Mnemic than this one."""


class DecryptionError(StoreError):
    """What is stored is of a key that was not given, is not encrypted, was changed, or was moved."""


class AuditError(StoreError):
    """The audit trail cannot be written; the message says whether the change itself was made."""


class StorePermissionError(StoreError, PermissionError):
    """The back-end may not be read or written by this process."""


class StoreFullError(StoreError, OSError):
    """The back-end has no space left; what was stored before is still there."""


class StoreBusyError(StoreError, TimeoutError):
    """The back-end was locked by someone else for longer than the busy timeout."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The back-end cannot be reached."""
