--[==[
Checks of several tenants in one call, each decided on its own, as token_bucket.lua would alone. This is
the end of a script that starts with token_bucket.lua, in which one line has become the head of a function:

  (token_bucket.lua up to `local key, k, arg, m = 0, #KEYS, 0, #ARGV`)
  local function decide(key, k, arg, m)
    (the rest of it)
  end

  EVALSHA sha j  key1 ... keyj   n1 k1 m1 arg1 ... argm1   n2 k2 m2 arg1 ... argm2   ...
  -> text

KEYS      the keys of the first check, then those of the second, and so on. The checks need not share a
          hash tag, so a cluster cannot run this.
ARGV      for each run of checks that differ in nothing but their keys: how many they are, how many keys each
          has, and how many arguments; then the arguments, once for all of them.
text      a line for each check, in one reply because a list for each costs more than what is in it: the
          numbers that token_bucket.lua answers, with a space in between; or, if it answers an error, `!` and
          that. The other checks are decided all the same.
]==]

local format, unpack = string.format, table.unpack or unpack
local lines = {}
local key, arg = 0, 0
while arg < #ARGV do
  -- All arguments are numbers by now, or missing.
  local n, k, m = ARGV[arg + 1] + 0, (ARGV[arg + 2] or 0) + 0, (ARGV[arg + 3] or 0) + 0
  arg = arg + 3
  if not (k >= 1 and m >= 3 and key + n * k <= #KEYS and arg + m <= #ARGV) then
    return { err = 'ERR tollgate: keys and arguments do not match' }
  end
  local numbers = '%d' .. string.rep(' %d', 2 * k)
  for _ = 1, n do
    local fine, reply = pcall(decide, key, k, arg, m)
    local refusal = fine and reply.err
    if not fine then
      -- From 7 on, Redis raises tables; before, texts that lead up to the reply.
      refusal = type(reply) == 'table' and reply.err or string.match(tostring(reply), ': %-(.*)$') or tostring(reply)
    end
    lines[#lines + 1] = refusal and '!' .. refusal or format(numbers, unpack(reply))
    key = key + k
  end
  arg = arg + m
end
return table.concat(lines, '\n')
