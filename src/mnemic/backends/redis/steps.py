"""One call of the write script: its checks and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import msgpack

from ..keyvalue.engine import Change
from ..keyvalue.kept import KeptHead, encode
from .keys import StreamKeys

NEVER = b"never"
CHUNK = 4000
"""Maximum number of arguments per command: Lua cannot unpack more than 8,000."""
FEW = 400
"""Number of texts from which they are packed into one argument, which is faster for the driver."""

_pack = msgpack.Encoder().encode


def packed(texts: Sequence[str]) -> list[bytes]:
    """Return texts packed into few arguments."""
    return [_pack(texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK)]


class Step:
    """Keys and arguments of one call of the write script."""

    def __init__(self, moment: int = 0) -> None:
        self.moment = moment
        self.keys: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._streams: list[bytes] = []
        self._checks: list[bytes] = []
        self._work: list[bytes] = []
        self._counts = [0, 0]

    def arguments(self) -> list[bytes]:
        """Return the script's arguments besides the keys."""
        streams, checks = self._counts
        return [b"%d" % streams, *self._streams, b"%d" % checks, *self._checks, *self._work]

    def key(self, key: bytes) -> int:
        """Return the number of a key that does not belong to a stream; streams come first."""
        place = self._places.get(key)
        if place is None:
            self.keys.append(key)
            place = self._places[key] = len(self.keys)
        return place

    def check(self, place: int, expected: bytes, field: bytes = b"") -> None:
        """Require that a string, or a hash field, has this value; empty if it must not exist."""
        self._counts[1] += 1
        self._checks += (b"%d" % place, field, expected)

    def do(self, command: str, place: int, *arguments: bytes) -> None:
        """Run a command after all checks."""
        self._work += (command.encode(), b"%d" % place, b"%d" % len(arguments), *arguments)

    def _do_many(self, command: str, place: int, texts: Sequence[str]) -> None:
        """Run a command with any number of texts; nothing if there are none."""
        if len(texts) >= FEW:
            for some in packed(texts):
                self.do("many", place, command.encode(), some)
        elif texts:
            self.do(command, place, *(text.encode() for text in texts))

    def change(self, keys: StreamKeys, change: Change) -> None:
        """Check one stream and change it."""
        first = len(self.keys) + 1
        self.keys += keys
        head, absent = change.head, packed(change.absent)
        self._counts[0] += 1
        self._streams += (
            b"" if change.expected is None else b"%d" % change.expected,
            b"1" if _certain(change) else b"0",
            b"" if change.same else self._left(head),
            b"%d" % len(absent),
            *absent,
        )
        at = StreamPlaces(first)
        if head is None and not change.same:
            self._unlink(range(first, first + len(keys)))
            return
        if head is not None and head.count == 0 and not change.same and not change.put:
            self._unlink(range(first + 1, first + len(keys)))
        else:
            self._remove(at, change)
            self._put(at, change)
            self._derive(at, change)
        if head is not None and not change.same:
            expiring = self._left(head) != NEVER
            self.do("SET", at.head, b"%d %d %d %b" % (head.revision, expiring, head.count, encode(head)))

    def _left(self, head: KeptHead | None) -> bytes:
        """Return after how many milliseconds Redis expires the records of a stream."""
        # Those of a locked stream stay until it is free: a committed write must find them.
        if head is None or head.expires is None or head.pending is not None:
            return NEVER
        # Relative, by the server's clock, which may differ from ours.
        return b"%d" % -(-(head.expires - self.moment) // 1000)

    def _unlink(self, places: Iterable[int]) -> None:
        for place in places:
            self.do("UNLINK", place)

    def _remove(self, at: StreamPlaces, change: Change) -> None:
        seqs = [str(seq) for seq, _ in change.removed]
        self._do_many("cut", at.rows, seqs)
        self._do_many("forget", at.derived, seqs)
        self._do_many("HDEL", at.slots, [key for _, key in change.removed])
        lost = [_label(*label, seq) for seq, labels in change.lost_labels for label in labels.items()]
        self._do_many("ZREM", at.labels, lost)

    def _put(self, at: StreamPlaces, change: Change) -> None:
        self._do_many("cut", at.rows, [str(kept.seq) for kept in change.put if kept.seq not in change.new])
        rows: list[str] = []
        slots: list[str] = []
        labels: list[str] = []
        for kept in change.put:
            rows += (str(kept.seq), encode(kept).decode())
            slot = (kept.seq, kept.version, kept.created, kept.weight, kept.labels, kept.expires)
            slots += (kept.key, encode(slot).decode())
            for name, value in kept.labels.items():
                labels += ("0", _label(name, value, kept.seq))
        self._do_many("ZADD", at.rows, rows)
        self._do_many("HSET", at.slots, slots)
        self._do_many("ZADD", at.labels, labels)

    def _derive(self, at: StreamPlaces, change: Change) -> None:
        gone = [_derived(seq, name) for seq, name, _, value in change.derived if value is None]
        self._do_many("HDEL", at.derived, gone)
        kept = [
            part
            for seq, name, version, value in change.derived
            if value is not None
            for part in (_derived(seq, name).encode(), b"%d %b" % (version, value))
        ]
        for start in range(0, len(kept), CHUNK):
            self.do("HSET", at.derived, *kept[start : start + CHUNK])
        names = {name for _, name, _, value in change.derived if value is not None}
        self._do_many("SADD", at.names, sorted(names))


class StreamPlaces:
    """Key numbers of a stream within a call."""

    def __init__(self, first: int) -> None:
        self.head: int
        self.rows: int
        self.slots: int
        self.derived: int
        self.labels: int
        self.names: int
        self.head, self.rows, self.slots, self.derived, self.labels, self.names = range(first, first + 6)


def frees(changes: Sequence[Change]) -> bool:
    """Return whether changes need no additional memory."""
    return not any(change.put or change.derived or change.expected is None for change in changes)


def _derived(seq: int, name: str) -> str:
    return f"{seq}\0{name}"


def _label(name: str, value: str, seq: int) -> str:
    return f"{name}\0{value}\0{seq}"


def _certain(change: Change) -> bool:
    """Return whether a change is correct even if all records of the stream have expired meanwhile."""
    if change.same:
        return False
    head = change.head
    return head is None or head.count == len(change.put) or head.expires == 0
