#!lua
-- SPDX-License-Identifier: MIT
-- init: declares that this namespace is new, so that no grace is needed.
-- Of the common arguments only ttl counts. Reply: ok inc 0, or refused exists.

local info = call('INFO', 'replication')
if not find(info, 'role:master', 1, true) then
	return refuse('role', 'this server is a replica')
end
local m = call('HMGET', META, 'inc', 'grace')
if m[1] or call('EXISTS', META, HOSTS) > 0 then
	inc, grace = m[1] or '', m[2] or '0'
	return refuse('exists')
end
if not find(TTL, '^[1-9]%d*$') then
	return refuse('ttl', '0')
end
local at = find(info, 'master_replid:', 1, true)
local replid = sub(info, at + 14, at + 53)
local t = call('TIME')
inc = sub(replid, 1, 8) .. '-' .. t[1] .. format('%06d', tonumber(t[2]))
call('HSET', META, 'proto', '2', 'inc', inc, 'replid', replid, 'ttl', TTL, 'fence', '0', 'ticket', '0', 'grace', '0')
return { 'ok', inc, grace }
