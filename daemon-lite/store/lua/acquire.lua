#!lua
-- SPDX-License-Identifier: MIT
-- acquire key req start end mode flags info: asks for a cover of mode (1, 2) of
-- [start, end) on behalf of request req. flags 1: never waits for anybody but the
-- hosts that cover; 2: does not wait behind those who wait.
-- Reply: ok inc grace, then granted spans waiting | queued | busy.

local raw = redis.call('HGETALL', KEYS[1] .. 'n:' .. ARGV[8])
if #raw == 0 then	-- nobody has it
--#plain
	if plain and (ARGV[12] == '1' or ARGV[12] == '2') and string.find(ARGV[9], '^%d+$') and
	   #ARGV[10] == 19 and #ARGV[11] == 19 and ARGV[10] < ARGV[11] and ARGV[11] <= '9223372036854775808' then
		local t = redis.call('TIME')
		local spans = string.format('0000000000000000000 9223372036854775808 %s %016.0f,', ARGV[12],
			redis.call('HINCRBY', KEYS[1] .. 'meta', 'fence', 1))
		redis.call('SADD', KEYS[1] .. 'k:' .. ARGV[1], ARGV[8])
		redis.call('HSET', KEYS[1] .. 'n:' .. ARGV[8], 'c/' .. ARGV[1], '1 ' ..
			t[1] .. string.sub(string.format('%06d', t[2]), 1, 3) .. ' ' .. spans .. ' ' .. (ARGV[14] or ''))
		return { 'ok', ARGV[5], '0', 'granted', spans, '' }
	end
end
--#common
local refused = enter()
if refused then
	return refused
end
local key, req, s, e, mode, flags, info = ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14] or ''
if not find(req, '^%d+$') or (mode ~= '1' and mode ~= '2') or not find(flags, '^[0-3]$') or
   #s ~= 19 or #e ~= 19 or find(s .. e, '%D') or s >= e or e > '9223372036854775808' then
	error('acquire: req start end mode flags are not what they must be')
end

--#spans
--#rules
--#recall
local lock = read_lock(key, false, raw)
local queue, field = lock.queue, 'w/' .. HOST .. '/' .. req
local mine = lock.covers[HOST] ~= nil	-- whether the index has this lock already
local alone = true			-- no other host has anything here
local waits				-- this very request: a repeated packet

for host in pairs(lock.covers) do
	alone = alone and host == HOST
end
for i = 1, #queue do
	local r = queue[i]
	if r.host ~= HOST then
		alone = false
	else
		mine = true
		if r.field == field then
			waits = r
		end
	end
end

if waits then
	local ticket, had, rest, text = match(waits.value, '^(%d+) (%d)( %d+ %d+ %d %d+ (.*))$')
	local raised = (flags == '2' or flags == '3') and (had == '0' or had == '1')
	s, e, mode, info = waits.s, waits.e, waits.mode, text
	if not raised or waits.kind == 'try' or grace == '1' or is_covered(lock, HOST, s, e, mode) then
		local told = grace == '0' and recall(lock, waits, true) or {}
		if raised then
			call('HSET', lock.name, field, ticket .. ' ' .. num(had + 2) .. rest)
		end
		push_recalls(lock, waits, told)
		return { 'ok', inc, grace, 'queued' }
	end
else
	local kind = (flags == '1' or flags == '3') and 'try' or flags == '2' and 'pass' or 'wait'
	if grace == '1' and kind == 'try' then
		return { 'ok', inc, grace, 'busy' }
	end
	local blocked = grace == '1' or is_covered(lock, HOST, s, e, mode)
	for i = 1, (blocked or kind ~= 'wait') and 0 or #queue do
		local r = queue[i]
		if r.kind ~= 'try' and r.host ~= HOST and (mode == '2' or r.mode == '2') and r.s < e and s < r.e then
			blocked = true
			break
		end
	end
	if blocked then
		local r = { host = HOST, s = s, e = e, mode = mode, kind = kind, field = field }
		local told = grace == '0' and recall(lock, r, false) or {}
		local ticket = num(call('HINCRBY', META, 'ticket', 1))
		if not mine then
			call('SADD', P .. 'k:' .. HOST, key)
		end
		call('HSET', lock.name, field, concat({ ticket, flags, s, e, mode, now_ms(), info }, ' '))
		push_recalls(lock, r, told)
		return { 'ok', inc, grace, 'queued' }
	end
end

--#change
for_change(lock)
local from, to = s, e
if alone then		-- nobody minds, and the next range costs no question
	from, to = FIRST, LAST
end
if waits then
	drop_request(lock, waits)
end
if not mine then
	call('SADD', P .. 'k:' .. HOST, key)
end
raise_cover(lock, HOST, from, to, mode, info)
refuse_tries(lock, HOST, s, e, mode)
sweep(lock)
write_lock(lock)
local spans = cut(lock.covers[HOST], from, to)
return { 'ok', inc, grace, 'granted', spans, waiting_for(lock, HOST, spans, 0, #spans / 59) }
