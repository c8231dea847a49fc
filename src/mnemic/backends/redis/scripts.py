"""The two Lua scripts that run inside Redis: one reads a stream consistently, one writes.

Both name every key that they use, and all keys of a call are in one cluster slot.
"""

from __future__ import annotations

from hashlib import sha1


class Script:
    """A script and its SHA1."""

    def __init__(self, flags: str, text: str) -> None:
        # A script with declared flags is rejected as a whole when memory is short, not halfway.
        self.text: str = f"#!lua {flags}".rstrip() + f"\n{text}"
        self.sha: str = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


# KEYS: head, rows, slots, derived, labels. ARGV: the type of read, the number of derived names, those names,
# and the requested items; keys in batches. Returns the head, whether there are any rows, the rows found, and
# derived values.
READ = Script(
    "flags=no-writes",
    """
local head = redis.call('GET', KEYS[1])
local what, names = ARGV[1], tonumber(ARGV[2])
local first = 3 + names
local found, seqs, values = {}, {}, {}

local function each(command, key, take)
  for i = first, #ARGV do
    local asked = cmsgpack.unpack(ARGV[i])
    local some = redis.call(command, key, unpack(asked))
    for j = 1, #asked do take(some[j]) end
  end
end

local function row(seq)
  local one = redis.call('ZRANGEBYSCORE', KEYS[2], seq, seq)
  if one[1] then
    found[#found + 1] = one[1]
    seqs[#seqs + 1] = seq
  end
end

if what == 'slots' then
  if redis.call('EXISTS', KEYS[3]) == 1 then
    each('HMGET', KEYS[3], function(slot) found[#found + 1] = slot end)
  end
elseif what == 'whole' then
  found = redis.call('HGETALL', KEYS[3])
elseif what == 'labels' then
  for i = first, #ARGV do
    local some = redis.call('ZRANGEBYLEX', KEYS[5], '[' .. ARGV[i] .. '\\0', '(' .. ARGV[i] .. '\\1')
    for j = 1, #some do found[#found + 1] = string.match(some[j], '%d+$') end
  end
elseif what == 'keys' then
  each('HMGET', KEYS[3], function(slot) if slot then row(string.match(slot, '%d+')) end end)
elseif what == 'seqs' then
  for i = first, #ARGV do row(ARGV[i]) end
else
  local from, to, limit = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  if names == 0 then
    found = redis.call(what, KEYS[2], from, to, 'LIMIT', 0, limit)
  else
    local some = redis.call(what, KEYS[2], from, to, 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #some, 2 do
      found[#found + 1] = some[i]
      seqs[#seqs + 1] = some[i + 1]
    end
  end
end
for i = 1, #seqs do
  for n = 3, first - 1 do
    values[#values + 1] = redis.call('HGET', KEYS[4], seqs[i] .. '\\0' .. ARGV[n])
  end
end
return {head, redis.call('EXISTS', KEYS[2]), found, values}
""",
)

# KEYS: six for each stream, then others. ARGV: the number of streams; for each, its expected revision,
# whether the change is valid even if all its records have expired, their new expiry in milliseconds, and, in
# batches, the keys that must not exist; then strings that must be unchanged; then the commands.
_WRITE = """
local i = 1
local function take()
  i = i + 1
  return ARGV[i - 1]
end

local streams = tonumber(take())
local expiring, left = {}, {}
for s = 1, streams do
  local k = (s - 1) * 6
  local revision, expires, count = '', '0', '0'
  local head = redis.call('GET', KEYS[k + 1])
  if head then revision, expires, count = string.match(head, '^(%d+) (%d+) (%d+) ') end
  local expected, certain, ends, absent = take(), take(), take(), tonumber(take())
  if revision ~= expected then return 0 end
  if certain == '0' and expires ~= '0' and count ~= '0' and redis.call('EXISTS', KEYS[k + 2]) == 0 then
    return 0
  end
  for _ = 1, absent do
    local asked = cmsgpack.unpack(take())
    local found = redis.call('HMGET', KEYS[k + 3], unpack(asked))
    for n = 1, #asked do if found[n] then return 0 end end
  end
  expiring[s], left[s] = expires ~= '0', ends
  if ends == '' and expiring[s] then
    local rest = redis.call('PTTL', KEYS[k + 2])
    if rest > 0 then left[s] = rest end
  end
end
for _ = 1, tonumber(take()) do
  local key, field, expected = KEYS[tonumber(take())], take(), take()
  local found = field == '' and redis.call('GET', key) or field ~= '' and redis.call('HGET', key, field)
  if (found or '') ~= expected then return 0 end
end

local function run(command, at, list, from, to)
  if command == 'cut' then
    for j = from, to do redis.call('ZREMRANGEBYSCORE', KEYS[at], list[j], list[j]) end
  elseif command == 'forget' then
    local names = redis.call('SMEMBERS', KEYS[at + 2])
    for j = from, to do
      for n = 1, #names do redis.call('HDEL', KEYS[at], list[j] .. '\\0' .. names[n]) end
    end
  else
    redis.call(command, KEYS[at], unpack(list, from, to))
  end
end

while i <= #ARGV do
  local command, at, count = take(), tonumber(take()), tonumber(take())
  if command == 'many' then
    local list = cmsgpack.unpack(ARGV[i + 1])
    run(ARGV[i], at, list, 1, #list)
  else
    run(command, at, ARGV, i, i + count - 1)
  end
  i = i + count
end
for s = 1, streams do
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

WRITE = Script("", _WRITE)
FREE = Script("flags=allow-oom", _WRITE)
"""The same for writes that need no memory: without it, a full server could not be emptied."""

SCRIPTS = {script.sha: script for script in (READ, WRITE, FREE)}
