"""An engine that keeps everything in dictionaries, may be partitioned, and breaks where it is told to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from mnemic.backends.keyvalue.engine import Batch, Change, Loaded, Reach, Span
from mnemic.backends.keyvalue.kept import Kept, KeptHead, Row, decode_head, decode_kept, encode
from mnemic.errors import StoreUnavailableError
from mnemic.records import ScopePath
from mnemic.store.matching import in_reach
from mnemic.store.planning import Needs, StreamName
from mnemic.store.protocol import Capability


class Shelf:
    """One stream."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.seqs: list[int] = []
        self.keys: dict[str, int] = {}
        self.derived: dict[tuple[int, str], tuple[int, bytes]] = {}


class DictEngine:
    """Keeps bytes in dictionaries; with `partitioned`, each scope lies in a part of its own."""

    url = "dict://"
    capabilities: frozenset[Capability] = frozenset()
    expires_streams = False

    def __init__(self, *, partitioned: bool = False, most: int = 1_000_000) -> None:
        self.partitioned = partitioned
        self.most = most
        self.heads_kept: dict[StreamName, bytes] = {}
        self.shelves: dict[StreamName, Shelf] = {}
        self.notes: dict[str, bytes] = {}
        self.breaks_after: int | None = None
        """After how many more steps that change something the connection breaks."""

    def partition(self, name: StreamName) -> str:
        return name[0] if self.partitioned else ""

    def fits(self, batch: Batch) -> bool:
        return sum(len(c.put) + len(c.removed) + len(c.derived) for c in batch.changes) <= self.most

    async def load(self, needs: Needs) -> Loaded:
        loaded = Loaded()
        for name in needs.streams:
            loaded.heads[name] = self._head(name)
        for name, keys in needs.keys.items():
            shelf = self.shelves.get(name, Shelf())
            loaded.slots[name] = {
                key: self._kept(shelf, shelf.keys[key]).slot() if key in shelf.keys else None for key in keys
            }
        for name in needs.whole:
            shelf = self.shelves.get(name, Shelf())
            loaded.slots.setdefault(name, {}).update(
                {key: self._kept(shelf, seq).slot() for key, seq in shelf.keys.items()}
            )
            loaded.whole.add(name)
        return loaded

    async def commit(self, batch: Batch) -> bool:
        for change in batch.changes:
            head = self._head(change.name)
            if (head.revision if head else None) != change.expected:
                return False
            shelf = self.shelves.get(change.name, Shelf())
            if any(key in shelf.keys for key in change.absent):
                return False
        self._step()
        for change in batch.changes:
            self._apply(change)
        return True

    async def rows(self, name: StreamName, span: Span) -> tuple[KeptHead | None, list[Row]]:
        shelf = self.shelves.get(name, Shelf())
        if span.seqs is not None:
            seqs = [seq for seq in span.seqs if seq in shelf.rows]
        elif span.reverse:
            end = len(shelf.seqs) if span.after is None else bisect_left(shelf.seqs, span.after)
            seqs = shelf.seqs[:end][::-1][: span.limit]
        else:
            start = 0 if span.after is None else bisect_right(shelf.seqs, span.after)
            seqs = shelf.seqs[start : start + span.limit]
        return self._head(name), [self._row(shelf, seq, span.derived) for seq in seqs]

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[KeptHead | None, list[Row]]:
        shelf = self.shelves.get(name, Shelf())
        return self._head(name), [self._row(shelf, shelf.keys[key], ()) for key in keys if key in shelf.keys]

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        shelf = self.shelves.get(name, Shelf())
        return [seq for seq in shelf.seqs if self._kept(shelf, seq).labels.get(label) in values]

    async def heads(self, reach: Reach) -> list[KeptHead]:
        found = []
        for name in sorted(self.heads_kept, reverse=reach.reverse):
            past = reach.after is None or (name < reach.after if reach.reverse else name > reach.after)
            if past and in_reach(ScopePath(name[0]), name[1], ScopePath(reach.scope), reach.kinds, reach.below):
                found.append(decode_head(self.heads_kept[name]))
        return found[: reach.limit]

    async def note(self, key: str) -> bytes | None:
        return self.notes.get(key)

    async def swap(self, key: str, before: bytes | None, after: bytes | None) -> bool:
        if self.notes.get(key) != before:
            return False
        self._step()
        if after is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = after
        return True

    async def close(self) -> None:
        """Keep everything."""

    def _step(self) -> None:
        if self.breaks_after is not None:
            self.breaks_after -= 1
            if self.breaks_after < 0:
                raise StoreUnavailableError("the connection broke")

    def _head(self, name: StreamName) -> KeptHead | None:
        kept = self.heads_kept.get(name)
        return None if kept is None else decode_head(kept)

    def _kept(self, shelf: Shelf, seq: int) -> Kept:
        return decode_kept(shelf.rows[seq])

    def _row(self, shelf: Shelf, seq: int, derived: Sequence[str]) -> Row:
        values = {name: shelf.derived[seq, name] for name in derived if (seq, name) in shelf.derived}
        return Row(self._kept(shelf, seq), values)

    def _apply(self, change: Change) -> None:
        shelf = self.shelves.setdefault(change.name, Shelf())
        for seq, key in change.removed:
            if shelf.rows.pop(seq, None) is not None:
                shelf.seqs.remove(seq)
            if shelf.keys.get(key) == seq:
                del shelf.keys[key]
            shelf.derived = {at: value for at, value in shelf.derived.items() if at[0] != seq}
        for kept in change.put:
            if kept.seq not in shelf.rows:
                insort(shelf.seqs, kept.seq)
            shelf.rows[kept.seq] = encode(kept)
            shelf.keys[kept.key] = kept.seq
        for seq, name, version, value in change.derived:
            if value is None:
                shelf.derived.pop((seq, name), None)
            else:
                shelf.derived[seq, name] = (version, value)
        if not change.same:
            if change.head is None:
                del self.heads_kept[change.name]
            else:
                self.heads_kept[change.name] = encode(change.head)
