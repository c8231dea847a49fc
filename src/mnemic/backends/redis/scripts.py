"""The Lua scripts that run inside Redis: one reads a stream consistently, one writes streams of a scope.

Both name every key that they use, and all keys of a call are in one cluster slot. Their only argument is a list in
MessagePack.
"""

from __future__ import annotations

from hashlib import sha1


class Script:
    """A script and its SHA1."""

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
