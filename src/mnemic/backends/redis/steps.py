"""One call of the script that writes: what must be as it was, and what is done then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import msgpack

from ..keyvalue.engine import Change
from ..keyvalue.kept import KeptHead, encode
from .keys import StreamKeys

NEVER = b"never"
PACKED = 4000
"""How many arguments are sent as one, where there are so many; Lua cannot hand over more than 8,000."""

_pack = msgpack.Encoder().encode


class Step:
    """Keys and arguments of one call of the script that writes."""

    def __init__(self, moment: int = 0) -> None:
        self.moment = moment
        self.keys: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._streams: list[bytes] = []
        self._checks: list[bytes] = []
        self._work: list[bytes] = []
        self._counts = [0, 0]

    def arguments(self) -> list[bytes]:
        """Return what the script is to be given beside the keys."""
        streams, checks = self._counts
        return [b"%d" % streams, *self._streams, b"%d" % checks, *self._checks, *self._work]

    def key(self, key: bytes) -> int:
        """Return the number of a key that is no stream's; streams come first."""
        place = self._places.get(key)
        if place is None:
            self.keys.append(key)
            place = self._places[key] = len(self.keys)
        return place

    def check(self, place: int, expected: bytes, field: bytes = b"") -> None:
        """Do nothing unless a text, or that of a field, is as expected; empty if there must be none."""
        self._counts[1] += 1
        self._checks += (b"%d" % place, field, expected)

    def do(self, command: str, place: int, *arguments: bytes) -> None:
        """Do a command once all has been checked."""
        self._work += (command.encode(), b"%d" % place, b"%d" % len(arguments), *arguments)

    def _do_many(self, command: str, place: int, arguments: list[str]) -> None:
        """Do a command with pairs of texts; the driver takes its time over each argument."""
        if len(arguments) < PACKED // 10:
            self.do(command, place, *(text.encode() for text in arguments))
            return
        for start in range(0, len(arguments), PACKED):
            self.do("many", place, command.encode(), _pack(arguments[start : start + PACKED]))

    def change(self, keys: StreamKeys, change: Change) -> None:
        """Check one stream and change it."""
        first = len(self.keys) + 1
        self.keys += keys
        head = change.head
        self._counts[0] += 1
        self._streams += (
            b"" if change.expected is None else b"%d" % change.expected,
            b"1" if _certain(change) else b"0",
            b"" if change.same else self._left(head),
            b"%d" % len(change.absent),
            *(key.encode() for key in change.absent),
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
        """Return after how many milliseconds Redis lets the records of a stream expire."""
        # Those of a stream that is held stay until it is free: a write that is certain must find them.
        if head is None or head.expires is None or head.pending is not None:
            return NEVER
        # From now on by its clock, which need not be ours.
        return b"%d" % -(-(head.expires - self.moment) // 1000)

    def _unlink(self, places: Iterable[int]) -> None:
        for place in places:
            self.do("UNLINK", place)

    def _remove(self, at: StreamPlaces, change: Change) -> None:
        if change.removed:
            seqs = [b"%d" % seq for seq, _ in change.removed]
            self.do("cut", at.rows, *seqs)
            self.do("forget", at.derived, *seqs)
            self.do("HDEL", at.slots, *(key.encode() for _, key in change.removed))
        if lost := [
            _label(name, value, seq).encode()
            for seq, labels in change.lost_labels
            for name, value in labels.items()
        ]:
            self.do("ZREM", at.labels, *lost)

    def _put(self, at: StreamPlaces, change: Change) -> None:
        if not change.put:
            return
        if len(change.new) < len(change.put):
            self.do("cut", at.rows, *(b"%d" % kept.seq for kept in change.put if kept.seq not in change.new))
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
        if labels:
            self._do_many("ZADD", at.labels, labels)

    def _derive(self, at: StreamPlaces, change: Change) -> None:
        kept: list[bytes] = []
        names: set[str] = set()
        gone = [derived_field(seq, name) for seq, name, _, value in change.derived if value is None]
        for seq, name, version, value in change.derived:
            if value is not None:
                kept += (derived_field(seq, name), b"%d %b" % (version, value))
                names.add(name)
        if gone:
            self.do("HDEL", at.derived, *gone)
        if kept:
            self.do("HSET", at.derived, *kept)
            self.do("SADD", at.names, *(name.encode() for name in sorted(names)))


class StreamPlaces:
    """The numbers of a stream's keys among those of a call."""

    def __init__(self, first: int) -> None:
        self.head, self.rows, self.slots, self.derived, self.labels, self.names = range(first, first + 6)


def frees(changes: Sequence[Change]) -> bool:
    """Tell whether changes need no more room than what they change has now."""
    return not any(change.put or change.derived or change.expected is None for change in changes)


def derived_field(seq: int, name: str) -> bytes:
    """Return the field under which a derived value is kept."""
    return f"{seq}\0{name}".encode()


def _label(name: str, value: str, seq: int) -> str:
    return f"{name}\0{value}\0{seq}"


def _certain(change: Change) -> bool:
    """Tell whether a change is right even if all records of the stream have expired meanwhile."""
    if change.same:
        return False
    head = change.head
    return head is None or head.count == len(change.put) or head.expires == 0
