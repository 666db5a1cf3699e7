--[==[
Tokens added to token buckets, or taken out of them, whatever they hold.

  EVALSHA sha k  key1 ... keyk   capacity1 rate1 delta1 floor1 ... capacityk ratek deltak floork
  -> { tokens1, ..., tokensk }

KEYS      1 to 8 distinct keys, one bucket each: those of token_bucket.lua. On a cluster they share one
          hash tag.
ARGV      per key, in the order of KEYS:
            capacity  the most tokens the bucket holds, whole, 1 to 10^12
            rate      tokens refilled per second, above 0 to 10^6; capacity / rate at most ten years
            delta     tokens to add, whole, at most 10^12 either way. Adding stops at the capacity;
                      taking out, with a negative delta, stops at floor
            floor     whole, at most 10^12 either way; below 0 it lets the bucket go into debt. A
                      bucket that holds no more than that already keeps what it has. Adding ignores it
          Finite decimal numbers only ("50", "-3", "1.5e-05").

tokens    what that bucket holds now, floored: below 0 for a debt. A debt refills as any other bucket.

State     As in token_bucket.lua. A bucket that is not changed is not written: one that is missing stays
          missing when tokens are given back, since no key means full.

Errors    Any bad argument or foreign value gives an error reply, and then nothing was written.
          A call whose outcome is not known must not be repeated: it may be carried out twice.

Runs in O(k). Needs GET, PTTL and SET. Works without a shebang, under Lua 5.1 and later (from
5.3 on it is floor that makes a number an integer, as a reply has to be).
]==]

local MAX_WHOLE = 1e12
local MAX_RATE = 1e6
local TEN_YEARS = 315360000
local MAX_PX = 9007199254740992
-- Forgives the rounding of refill arithmetic in the reply. It is never stored, so it does not add up.
local SLACK = 1e-6

local call, floor, find = redis.call, math.floor, string.find
local KEYS, ARGV = KEYS, ARGV

local k = #KEYS
if k < 1 or k > 8 then
  return { err = 'ERR tollgate: takes 1 to 8 keys' }
end
if #ARGV ~= 4 * k then
  return { err = 'ERR tollgate: takes capacity, rate, delta and floor for each key' }
end
-- As in token_bucket.lua: what is known to be a number, arithmetic reads.
for i = 1, #ARGV do
  local it = ARGV[i]
  if not find(it, '^%d+%.?%d*$') and not (find(it, '^[%d.eE+-]+$') and tonumber(it)) then
    return { err = 'ERR tollgate: arguments must be finite decimal numbers' }
  end
end

-- Read everything before anything is written, so that an error leaves no trace.
local reply, values, ttls = {}, {}, {}
for i = 1, k do
  local key = KEYS[i]
  local capacity, rate = ARGV[4 * i - 3] + 0, ARGV[4 * i - 2] + 0
  local delta, least = ARGV[4 * i - 1] + 0, ARGV[4 * i] + 0
  if not (capacity >= 1 and capacity <= MAX_WHOLE and capacity % 1 == 0) then
    return { err = 'ERR tollgate: capacity must be a whole number from 1 to 10^12' }
  end
  if not (rate > 0 and rate <= MAX_RATE and capacity <= rate * TEN_YEARS) then
    return { err = 'ERR tollgate: rate must be above 0, at most 10^6, and fill the capacity within ten years' }
  end
  if not (delta >= -MAX_WHOLE and delta <= MAX_WHOLE and delta % 1 == 0) then
    return { err = 'ERR tollgate: delta must be a whole number, at most 10^12 either way' }
  end
  if not (least >= -MAX_WHOLE and least <= MAX_WHOLE and least % 1 == 0) then
    return { err = 'ERR tollgate: floor must be a whole number, at most 10^12 either way' }
  end
  for j = 1, i - 1 do
    if KEYS[j] == key then
      return { err = 'ERR tollgate: keys must be distinct' }
    end
  end

  local base, elapsed, ttl, heal = capacity, 0, 0, false
  local state = call('GET', key)
  if state then
    local px
    if #state == 16 then
      base, px = struct.unpack('<dd', state)
    end
    if not (px and base <= MAX_WHOLE and base >= -MAX_WHOLE and px >= 1 and px <= MAX_PX and px % 1 == 0) then
      return { err = 'ERR tollgate: the value of key ' .. i .. ' is not a bucket' }
    end
    ttl = call('PTTL', key)
    if ttl < 0 or ttl > px then
      -- Made persistent, or the clock stepped back: no time is known to have passed.
      ttl = px
      heal = state
    end
    elapsed = px - ttl
  end

  local held = base + elapsed * rate / 1000
  if held > capacity then
    held = capacity
  end
  local tokens = held + delta
  if delta < 0 then
    if least > held then
      least = held
    end
    if tokens < least then
      tokens = least
    end
  elseif tokens > capacity then
    tokens = capacity
  end

  values[i] = heal
  ttls[i] = ttl
  if tokens ~= held then
    local px = math.ceil((capacity - tokens) / rate * 1000)
    if px < 1 then
      px = 1
    end
    -- A debt may be deeper than a TTL can tell.
    if px > MAX_PX then
      px = MAX_PX
    end
    -- Never shorter than the TTL it has: a caller with another quota may still count on it.
    if px < ttl then
      px = ttl
    end
    values[i] = struct.pack('<dd', tokens, px)
    ttls[i] = px
  end
  reply[i] = floor(tokens + SLACK)
end

for i = 1, k do
  if values[i] then
    call('SET', KEYS[i], values[i], 'PX', string.format('%d', ttls[i]))
  end
end
return reply
