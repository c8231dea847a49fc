"""The smallest engine: keeps everything in dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from mnemic.backends.keyvalue.engine import RecordRange, StreamRange
from mnemic.records import Record, ScopePath, StreamName, known_scope
from mnemic.store.codec import decode_record, decode_record_state, encode_record
from mnemic.store.matching import in_reach
from mnemic.store.protocol import Capability
from mnemic.store.stream_state import Loaded, Needs, RecordState, StreamChange, StreamState


class StoredStream(Struct):
    """One stream: its encoded records by seq, their seqs by key, and derived values with their versions."""

    state: StreamState
    records: dict[int, bytes] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    derived: dict[tuple[int, str], tuple[int, bytes]] = field(default_factory=dict)


class DictEngine:
    """Keeps streams in a dictionary."""

    url = "dict://"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self) -> None:
        self.stored: dict[StreamName, StoredStream] = {}

    def commit_group(self, scope: str) -> str:
        return scope

    async def load(self, needs: Needs) -> Loaded:
        loaded = Loaded()
        for name in {*needs.streams, *needs.keys, *needs.whole}:
            stream = self.stored.get(name)
            loaded.streams[name] = replace(stream.state) if stream else None
            keys = {*needs.keys.get(name, ()), *(stream.seqs if stream and name in needs.whole else ())}
            loaded.records[name] = {key: self._record_state(stream, key) for key in keys}
        loaded.whole |= needs.whole
        return loaded

    async def commit(self, changes: Sequence[StreamChange], moment: int) -> bool:
        for change in changes:
            stream = self.stored.get(change.name)
            if (stream and stream.state.revision) != (change.before and change.before.revision):
                return False
            if stream and any(key in stream.seqs for key in change.absent):
                return False
        for change in changes:
            self._apply(change)
        return True

    async def rows(self, name: StreamName, span: RecordRange) -> tuple[StreamState | None, list[Record]]:
        stream = self.stored.get(name)
        if stream is None:
            return None, []
        if span.seqs is not None:
            seqs = [seq for seq in span.seqs if seq in stream.records]
        else:
            seqs = [
                seq
                for seq in sorted(stream.records, reverse=span.reverse)
                if span.after is None or (seq < span.after if span.reverse else seq > span.after)
            ][: span.limit]
        return stream.state, [self._record(stream, seq, span.derived) for seq in seqs]

    async def find(self, name: StreamName, keys: Sequence[str]) -> tuple[StreamState | None, list[Record]]:
        stream = self.stored.get(name)
        if stream is None:
            return None, []
        return stream.state, [self._record(stream, stream.seqs[key], ()) for key in keys if key in stream.seqs]

    async def labeled(self, name: StreamName, label: str, values: Sequence[str]) -> list[int] | None:
        _, records = await self.rows(name, RecordRange(limit=1_000_000))
        return [record.seq for record in records if record.labels.get(label) in values]

    async def streams(self, reach: StreamRange) -> list[StreamState]:
        found = []
        for name in sorted(self.stored, reverse=reach.reverse):
            past = reach.after is None or (name < reach.after if reach.reverse else name > reach.after)
            if past and in_reach(ScopePath(name[0]), name[1], ScopePath(reach.scope), reach.kinds, reach.below):
                found.append(self.stored[name].state)
        return found[: reach.limit]

    async def close(self) -> None:
        pass

    def _apply(self, change: StreamChange) -> None:
        if change.after is None or change.dropped:
            self.stored.pop(change.name, None)
        if change.after is None:
            return
        stream = self.stored.setdefault(change.name, StoredStream(change.after))
        stream.state = replace(change.after)
        for gone in () if change.dropped else change.removed:
            del stream.records[gone.seq], stream.seqs[gone.key]
            stream.derived = {at: value for at, value in stream.derived.items() if at[0] != gone.seq}
        for record in (*change.replaced, *change.added):
            stream.records[record.seq] = encode_record(record)
            stream.seqs[record.key] = record.seq
        for one in change.derived:
            if one.value is None:
                stream.derived.pop((one.seq, one.name), None)
            else:
                stream.derived[one.seq, one.name] = (one.version, one.value)

    def _record(self, stream: StoredStream, seq: int, names: Iterable[str]) -> Record:
        record = decode_record(known_scope(stream.state.scope), stream.state.kind, stream.records[seq])
        found = {name: stream.derived[seq, name] for name in names if (seq, name) in stream.derived}
        derived = {name: value for name, (version, value) in found.items() if version in (0, record.version)}
        return replace(record, derived=derived)

    def _record_state(self, stream: StoredStream | None, key: str) -> RecordState | None:
        if stream is None or key not in stream.seqs:
            return None
        return decode_record_state(stream.records[stream.seqs[key]])
