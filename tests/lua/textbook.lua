--[[
The token bucket as it is usually written, to compare token_bucket.lua with: a hash of tokens and time
stamp, read by HMGET and TIME, written back by HSET and PEXPIRE on every call, denied ones included.

KEYS, ARGV and reply are those of token_bucket.lua. Arguments are not validated.
]]

-- The same allowance for rounding as in token_bucket.lua, so that both admit a request at the same instant.
local SLACK = 1e-6

local k = #KEYS
local count = tonumber(ARGV[3 * k + 1] or 1)
local shadow = tonumber(ARGV[3 * k + 2] or 0)
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local granted = count
local buckets = {}
for i = 1, k do
  local capacity, rate, cost = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local state = redis.call('HMGET', KEYS[i], 'tokens', 'ts')
  local tokens = tonumber(state[1]) or capacity
  local ts = tonumber(state[2]) or now
  tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate / 1000000)
  local fits = count
  if cost > 0 then
    fits = math.max(0, math.floor((tokens + SLACK) / cost))
  end
  if i <= k - shadow then
    granted = math.min(granted, fits)
  end
  buckets[i] = { capacity = capacity, rate = rate, cost = cost, tokens = tokens, fits = fits }
end

local reply = { granted }
for i = 1, k do
  local bucket = buckets[i]
  local tokens = bucket.tokens - math.min(granted, bucket.fits) * bucket.cost
  redis.call('HSET', KEYS[i], 'tokens', tokens, 'ts', now)
  redis.call('PEXPIRE', KEYS[i], math.ceil((bucket.capacity - tokens) / bucket.rate * 1000) + 1)
  local retry = 0
  if bucket.cost > bucket.capacity then
    retry = -1
  elseif bucket.fits < count then
    retry = math.max(0, math.ceil((bucket.cost - tokens) / bucket.rate * 1000))
  end
  reply[2 * i] = math.max(0, math.floor(tokens + SLACK))
  reply[2 * i + 1] = retry
end
return reply
