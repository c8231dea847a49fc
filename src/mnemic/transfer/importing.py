"""Imports a foreign file into a scope: reads its items as records, and reports what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from ..checks import check_callable
from ..errors import InvalidValueError, MnemicError
from ..event_loop import off_loop
from ..features.export import FileOrPath, import_file
from ..features.fact_items import to_record as fact_record
from ..features.memory_items import MemoryItem
from ..features.memory_items import to_record as memory_record
from ..features.notes import checked_note
from ..features.record_import import Imported, ImportSource, IncomingRecord, Progress, SkipReport, import_records
from ..layers.restricted import visible_root
from ..messages import Message, encode
from ..records import NOTE, TITLE, Record, ScopePath
from ..store.protocol import Store
from ..tokens import DEFAULT_ENCODING, TokenCounter, count_message
from .agent_files import merge_entities
from .formats import FORMATS, OURS, find_format
from .inputs import choose_files, opened_input
from .items import REPLACED, FactItem, Item, MessageItem, NoteItem, SkippedItem, TitleItem
from .servers import downloaded, is_on_server


async def import_any(
    store: Store,
    into: ScopePath | None,
    tokens: TokenCounter,
    path: FileOrPath,
    *,
    format: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Import a file of any known format into a scope; without one, our own into its scopes, others into the root.

    The whole file is read and checked before anything is written. What is stored already is left alone; if it has
    other content, it is reported as skipped, unless `overwrite` is true. Raises InvalidValueError, which says where,
    for a file that is not of the format.
    """
    check_callable(progress, "progress")
    with ExitStack() as stack:
        if is_on_server(path):
            path = await off_loop(lambda: stack.enter_context(downloaded(str(path))))
        whole = stack.enter_context(opened_input(path))
        name = find_format(whole, format)
        if name == OURS:
            whole.rewind()
            given = path if whole.file is None else whole.file
            return await import_file(store, given, into, overwrite=overwrite, dry_run=dry_run, progress=progress)
        choose_files(whole, FORMATS[name].files)
        report = SkipReport()
        scope = into or visible_root(store)
        records = _Records(scope, tokens)

        def read(weighed: bool) -> Iterator[IncomingRecord]:
            whole.rewind()
            records.begin(weighed)
            whole.place = ""
            try:
                for item in FORMATS[name].read(whole):
                    if isinstance(item, SkippedItem):
                        report.add(item.reason, item.which)
                    else:
                        yield IncomingRecord(records.of(item), place=partial(place_of, item))
            except MnemicError as error:
                raise type(error)(f"{whole.place}{error}") from None
            except RecursionError:
                raise InvalidValueError(f"{whole.place}a value is nested too deeply") from None
            for place in whole.replaced:
                report.add(REPLACED, place)
            for left_out in whole.left_out:
                report.add("a file that is not of the format, or a link", left_out)

        done = await import_records(
            store,
            scope,
            ImportSource(read, lambda: whole.read, whole.size),
            report,
            foreign=True,
            merge=_merged if name == "mcp-memory" else None,
            overwrite=overwrite,
            dry_run=dry_run,
            progress=progress,
        )
        return replace(done, format=name)


def _merged(stored: Record, given: Record) -> Record | None:
    """Return an entity of a graph with all observations, None for another record."""
    value = merge_entities(stored.data, given.data) if given.kind == NOTE else None
    return None if value is None else checked_note(replace(stored, data=value))


class _Records:
    """Makes records of items."""

    def __init__(self, scope: ScopePath, tokens: TokenCounter) -> None:
        self._scope = scope
        self._count = partial(count_message, tokens=tokens)
        self._encoding = None if tokens.name == DEFAULT_ENCODING else tokens.name
        self.begin(weighed=True)

    def begin(self, weighed: bool) -> None:
        """Begin again with the first item; tokens are counted if `weighed` is true."""
        self._weighed = weighed
        self._session = self._scope
        self._time: datetime | None = None
        """When the last message of that session was said, if known."""

    def of(self, item: Item) -> Record:
        """Return the record of an item; raises InvalidValueError, which names it, if it cannot be stored."""
        try:
            return self._record(item)
        except MnemicError as error:
            raise type(error)(f"{place_of(item)}: {error}") from None

    def _record(self, item: Item) -> Record:
        if isinstance(item, MessageItem):
            session = self._scope / item.scope / item.session
            if session != self._session:
                self._session, self._time = session, None
            count = self._count if self._weighed else _unweighed
            record = encode(item.message, session, count, self._encoding)
            # A message without a time was said after the one before. The time of a copy is that of the original: a
            # session was last active when its last message was said.
            self._time = record.created if item.timed else self._time
            return replace(record, created=self._time, updated=self._time or record.updated)
        if isinstance(item, TitleItem):
            scope = self._scope / item.session
            return Record(scope, TITLE, TITLE, title=item.title, created=item.created, updated=item.created)
        if isinstance(item, NoteItem):
            note = Record(
                self._scope, NOTE, item.key, data=item.value, title=item.description, meta=dict(item.metadata)
            )
            return replace(checked_note(note), updated=item.updated)
        if isinstance(item, MemoryItem):
            return replace(memory_record(item, self._scope / item.scope, item.id), updated=item.updated or item.created)
        assert isinstance(item, FactItem)
        record = fact_record(item.fact, self._scope)
        return record if item.timed else replace(record, valid_from=None)


def _unweighed(message: Message) -> int:
    return 0


def place_of(item: Item) -> str:
    """Return the words for an item in an error."""
    if isinstance(item, MessageItem):
        return f"message {item.message.id!r} of session {item.session!r}"
    if isinstance(item, TitleItem):
        return f"the title of session {item.session!r}"
    if isinstance(item, NoteItem):
        return f"note {item.key!r}"
    if isinstance(item, MemoryItem):
        return f"memory {item.id!r}"
    return f"fact {item.fact.subject!r}" if isinstance(item, FactItem) else ""
