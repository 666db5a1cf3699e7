--[==[
Token buckets, decided all or none.

  EVALSHA sha k  key1 ... keyk   capacity1 rate1 cost1 ... capacityk ratek costk  [count [shadow]]
  -> { granted, remaining1, retry_ms1, ..., remainingk, retry_msk }

KEYS      1 to 8 distinct keys, one bucket each. On a cluster they share one hash tag.
ARGV      per key, in the order of KEYS:
            capacity  the most tokens the bucket holds, whole, 1 to 10^12
            rate      tokens refilled per second, above 0 to 10^6; capacity / rate at most ten years
            cost      tokens that one request takes, whole, 0 to 10^12; a key of cost 0 is only read
          then, optionally:
            count     how many requests of these costs are wanted, whole, from 1 (default 1)
            shadow    how many of the last keys never block, whole, 0 to k (default 0)
          Finite decimal numbers only ("50", "0.25", "1.5e-05").

granted   0 to count: how many of the requests fit every enforcing key. With count 1 it is the
          allowed flag. An enforcing key is charged granted x cost; a shadow key is charged for as
          many of the granted as fit it.
remaining tokens left in that key's bucket, floored, never negative.
retry_ms  0 if the key had room for all count; else the milliseconds, rounded up, until one more
          request fits after what was just granted; -1 if the cost exceeds the capacity.

State     A bucket is one string of 16 bytes, struct.pack('<dd', tokens, px): the tokens left by the
          last write and the TTL in milliseconds given then. The time since that write is px - PTTL,
          so the server's own expiry clock is the only clock. No key means full.

Errors    Any bad argument or foreign value gives an error reply, and then nothing was written.
          A denial writes nothing, unless the TTL is gone or longer than was given: then the state
          is put back as it stands, with its TTL.

Runs in O(k). Needs GET, PTTL and SET. Works without a shebang, under Lua 5.1 and later (from
5.3 on it is floor that makes a number an integer, as a reply has to be).
]==]

local MAX_WHOLE = 1e12
local MAX_RATE = 1e6
local TEN_YEARS = 315360000
local MAX_PX = 9007199254740992
-- Forgives the rounding of refill arithmetic in comparisons. It is never stored, so it does not add up.
local SLACK = 1e-6

local call, floor, find = redis.call, math.floor, string.find
-- A global is looked up by its name each time. What one bucket takes once, it looks up where it takes it.
local KEYS, ARGV = KEYS, ARGV

-- Once they are known to be numbers, arithmetic reads them at half the price of tonumber. Most are of the first
-- kind; tonumber alone would take " 1" and "0x10", too.
for i = 1, #ARGV do
  local it = ARGV[i]
  if not find(it, '^%d+%.?%d*$') and not (find(it, '^[%d.eE+-]+$') and tonumber(it)) then
    return { err = 'ERR tollgate: arguments must be finite decimal numbers' }
  end
end

-- Where the keys and arguments start, and how many there are. What follows this line is the body of a
-- function in gather.lua.
local key, k, arg, m = 0, #KEYS, 0, #ARGV
local extra = m - 3 * k
if k < 1 or k > 8 then
  return { err = 'ERR tollgate: takes 1 to 8 keys' }
end
if extra < 0 or extra > 2 then
  return { err = 'ERR tollgate: takes capacity, rate and cost for each key, then at most count and shadow' }
end
local count, shadow = 1, 0
if extra > 0 then
  count = ARGV[arg + 3 * k + 1] + 0
  if not (count >= 1 and count <= MAX_WHOLE and count % 1 == 0) then
    return { err = 'ERR tollgate: count must be a whole number from 1 to 10^12' }
  end
end
if extra > 1 then
  shadow = ARGV[arg + 3 * k + 2] + 0
  if not (shadow >= 0 and shadow <= k and shadow % 1 == 0) then
    return { err = 'ERR tollgate: shadow must be a whole number from 0 to the number of keys' }
  end
end

-- Read everything before anything is written, so that an error leaves no trace.
local granted = count
-- Of a single bucket, these locals hold all that is known until it is written; of several, a table each.
local capacity, rate, cost, base, elapsed, ttl, heal, tokens, fits
local buckets = k > 1 and {}
for i = 1, k do
  local name, first = KEYS[key + i], arg + 3 * i
  capacity, rate, cost = ARGV[first - 2] + 0, ARGV[first - 1] + 0, ARGV[first] + 0
  if not (capacity >= 1 and capacity <= MAX_WHOLE and capacity % 1 == 0) then
    return { err = 'ERR tollgate: capacity must be a whole number from 1 to 10^12' }
  end
  if not (rate > 0 and rate <= MAX_RATE and capacity <= rate * TEN_YEARS) then
    return { err = 'ERR tollgate: rate must be above 0, at most 10^6, and fill the capacity within ten years' }
  end
  if not (cost >= 0 and cost <= MAX_WHOLE and cost % 1 == 0) then
    return { err = 'ERR tollgate: cost must be a whole number from 0 to 10^12' }
  end
  for j = 1, i - 1 do
    if KEYS[key + j] == name then
      return { err = 'ERR tollgate: keys must be distinct' }
    end
  end

  base, elapsed, ttl, heal = capacity, 0, 0, false
  local state = call('GET', name)
  if state then
    local px
    if #state == 16 then
      base, px = struct.unpack('<dd', state)
    end
    if not (px and base <= MAX_WHOLE and base >= -MAX_WHOLE and px >= 1 and px <= MAX_PX and px % 1 == 0) then
      return { err = 'ERR tollgate: the value of key ' .. i .. ' is not a bucket' }
    end
    ttl = call('PTTL', name)
    if ttl < 0 or ttl > px then
      -- Made persistent, or the clock stepped back: no time is known to have passed.
      ttl = px
      heal = state
    end
    elapsed = px - ttl
  end

  tokens = base + elapsed * rate / 1000
  if tokens > capacity then
    tokens = capacity
  end
  fits = count
  if cost > 0 then
    fits = floor((tokens + SLACK) / cost)
    if fits < 0 then
      fits = 0
    end
  end
  if fits < granted and i <= k - shadow then
    granted = fits
  end
  if buckets then
    buckets[i] = { capacity, rate, cost, base, elapsed, ttl, heal, tokens, fits }
  end
end

local unpack = buckets and (table.unpack or unpack)
local reply = { granted, 0, 0 }
for i = 1, k do
  if buckets then
    capacity, rate, cost, base, elapsed, ttl, heal, tokens, fits = unpack(buckets[i])
  end
  local charge = (fits < granted and fits or granted) * cost
  if charge > 0 then
    tokens = tokens - charge
    base, elapsed = tokens, 0
    -- Never shorter than the TTL it has: a caller with another quota may still count on it.
    local px = math.ceil((capacity - tokens) / rate * 1000)
    if px < 1 then
      px = 1
    end
    if px < ttl then
      px = ttl
    end
    call('SET', KEYS[key + i], struct.pack('<dd', tokens, px), 'PX', string.format('%d', px))
  elseif heal then
    call('SET', KEYS[key + i], heal, 'PX', string.format('%d', ttl))
  end

  local retry = 0
  if cost > capacity then
    retry = -1
  elseif fits < count then
    -- Counted from the last write. Trimming one part in 10^12 keeps rounding noise from adding a
    -- millisecond; the next lines make up for it where it mattered.
    local exact = (cost - base) * 1000 / rate
    retry = math.ceil(exact * (1 - 1e-12))
    if base + retry * rate / 1000 + SLACK < cost then
      retry = retry + 1
      -- Of decades, as a deep debt takes, the part is more than a millisecond.
      if retry < exact then
        retry = math.ceil(exact)
      end
    end
    -- No key lives longer than that, and then the bucket is full.
    if retry > MAX_PX then
      retry = MAX_PX
    end
    retry = floor(retry - elapsed)
    if retry < 0 then
      retry = 0
    end
  end
  local remaining = floor(tokens + SLACK)
  if remaining < 0 then
    remaining = 0
  end
  reply[2 * i] = remaining
  reply[2 * i + 1] = retry
end
return reply
