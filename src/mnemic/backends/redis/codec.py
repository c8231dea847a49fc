"""Redis keys, stored values, and the Lua scripts that run on the server, with their arguments.

Every key is `prefix{tag}rest`. The prefix has no brace, so stores of different prefixes never collide. The tag,
which alone determines the cluster slot, is the scope, with braces escaped as `%7B` and `%7D`. So all keys of a session
are in one slot, and no name can collide with another's slot or key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha1
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


class RedisKeys:
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


class Script:
    """A script that names every key that it uses, all in one cluster slot; its only argument is in MessagePack."""

    def __init__(self, flags: str, text: str) -> None:
        # A script with declared flags is rejected as a whole when memory is short, not halfway.
        self.text: str = f"#!lua {flags}".rstrip() + f"\n{text}"
        self.sha: str = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


# Lua cannot unpack more than 8,000 values.
_IN_CHUNKS = """
local function in_chunks(list, call)
  for from = 1, #list, 4000 do call(from, math.min(from + 3999, #list)) end
end
"""

# KEYS: state, records, slots, derived, labels. Argument: the type of read, names of derived values, requested items.
# Returns the state, whether there are any records, the records found, and their derived values.
READ = Script(
    "flags=no-writes",
    _IN_CHUNKS
    + """
local what, names, wanted = unpack(cmsgpack.unpack(ARGV[1]))
local found, seqs, values = {}, {}, {}

local function slots(take)
  in_chunks(wanted, function(from, to)
    local some = redis.call('HMGET', KEYS[3], unpack(wanted, from, to))
    for i = 1, to - from + 1 do take(some[i]) end
  end)
end

local function record(seq)
  local one = redis.call('ZRANGEBYSCORE', KEYS[2], seq, seq)
  if one[1] then
    found[#found + 1] = one[1]
    seqs[#seqs + 1] = seq
  end
end

if what == 'slots' then
  if redis.call('EXISTS', KEYS[3]) == 1 then slots(function(slot) found[#found + 1] = slot end) end
elseif what == 'all slots' then
  found = redis.call('HGETALL', KEYS[3])
elseif what == 'labels' then
  for _, label in ipairs(wanted) do
    local some = redis.call('ZRANGEBYLEX', KEYS[5], '[' .. label .. '\\0', '(' .. label .. '\\1')
    for i = 1, #some do found[#found + 1] = string.match(some[i], '%d+$') end
  end
elseif what == 'keys' then
  slots(function(slot) if slot then record(string.match(slot, '%d+')) end end)
elseif what == 'seqs' then
  for _, seq in ipairs(wanted) do record(seq) end
else
  local some = redis.call(what, KEYS[2], wanted[1], wanted[2], 'WITHSCORES', 'LIMIT', 0, wanted[3])
  for i = 1, #some, 2 do
    found[#found + 1] = some[i]
    seqs[#seqs + 1] = some[i + 1]
  end
end
if #names > 0 then
  for _, seq in ipairs(seqs) do
    for _, name in ipairs(names) do
      values[#values + 1] = redis.call('HGET', KEYS[4], seq .. '\\0' .. name)
    end
  end
end
return {redis.call('GET', KEYS[1]), redis.call('EXISTS', KEYS[2]), found, values}
""",
)

# KEYS: six for each stream, then others. Argument: for each stream its expected revision, whether the change is valid
# even if all its records have expired, their new expiry in milliseconds, and keys that must not exist; then strings
# that must be unchanged; then the commands.
_WRITE = (
    _IN_CHUNKS
    + """
local streams, checks, commands = unpack(cmsgpack.unpack(ARGV[1]))
local expiring, left = {}, {}
for s, stream in ipairs(streams) do
  local k = (s - 1) * 6
  local expected, always_valid, ends, absent = unpack(stream)
  local revision, expires, count = '', '0', '0'
  local state = redis.call('GET', KEYS[k + 1])
  if state then revision, expires, count = string.match(state, '^(%d+) (%d+) (%d+) ') end
  if revision ~= expected then return 0 end
  if not always_valid and expires ~= '0' and count ~= '0' and redis.call('EXISTS', KEYS[k + 2]) == 0 then
    return 0
  end
  local taken = false
  in_chunks(absent, function(from, to)
    local found = redis.call('HMGET', KEYS[k + 3], unpack(absent, from, to))
    for i = 1, to - from + 1 do taken = taken or found[i] end
  end)
  if taken then return 0 end
  expiring[s], left[s] = expires ~= '0', ends
  if ends == '' and expiring[s] then
    local rest = redis.call('PTTL', KEYS[k + 2])
    if rest > 0 then left[s] = rest end
  end
end
for _, check in ipairs(checks) do
  local key, field, expected = KEYS[check[1]], check[2], check[3]
  local found = field == '' and redis.call('GET', key) or field ~= '' and redis.call('HGET', key, field)
  if (found or '') ~= expected then return 0 end
end

for _, one in ipairs(commands) do
  local command, key, list = one[1], KEYS[one[2]], one[3]
  if command == 'remove records' then
    for _, seq in ipairs(list) do redis.call('ZREMRANGEBYSCORE', key, seq, seq) end
  elseif command == 'remove derived' then
    local names = redis.call('SMEMBERS', KEYS[one[2] + 2])
    for _, seq in ipairs(list) do
      for _, name in ipairs(names) do redis.call('HDEL', key, seq .. '\\0' .. name) end
    end
  elseif command == 'UNLINK' then
    redis.call(command, key)
  else
    in_chunks(list, function(from, to) redis.call(command, key, unpack(list, from, to)) end)
  end
end
for s = 1, #streams do
  for k = (s - 1) * 6 + 2, s * 6 do
    if left[s] == 'never' then
      if expiring[s] then redis.call('PERSIST', KEYS[k]) end
    elseif left[s] ~= '' then
      redis.call('PEXPIRE', KEYS[k], left[s])
    end
  end
end
return 1
"""
)

WRITE = Script("", _WRITE)
FREE = Script("flags=allow-oom", _WRITE)
"""The same for writes that need no memory: without it, a full server could not be emptied."""

SCRIPTS = {script.sha: script for script in (READ, WRITE, FREE)}
