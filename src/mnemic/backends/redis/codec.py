"""Redis keys, stored values, and the arguments of the scripts.

Every key is `prefix{tag}rest`. The prefix has no brace, so stores of different prefixes never collide. The tag,
which alone determines the cluster slot, is the scope, with braces escaped as `%7B` and `%7D`. So all keys of a session
are in one slot, and no name can collide with another's slot or key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from msgspec import Raw, json, msgpack

from ...checks import to_microseconds
from ...records import Record, StreamName
from ...store.codec import encode_record
from ...store.stream_state import RecordState, StreamChange, StreamState

PARTS = 16
"""Number of keys that the list of streams is split into; fixed once a store is written."""

_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})
_to_json = json.Encoder().encode
_to_msgpack = msgpack.Encoder().encode
_read_slot = json.Decoder(tuple[int, int, int, int, dict[str, str], int | None]).decode
_read_state = json.Decoder(StreamState).decode


class StreamKeys(NamedTuple):
    """Keys of one stream, in the order that the scripts expect."""

    state: bytes
    """String: the revision, whether the records expire by themselves, the count, and the state."""
    records: bytes
    """Sorted set: records by seq."""
    slots: bytes
    """Hash: what the write path must know of a record, by key."""
    derived: bytes
    """Hash: derived values, each after its version, by seq and name."""
    labels: bytes
    """Sorted set in lexicographical order: label, value and seq."""
    names: bytes
    """Set: names of all derived values that the stream has had."""


class Keys:
    """All key names of a store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.format: bytes = self.internal("/", ":format")
        self.stream: Callable[[StreamName], StreamKeys] = lru_cache(maxsize=10_000)(self._stream)

    def unlisted(self, scope: str) -> bytes:
        """Return the key that changes when a stream of the scope is removed from the list of streams."""
        return self.internal(_tag(scope), ":unlisted")

    def list_part(self, number: int) -> bytes:
        """Return the key of one part of the list of streams: a sorted set in lexicographical order."""
        return self.internal(f"streams-{number}", ":list")

    def list_times(self, number: int) -> bytes:
        """Return the key of the hash of when, and by which call, the streams of a part were listed."""
        return self.internal(f"streams-{number}", ":added")

    def internal(self, tag: str, rest: str) -> bytes:
        """Return a key in the slot of a tag; those of scopes begin with a slash."""
        return f"{self.prefix}{{{tag}}}{rest}".encode()

    def _stream(self, name: StreamName) -> StreamKeys:
        scope, kind = name
        return StreamKeys(*(self.internal(_tag(scope), f"{kind}:{part}") for part in StreamKeys._fields))


def list_part_of(scope: str) -> int:
    """Return the part of the list for a scope's streams: the same for all of one tenant."""
    return crc32(scope.partition("/")[0].encode()) % PARTS


def read_argument(what: str, derived: Sequence[str], wanted: Sequence[Any]) -> bytes:
    """Return the argument of the read script."""
    return _to_msgpack((what, derived, wanted))


def decode_state(stored: bytes) -> StreamState:
    """Decode the state of a stream; raises ValueError or IndexError if it is damaged."""
    return _read_state(stored.split(b" ", 3)[3])


def _slot(record: Record) -> tuple[Any, ...]:
    created, expires = (None if time is None else to_microseconds(time) for time in (record.created, record.expires))
    return (record.seq, record.version, created, record.weight, record.labels, expires)


def decode_slot(key: str, stored: bytes) -> RecordState:
    """Decode what the write path must know of a record; raises ValueError if it is damaged."""
    return RecordState(key, *_read_slot(stored))


class WriteArguments:
    """Keys and argument of one call of the write script, and whether it needs no additional memory."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.frees: bool = True
        self._numbers: dict[bytes, int] = {}
        self._streams: list[Any] = []
        self._checks: list[Any] = []
        self._commands: list[Any] = []

    def encode(self) -> bytes:
        """Return the argument."""
        return _to_msgpack((self._streams, self._checks, self._commands))

    def number(self, key: bytes) -> int:
        """Return the number of a key that does not belong to a stream; streams come first."""
        found = self._numbers.get(key)
        if found is None:
            self.keys.append(key)
            found = self._numbers[key] = len(self.keys)
        return found

    def check(self, key: bytes, expected: bytes, field: bytes = b"") -> None:
        """Require that a string, or a hash field, has this value; empty if it must not exist."""
        self._checks.append((self.number(key), _text(field), _text(expected)))

    def run(self, command: str, key: bytes, *arguments: bytes) -> None:
        """Run a command after all checks."""
        self._run(command, self.number(key), [_text(argument) for argument in arguments])

    def change(self, keys: StreamKeys, change: StreamChange, moment: int) -> None:
        """Check one stream and change it."""
        first = len(self.keys) + 1
        self.keys += keys
        before, after = change.before, change.after
        same = after is before
        put = len(change.added) + len(change.replaced)
        lifetime = "" if same else _lifetime(after, moment)
        # If all records that remain are put now, it does not matter whether the others have expired meanwhile.
        always_valid = not same and (after is None or after.count == put)
        self._streams.append((str(before.revision) if before else "", always_valid, lifetime, change.absent))
        if change.only_checks:
            return
        self.frees = self.frees and before is not None and not put and not change.derived
        numbers = range(first, first + len(keys))
        if after is None or change.dropped or after.count == 0:
            for number in numbers[1 if after else 0 :]:
                self._run("UNLINK", number, ())
        if after is None:
            return
        state, records, slots, derived, labels, names = numbers
        if after.count:
            if (change.removed or change.replaced) and not change.dropped:
                self._remove(change, records, slots, derived, labels)
            if put:
                self._put(change, records, slots, labels)
            if change.derived:
                self._derive(change, derived, names)
        if not same:
            expiring = lifetime != "never"
            value = b"%d %d %d %b" % (after.revision, expiring, after.count, _to_json(after))
            self._run("SET", state, [_text(value)])

    def _run(self, command: str, number: int, arguments: Sequence[Any]) -> None:
        if arguments or command == "UNLINK":
            self._commands.append((command, number, arguments))

    def _remove(self, change: StreamChange, records: int, slots: int, derived: int, labels: int) -> None:
        seqs = [record.seq for record in change.removed]
        self._run("remove records", records, [*seqs, *(record.seq for record in change.replaced)])
        self._run("remove derived", derived, seqs)
        self._run("HDEL", slots, [record.key for record in change.removed])
        lost = [*change.lost_labels.items(), *((record.seq, record.labels) for record in change.removed)]
        self._run("ZREM", labels, [_label(*label, seq) for seq, some in lost for label in some.items()])

    def _put(self, change: StreamChange, records: int, slots: int, labels: int) -> None:
        rows: list[Any] = []
        states: list[Any] = []
        indexed: list[Any] = []
        for record in (*change.replaced, *change.added):
            rows += (record.seq, _text(encode_record(record)))
            states += (record.key, _text(_to_json(_slot(record))))
            for name, value in record.labels.items():
                indexed += (0, _label(name, value, record.seq))
        self._run("ZADD", records, rows)
        self._run("HSET", slots, states)
        self._run("ZADD", labels, indexed)

    def _derive(self, change: StreamChange, derived: int, names: int) -> None:
        stored: list[Any] = []
        for one in change.derived:
            if one.value is not None:
                stored += (f"{one.seq}\0{one.name}", _text(b"%d %b" % (one.version, one.value)))
        self._run("HDEL", derived, [f"{one.seq}\0{one.name}" for one in change.derived if one.value is None])
        self._run("HSET", derived, stored)
        self._run("SADD", names, sorted({one.name for one in change.derived if one.value is not None}))


def _lifetime(state: StreamState | None, moment: int) -> str:
    """Return after how many milliseconds Redis expires the records of a stream."""
    if state is None or state.expires is None:
        return "never"
    # Relative, by the server's clock, which may differ from ours.
    return str(-(-(state.expires - moment) // 1000))


def _tag(scope: str) -> str:
    # An empty tag would be ignored: the root needs one, too.
    return "/" + scope.translate(_ESCAPES)


def _label(name: str, value: str, seq: int) -> str:
    return f"{name}\0{value}\0{seq}"


def _text(value: bytes) -> Raw:
    """Return bytes as a MessagePack string: Redis cannot decode the type of bytes."""
    return Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)
