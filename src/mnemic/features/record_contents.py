"""Checks that a record holds what its kind says, before it is imported or shown beside others."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from ..checks import check_text
from ..errors import InvalidValueError, UnreadableStoreError
from ..records import HISTORY, JOURNAL, MEMORY, MESSAGE, NOTE, PROGRESS, PRUNED, SUMMARY, TITLE, Match, Record, now
from ..store.query import Touch
from .hits import to_item_of
from .memory_history import to_history_entry
from .memory_items import check_importance, from_archive
from .notes import note_settings
from .settings import session_settings

LOG = logging.getLogger("mnemic.recall")


def check_contents(record: Record) -> None:
    """Raise InvalidValueError unless a record to import holds what its kind says."""
    if record.importance is not None:
        check_importance(record.importance)
    moment = record.created or now()
    record = replace(record, created=moment, valid_from=record.valid_from or moment)
    try:
        to_item_of(record)
        if record.kind in (MEMORY, SUMMARY):
            check_text(record.text, "text")
        elif record.kind == TITLE:
            check_text(record.title, "title")
        elif record.kind == PRUNED:
            from_archive(record)
        elif record.kind == HISTORY:
            to_history_entry(record)
        elif record.kind in (JOURNAL, PROGRESS) and not isinstance(record.data, dict):
            raise InvalidValueError(f"{record.kind} must have data")
    except UnreadableStoreError as error:
        raise InvalidValueError(str(error)) from None


def check_settings(touch: Touch) -> None:
    """Raise InvalidValueError unless the settings of a stream to import are those of its kind."""
    read = {MESSAGE: session_settings, NOTE: note_settings}.get(touch.kind)
    try:
        if read is not None:
            read(touch.settings)
    except UnreadableStoreError as error:
        raise InvalidValueError(str(error)) from None


def readable(match: Match) -> bool:
    """Return whether what a search found can be shown; one damaged record must not hide all others."""
    try:
        for record in (match.record, *match.before, *match.after):
            to_item_of(record)
    except UnreadableStoreError as error:
        LOG.warning("a search leaves out a record that cannot be read: %s", error)
        return False
    return True
