#!lua
-- SPDX-License-Identifier: MIT
-- acquire key req mode try info: asks for a cover of mode (1, 2) on behalf of
-- request req. try 1: never waits for anybody but the hosts that cover.
-- Reply: ok inc grace, then granted mode fence waiting | queued | busy.

if redis.call('EXISTS', KEYS[1] .. 'n:' .. ARGV[8]) == 0 then	-- nobody has it
--#plain
	if plain and (ARGV[10] == '1' or ARGV[10] == '2') and string.find(ARGV[9], '^%d+$') then
		local t = redis.call('TIME')
		local fence = string.format('%.0f', redis.call('HINCRBY', KEYS[1] .. 'meta', 'fence', 1))
		redis.call('SADD', KEYS[1] .. 'k:' .. ARGV[1], ARGV[8])
		redis.call('HSET', KEYS[1] .. 'n:' .. ARGV[8], 'c/' .. ARGV[1], ARGV[10] .. ' ' .. fence .. ' 0 ' ..
			t[1] .. string.sub(string.format('%06d', t[2]), 1, 3) .. ' ' .. (ARGV[12] or ''))
		return { 'ok', ARGV[5], '0', 'granted', ARGV[10], fence, '0' }
	end
end
--#common
local refused = enter()
if refused then
	return refused
end
local key, req, try, info = ARGV[8], ARGV[9], ARGV[11] == '1', ARGV[12] or ''
local mode = ARGV[10] == '2' and 2 or 1
if (ARGV[10] ~= '1' and ARGV[10] ~= '2') or not find(req, '^%d+$') then
	error('acquire: mode must be 1 or 2 and req a decimal number')
end
local raw = call('HGETALL', P .. 'n:' .. key)

--#rules
--#recall
local lock = read_lock(key, false, raw)
local mine = lock.covers[HOST] ~= nil	-- whether the index has this lock already

for _, r in ipairs(lock.queue) do
	if r.host == HOST then
		mine = true
		if r.req == req then		-- a repeated packet: only the recalls go out again
			if grace == '0' then
				local sets = {}
				local hosts = recall(lock, r, true, sets)
				write_lock(lock, sets)
				push_recalls(lock, r, hosts)
			end
			return { 'ok', inc, grace, 'queued' }
		end
	end
end
if grace == '1' and try then
	return { 'ok', inc, grace, 'busy' }
end

local blocked = grace == '1'
for host, cover in pairs(lock.covers) do
	blocked = blocked or (host ~= HOST and (mode == 2 or cover.mode == 2))
end
if not try then
	for _, r in ipairs(lock.queue) do
		blocked = blocked or (not r.try and r.host ~= HOST and (mode == 2 or r.mode == 2))
	end
end

if blocked then
	local ticket = num(call('HINCRBY', META, 'ticket', 1))
	local field = concat({ 'w', HOST, req }, '/')
	local r = { host = HOST, req = req, mode = mode, try = try }
	local sets = { field, concat({ ticket, mode, try and 1 or 0, now_ms(), info }, ' ') }
	local hosts = grace == '0' and recall(lock, r, false, sets) or {}
	if not mine then
		call('SADD', P .. 'k:' .. HOST, key)
	end
	write_lock(lock, sets)
	push_recalls(lock, r, hosts)
	return { 'ok', inc, grace, 'queued' }
end

if not mine then
	call('SADD', P .. 'k:' .. HOST, key)
end
mode = raise_cover(lock, HOST, mode, info)
sweep(lock)
write_lock(lock)
local cover = lock.covers[HOST]
return { 'ok', inc, grace, 'granted', num(mode), cover.fence, num(cover.told) }
