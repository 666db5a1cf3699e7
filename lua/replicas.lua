-- Counts the replicas of a service by their heartbeats.
--
-- KEYS[1]  a sorted set: member, and when it expires, in milliseconds of this server's clock
-- ARGV[1]  the member that is alive
-- ARGV[2]  how long it lives from now on, in milliseconds, whole; 0 takes it out
-- Returns how many members are alive.

local member, life = ARGV[1], tonumber(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 2 or member == '' then
  return redis.error_reply('ERR tollgate: takes 1 key, a member and its life')
end
if not life or life < 0 or life > 86400000 or life % 1 ~= 0 then
  return redis.error_reply('ERR tollgate: the life is not a whole number of milliseconds from 0 to a day')
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if life > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + life), member)
  -- The last one to leave needs nobody to clean up. Twice the life, because others may live longer.
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * life))
else
  redis.call('ZREM', KEYS[1], member)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
return redis.call('ZCARD', KEYS[1])
