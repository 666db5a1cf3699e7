-- The load: wrk ... -s load.lua URL -- SHAPE TENANTS [SHARE]
-- Each request names its tenant; which one comes next is drawn once, so that it costs the same for all.

local LENGTH = 131072

local function pick(shape, tenants, share)
  if shape == 'even' then
    return function() return math.random(0, tenants - 1) end
  elseif shape == 'each' then
    -- One after the other: all of them have been seen after so many requests.
    local last = -1
    return function() last = (last + 1) % tenants return last end
  elseif shape == 'one' then
    -- The first has this share, the others share the rest.
    return function()
      if math.random() < share then return 0 end
      return math.random(1, tenants - 1)
    end
  elseif shape == 'zipf' then
    local sums, sum = {}, 0
    for i = 1, tenants do
      sum = sum + 1 / i
      sums[i] = sum
    end
    return function()
      local at, low, high = math.random() * sum, 1, tenants
      while low < high do
        local middle = math.floor((low + high) / 2)
        if sums[middle] < at then low = middle + 1 else high = middle end
      end
      return low - 1
    end
  end
  error('no shape ' .. tostring(shape))
end

local sequence, at = {}, 0

function init(args)
  math.randomseed(42)
  local next_tenant = pick(args[1], tonumber(args[2]), tonumber(args[3]))
  -- Formatting one for each tenant takes seconds.
  local before, after = wrk.format('GET', '/', { ['x-tenant'] = 'TENANT' }):match('^(.*)TENANT(.*)$')
  local requests = {}
  for i = 1, LENGTH do
    local tenant = next_tenant()
    requests[tenant] = requests[tenant] or before .. 't' .. tenant .. after
    sequence[i] = requests[tenant]
  end
  -- Whoever waits for this knows that the load begins. A signal that comes before is lost.
  io.write('ready\n')
  io.flush()
end

function request()
  at = at % LENGTH + 1
  return sequence[at]
end

function done(summary, latency)
  io.write(string.format(
    '{"requests":%d,"micros":%d,"not_ok":%d,"failed":%d,"p50":%d,"p90":%d,"p99":%d,"p999":%d}\n',
    summary.requests, summary.duration, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency:percentile(99.9)))
end
