-- As much of a server as the scripts see, for a Lua interpreter without one: a keyspace, and a clock that the
-- caller moves.
--
--   lua5.4 stubs.lua script.lua ...
--
-- Reads lines and answers each with one:
--
--   call N NOW k key1 ... keyk arg ...   runs script N at NOW, in milliseconds
--   persist NOW key                      takes the key's TTL away
--   forget                               empties the keyspace
--
-- The answer is the reply, then "|", then value (in hexadecimal) and time of expiry of each key.

local entries, now = {}, 0

local function entry(key)
  local found = entries[key]
  -- As a server does: a key is gone once the clock is past its time, not when it reaches it.
  if found and found.at and now > found.at then
    entries[key] = nil
    return nil
  end
  return found
end

local commands = {
  GET = function(key)
    local found = entry(key)
    return found and found.value or false
  end,
  PTTL = function(key)
    local found = entry(key)
    return not found and -2 or found.at and found.at - now or -1
  end,
  SET = function(key, value, px, millis)
    -- What a number looks like as text is the script's to say: "5.0" and "1e+15" are no TTLs.
    assert(px == 'PX' and math.type(millis) == nil and millis:find('^[1-9]%d*$'), millis)
    entries[key] = { value = value, at = now + tonumber(millis) }
  end,
}

redis = {
  call = function(command, ...)
    return commands[command](...)
  end,
}

struct = { pack = string.pack, unpack = string.unpack }

local scripts = {}
for i, path in ipairs(arg) do
  scripts[i] = assert(loadfile(path))
end

local function state(key)
  local found = entry(key)
  if not found then
    return '-'
  end
  local hex = found.value:gsub('.', function(byte)
    return string.format('%02x', byte:byte())
  end)
  return hex .. ':' .. (found.at or 'never')
end

local function reply(words)
  KEYS, ARGV = {}, {}
  local k = tonumber(words[4])
  for i = 5, #words do
    table.insert(i < 5 + k and KEYS or ARGV, words[i])
  end
  local answer = scripts[tonumber(words[2])]()
  assert(not answer.err, answer.err)
  for i, number in ipairs(answer) do
    -- Servers make integers of replies in different ways. This is one to all of them.
    assert(math.type(number) == 'integer', number)
    answer[i] = tostring(number)
  end
  local states = {}
  for i, key in ipairs(KEYS) do
    states[i] = state(key)
  end
  return table.concat(answer, ' ') .. ' | ' .. table.concat(states, ' ')
end

for line in io.lines() do
  local words = {}
  for word in line:gmatch('%S+') do
    table.insert(words, word)
  end
  if words[1] == 'forget' then
    entries = {}
    print('forgotten')
  elseif words[1] == 'persist' then
    now = tonumber(words[2])
    local found = entry(words[3])
    if found then
      found.at = nil
    end
    print('persisted')
  else
    now = tonumber(words[3])
    local _, answer = pcall(reply, words)
    print((answer:gsub('%c', ' ')))
  end
  io.flush()
end
