-- SPDX-License-Identifier: MIT
-- The common case in straight lines, before common.lua builds its functions (they
-- cost as much as the whole of this). `plain`: the prologue would let the caller
-- pass, outside grace, and change nothing. Anything unusual is left to it.
local m = redis.call('HMGET', KEYS[1] .. 'meta', 'inc', 'replid', 'grace', 'ttl', 'fence', 'proto')
local h = redis.call('HMGET', KEYS[1] .. 'h:' .. ARGV[1], 'token', 'gen_cmd')
local info = redis.call('INFO', 'replication')
local plain = m[1] == ARGV[5] and m[2] and m[3] == '0' and m[4] == ARGV[6] and m[5] and m[6] == '2' and ARGV[3] == 'cmd'
	and h[1] == ARGV[2] and h[2] == ARGV[4] and string.find(info, 'role:master', 1, true)
	and string.find(info, 'master_replid:' .. m[2], 1, true)
if plain and ARGV[7] ~= '0' then
	redis.pcall('ZREMRANGEBYSCORE', KEYS[1] .. 'o:' .. ARGV[1], '-inf', ARGV[7])
end
