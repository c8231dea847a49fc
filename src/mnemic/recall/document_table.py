"""The documents of a scope, in memory: columns of their properties, postings of their terms, and their vectors.

Documents are numbered in order of arrival, and numbers are not reused; once most are gone, rebuild the table. No
I/O; the caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import to_microseconds
from ..messages import ROLES
from ..records import Record, Ref, Stream, StreamName, known_scope
from .columns import Column, Keys, Postings, Vectors
from .index_entry import SPEAKING, Entries, TextFlags
from .languages.detection import LANGUAGES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Whole = NDArray[np.signedinteger[Any]]
    Flags = NDArray[np.bool_]

NEVER = 2**62
"""A time that never comes; its negative is always past."""
NONE = -1
"""Marker for no document."""
CONTEXT = {-2: 0.6, -1: 1.0, 1: 0.8, 2: 0.3}
"""Weights of neighboring turns in a turn's context vector."""
SPEAKERS = np.isin(np.arange(256), [ROLES.index(role) + 1 for role in SPEAKING])
"""Which role numbers are those of conversation turns."""
CALL = int(TextFlags.CALL)
LONGEST = 65_535
"""Largest distinguishable number of terms."""
STRETCH = 64
"""How many messages of a session count as one: later ones are about something else."""
TURNS_AT_ONCE = 1024
"""How many adjacent turns' contexts are computed at once."""
MOST = 1e30
"""Largest distinguishable importance."""
STREAM_BYTES = 2_000
"""Approximate memory of a stream."""


class DocumentTable:
    """Index data of all texts in a scope and below."""

    def __init__(self, *, sparse: bool = False) -> None:
        """`sparse` means that only some texts are indexed, so adjacent turns may not be adjacent in the session."""
        self.sparse = sparse
        self.versions: dict[StreamName, int] = {}
        self.created_at: dict[StreamName, datetime] = {}
        self.numbers: dict[StreamName, int] = {}
        self.streams: list[StreamName] = []
        self.last: list[int] = []
        """Last turn of each stream."""
        self.last_seq: list[int] = []
        self.relinked: bool = False
        """Whether turns of a stream were indexed in another order than that of their seqs."""
        self.rewrites: int = 0
        """How often anything but appending has changed documents or their neighbors."""
        self.gone: int = 0
        """How many documents are gone."""
        self.counts: list[int] = []
        """How many documents each stream has."""
        self.kinds: list[int] = []
        """Number of the kind of each stream."""
        self.kind_numbers: dict[str, int] = {}
        self.typical: tuple[NDArray[np.uint64], tuple[float, float]] | None = None
        """Digests of the texts whose vectors were compared last, and the mean and deviation of their cosines."""
        self.sampled: int = 0
        """Among how many documents these were the lowest digests; 0 if that must be found again."""
        self.sessions: dict[tuple[str, int], int] = {}
        """Numbers of sessions, by path and stretch."""
        self.session_count: int = 0
        self.only_turns: bool = True
        self.speakers: dict[str, int] = {"": 0}
        self.languages: dict[str, int] = {}
        """How many texts were indexed in each language, including those that are gone."""
        self.keys: Keys = Keys()
        self.stream: Column = Column(np.int16, widens=True)
        self.seq: Column = Column(np.int16, widens=True)
        self.created: Column = Column(np.int64)
        self.expires: Column = Column(np.int64)
        self.valid_from: Column = Column(np.int64)
        self.valid_to: Column = Column(np.int64)
        self.importance: Column = Column(np.float32)
        self.pinned: Column = Column(np.bool_)
        self.used: Column = Column(np.int64)
        self.uses: Column = Column(np.float32)
        self.length: Column = Column(np.uint16)
        """Number of terms."""
        self.flags: Column = Column(np.uint8)
        self.role: Column = Column(np.uint8)
        self.spoken: Column = Column(np.bool_)
        """Whether a document is a turn of a user or an assistant, not of the system or a tool."""
        self.speaker: Column = Column(np.int32)
        self.session: Column = Column(np.int16, widens=True)
        self.before: Column = Column(np.int32)
        self.after: Column = Column(np.int32)
        self.digest: Column = Column(np.uint32)
        self.first_row: Column | None = None
        """First vector of each document, NONE if it has none; None while each has one, in the same place."""
        self.context: Column = Column(np.float32)
        """Length of a document's context vector; NaN until computed."""
        self.alive: Column = Column(np.bool_)
        self.postings: Postings = Postings()
        self.vectors: Vectors = Vectors()
        self.without_text: dict[StreamName, set[int]] = {}
        """Seqs of records without text, by stream."""
        self.expiries: dict[StreamName, int] = {}
        """Expiry of streams that have one."""
        self.without_vectors: dict[int, int] = {}
        """Documents without vectors, with the version of the record."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        columns = sum(value.nbytes for value in vars(self).values() if isinstance(value, Column))
        columns += self.keys.nbytes + self.postings.nbytes + self.vectors.nbytes
        return columns + STREAM_BYTES * len(self.streams)

    @property
    def mostly_deleted(self) -> bool:
        """Whether most documents are gone, so that rebuilding is cheaper."""
        return len(self) > 2 * (len(self) - self.gone) + 1000

    def expect(self, count: int) -> None:
        """Reserve memory for so many more documents."""
        for column in vars(self).values():
            if isinstance(column, Column | Keys):
                column.expect(count)

    def indexed_version(self, stream: Stream) -> int:
        """Return up to which version a stream is indexed; 0 if it is new or was recreated."""
        name = stream.name
        return self.versions.get(name, 0) if self.created_at.get(name) == stream.created else 0

    def documents_in(self, name: StreamName) -> Whole:
        """Return the documents of the stream with this name."""
        number = self.numbers.get(name)
        if number is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((self.stream.values == number) & self.alive.values)

    def count(self, name: StreamName) -> int:
        """Return how many documents the stream with this name has."""
        number = self.numbers.get(name)
        return 0 if number is None else self.counts[number]

    def with_keys(self, name: StreamName, keys: Sequence[str]) -> list[int]:
        """Return the documents of a stream that have these keys."""
        return self.keys.find(self.documents_in(name), set(keys))

    def with_seqs(self, name: StreamName, seqs: Any) -> Whole:
        """Return the documents of a stream that have these seqs."""
        documents = self.documents_in(name)
        return documents[np.isin(self.seq.values[documents], seqs)]

    def ref(self, document: int) -> Ref:
        """Return the identity of a document's record."""
        path, kind = self.streams[self.stream.values[document]]
        return Ref(known_scope(path), kind, self.keys[document])

    def restart(self, stream: Stream) -> None:
        """Remove a stream that was dropped, before indexing its successor."""
        name = stream.name
        self.forget(name)
        self.created_at[name] = stream.created

    def forget(self, name: StreamName) -> None:
        """Remove a stream that no longer exists."""
        self.versions.pop(name, None)
        self.without_text.pop(name, None)
        if name in self.numbers:
            number = self.numbers[name]
            self.drop(self.documents_in(name))
            self.last[number] = NONE
            self.last_seq[number] = 0

    def remove_vectors(self) -> None:
        """Remove all vectors, because their dimension is outdated."""
        self.vectors = Vectors()
        self.rewrites += 1
        self.sampled = 0
        self.first_row = Column(np.int32)
        self.first_row.extend(np.full(len(self), NONE))
        self.context.writable()[:] = np.nan
        self.without_vectors = dict.fromkeys(np.flatnonzero(self.alive.values & (self.length.values > 0)).tolist(), 0)

    def add(self, parts: Sequence[tuple[Stream, Sequence[Record]]], entries: Entries) -> NDArray[np.int32]:
        """Index records of streams, each stream's in order; return their document numbers."""
        parts = [part for part in parts if part[1]]
        if not parts:
            return np.zeros(0, dtype=np.int32)
        records = parts[0][1] if len(parts) == 1 else [*chain.from_iterable(some for _, some in parts)]
        count = len(records)
        numbers = [self._number(stream) for stream, _ in parts]
        again = []
        for (stream, some), number in zip(parts, numbers, strict=True):
            if some[0].seq <= self.last_seq[number]:
                # Some replace existing versions.
                again.append(number)
                self.drop(self.with_seqs(stream.name, [r.seq for r in some]))
            self.last_seq[number] = max(self.last_seq[number], some[-1].seq)
            self.counts[number] += len(some)
        first = len(self)
        documents = np.arange(first, first + count, dtype=np.int32)
        self.keys.extend([r.key for r in records])
        if len(parts) == 1:
            self.stream.repeat(numbers[0], count)
        else:
            self.stream.extend(np.repeat(numbers, [len(some) for _, some in parts]))
        self.seq.extend(np.fromiter([r.seq for r in records], dtype=np.int64, count=count))
        self.alive.repeat(value=True, count=count)
        self.created.extend([0 if r.created is None else to_microseconds(r.created) for r in records])
        _extend(self.expires, [r.expires for r in records], NEVER)
        _extend(self.valid_from, [r.valid_from for r in records], -NEVER)
        _extend(self.valid_to, [r.valid_to for r in records], NEVER)
        importances = [r.importance for r in records]
        if importances.count(None) < count:
            self.importance.extend([np.nan if x is None else max(0.0, min(x, MOST)) for x in importances])
        else:
            self.importance.repeat(np.nan, count)
        pinned = [r.pinned for r in records]
        self.pinned.extend(pinned) if any(pinned) else self.pinned.repeat(value=False, count=count)
        self.used.repeat(0, count)
        self.uses.repeat(0, count)
        self.flags.extend(entries.flags)
        self.role.extend(entries.roles)
        self.spoken.extend(SPEAKERS[entries.roles] & (entries.flags & CALL == 0))
        if any(entries.speakers):
            self.speaker.extend([self.speakers.setdefault(name, len(self.speakers)) for name in entries.speakers])
        else:
            self.speaker.repeat(0, count)
        for language, times in zip(LANGUAGES, np.bincount(entries.languages).tolist(), strict=False):
            if times:
                self.languages[language] = self.languages.get(language, 0) + times
        self.length.extend(np.minimum(entries.sizes, LONGEST))
        self.postings.add(entries.terms, np.repeat(documents, entries.sizes))
        self.digest.extend(_digests(entries.terms, entries.sizes))
        begin = self._link(documents)
        self._add_vectors(documents, entries)
        self.context.repeat(np.nan, count)
        for number in again:
            self._relink(number)
        self._reset_contexts(begin)
        return documents

    def attach(self, document: int, vectors: NDArray[np.int8]) -> None:
        """Add the vectors of a document that has none."""
        self.without_vectors.pop(document, None)
        if self.alive.values[document]:
            self.rewrites += 1
            self.sampled = 0
            self._rows(len(self)).writable()[document] = self.vectors.size
            self.vectors.extend(vectors, np.full(len(vectors), document, dtype=np.int32))
            self.vectors.multiple |= len(vectors) > 1
            self._reset_contexts(np.array([document]))

    def drop(self, documents: Whole) -> None:
        """Remove documents, and link their neighbors with each other."""
        if not len(documents):
            return
        self.rewrites += 1
        self.gone += len(documents)
        self.sampled = 0
        self.alive.writable()[documents] = False
        self._reset_contexts(documents)
        before, after = self.before.writable(), self.after.writable()
        for document in documents.tolist():
            self.without_vectors.pop(document, None)
            left, right = int(before[document]), int(after[document])
            if left != NONE:
                after[left] = right
            if right != NONE:
                before[right] = left
            number = self.stream.values[document]
            self.counts[number] -= 1
            if self.last[number] == document:
                self.last[number] = left

    def embed_contexts(self, line: NDArray[np.int32], unknown: Whole) -> None:
        """Compute the lengths of context vectors of turns at some places of a line, which has their numbers plus 1."""
        reach = max(CONTEXT)
        while len(unknown):
            first = int(unknown[0])
            here = int(unknown.searchsorted(first + TURNS_AT_ONCE))
            last, unknown = int(unknown[here - 1]), unknown[here:]
            units = self.units(line[first - reach : last + reach + 1] - 1)
            count = last + 1 - first
            total = units[reach : reach + count].copy()
            part = np.empty_like(total)
            for step, share in CONTEXT.items():
                total += np.multiply(units[reach + step : reach + step + count], np.float32(share), out=part)
            lengths = np.sqrt(np.einsum("ij,ij->i", total, total))
            turns = line[first : last + 1] - 1
            known = turns != NONE
            self.context.writable()[turns[known]] = np.maximum(lengths[known], 1e-3)

    def rows_of(self, documents: Whole) -> Whole:
        """Return the first vector of each document; NONE for one that has none, and for NONE."""
        if self.first_row is None:
            return documents
        return np.where(documents != NONE, self.first_row.values.take(documents, mode="clip"), NONE)

    def units(self, documents: Whole) -> Floats:
        """Return normalized vectors of documents; zeros where there is none."""
        rows = self.rows_of(documents)
        if (rows != NONE).all():
            return self.vectors.units(rows)
        found = np.zeros((len(documents), self.vectors.dimensions), dtype=np.float32)
        known = np.flatnonzero(rows != NONE)
        found[known] = self.vectors.units(rows[known])
        return found

    def _rows(self, count: int) -> Column:
        """Return the column of first vectors, which starts with those of `count` documents that have one each."""
        if self.first_row is None:
            self.first_row = Column(np.int32)
            self.first_row.extend(np.arange(count))
        return self.first_row

    def _reset_contexts(self, documents: Whole) -> None:
        """Mark documents whose neighbors or vectors have changed."""
        turns = documents[self.spoken.values[documents]]
        if not len(turns):
            return
        context = self.context.writable()
        for column in (self.before.values, self.after.values):
            at = turns
            for _ in range(3):
                context[at] = np.nan
                at = column[at]
                at = at[at != NONE]

    def _number(self, stream: Stream) -> int:
        name = stream.name
        if name not in self.numbers:
            self.numbers[name] = len(self.streams)
            self.streams.append(name)
            self.last.append(NONE)
            self.last_seq.append(0)
            self.counts.append(0)
            self.kinds.append(self.kind_numbers.setdefault(name[1], len(self.kind_numbers)))
            self.created_at.setdefault(name, stream.created)
        return self.numbers[name]

    def _link(self, documents: NDArray[np.int32]) -> Whole:
        """Link the turns of conversations; a stretch of them is one session, and any other text one of its own.

        System messages and tool traffic are not turns, so they do not contribute to their neighbors. Returns the first
        of the turns in each conversation.
        """
        before = np.full(len(documents), NONE, dtype=np.int32)
        after = np.full(len(documents), NONE, dtype=np.int32)
        sessions = np.zeros(len(documents), dtype=np.int32)
        first = int(documents[0])
        spoken = self.spoken.values[first:]
        places = np.flatnonzero(spoken)
        turns = documents[places]
        begin = turns[:0]
        joined: list[tuple[int, int]] = []
        if len(turns):
            before[places[1:]] = turns[:-1]
            after[places[:-1]] = turns[1:]
            streams, seqs = self.stream.values[turns], self.seq.values[turns]
            if self.sparse:
                apart = np.flatnonzero(np.diff(seqs) != 1)
                before[places[apart + 1]] = after[places[apart]] = NONE
            heads = np.append(0, np.flatnonzero(streams[1:] != streams[:-1]) + 1)
            begin = turns[heads]
            after[places[heads[1:] - 1]] = NONE
            ends = np.append(turns[heads[1:] - 1], turns[-1])
            for place, number, end in zip(places[heads].tolist(), streams[heads].tolist(), ends.tolist(), strict=True):
                before[place] = self.last[number]
                if self.last[number] != NONE:
                    joined.append((self.last[number], first + place))
                self.last[number] = end
            sessions[places] = self._sessions(streams, seqs // STRETCH)
        alone = np.flatnonzero(~spoken)
        self.only_turns &= not len(alone)
        sessions[alone] = np.arange(self.session_count, self.session_count + len(alone))
        self.session_count += len(alone)
        self.session.extend(sessions)
        self.before.extend(before)
        self.after.extend(after)
        for last, turn in joined:
            self.after.writable()[last] = turn
        return begin

    def _sessions(self, streams: Whole, stretches: Whole) -> Whole:
        """Return the numbers of sessions, one for each stretch of a stream."""
        edges = np.append(0, np.flatnonzero((streams[1:] != streams[:-1]) | (stretches[1:] != stretches[:-1])) + 1)
        found = []
        for number, stretch in zip(streams[edges].tolist(), stretches[edges].tolist(), strict=True):
            name = (self.streams[number][0], stretch)
            if name not in self.sessions:
                self.sessions[name] = self.session_count
                self.session_count += 1
            found.append(self.sessions[name])
        return np.repeat(found, np.diff(edges, append=len(streams)))

    def _relink(self, number: int) -> None:
        """Link the turns of a stream again, by seq, because some arrived late."""
        turns = np.flatnonzero((self.stream.values == number) & self.alive.values & self.spoken.values)
        if len(turns):
            self.relinked = True
            self.rewrites += 1
            turns = turns[np.argsort(self.seq.values[turns])]
            self.before.writable()[turns] = np.append(NONE, turns[:-1])
            self.after.writable()[turns] = np.append(turns[1:], NONE)
            self.last[number] = int(turns[-1])
            self.context.writable()[turns] = np.nan

    def _add_vectors(self, documents: NDArray[np.int32], entries: Entries) -> None:
        rows = entries.rows
        if self.first_row is not None or self.vectors.size != documents[0] or not (rows == 1).all():
            first = self.vectors.size + np.cumsum(rows) - rows
            self._rows(int(documents[0])).extend(np.where(rows > 0, first, NONE))
        if len(entries.vectors):
            self.vectors.extend(entries.vectors, np.repeat(documents, rows))
            self.vectors.multiple |= bool((rows > 1).any())


def _extend(column: Column, times: list[datetime | None], otherwise: int) -> None:
    """Append moments to a column; `otherwise` where there is none."""
    if any(times):
        column.extend([otherwise if time is None else to_microseconds(time) for time in times])
    else:
        column.repeat(otherwise, len(times))


def _digests(terms: NDArray[np.uint32], sizes: Whole) -> NDArray[np.uint32]:
    """Return a hash for each text, equal for the same terms in the same order."""
    starts = np.cumsum(sizes) - sizes
    places = np.arange(len(terms), dtype=np.uint64) - np.repeat(starts, sizes).astype(np.uint64)
    mixed = (terms.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(2) * places + np.uint64(1)
    found = np.zeros(len(sizes), dtype=np.uint64)
    nonempty = np.flatnonzero(sizes)
    if len(nonempty):
        found[nonempty] = np.add.reduceat(mixed, starts[nonempty])
    return (found ^ found >> np.uint64(32)).astype(np.uint32)
