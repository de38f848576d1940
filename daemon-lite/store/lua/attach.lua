#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- attach newtoken oldtoken info: a new connection of a host (see PROTOCOL.md).
-- role cmd makes the host, or resumes it; role renew needs it to exist with
-- newtoken. Either way connections of an older generation are shut out.

--#spans
--#rules
--#change
--#pump
--#hosts
local refused = open_store()
if refused then
	return refused
end
local newtoken, oldtoken, info = ARGV[8], ARGV[9], ARGV[10]
local hash = P .. 'h:' .. HOST
local gen_field = ROLE == 'cmd' and 'gen_cmd' or 'gen_renew'
local h = call('HMGET', hash, 'token', gen_field, 'inc', 'seq')
local alive = exists(HOST)
local verdict, locks = 'resumed', {}

if not h[1] and not alive then
	if ROLE ~= 'cmd' then
		return refuse('token')
	end
	verdict = 'joined'
	h[3] = inc
	h[4] = call('HGET', META, 'seqbase') or '0'
elseif h[1] ~= newtoken and (ROLE ~= 'cmd' or oldtoken == '' or h[1] ~= oldtoken) then
	return refuse('token')
end

-- What a connection of an earlier life of the store was called stays below.
local gen = num(math.max(tonumber(h[2] or 0) or 0, tonumber(GEN) or 0) + 1)
local swapped = h[1] ~= newtoken	-- joined, or another agent than before

if ROLE == 'cmd' then
	local keys = call('SMEMBERS', P .. 'k:' .. HOST)
	table.sort(keys)
	for _, key in ipairs(keys) do
		locks[#locks + 1] = for_change(read_lock(key, true))
	end
	call('HINCRBY', META, 'fence', 0)	-- an error now rather than half-way
	if verdict == 'joined' then
		call('HSET', HOSTS, HOST, first_counter())
		call('HSET', hash, 'gen_cmd', '0', 'gen_renew', '0', 'inc', inc, 'seq', h[4])
		known[HOST] = true
	end
	if swapped then
		call('DEL', P .. 'o:' .. HOST)
	end
	call('HSET', hash, 'token', newtoken, 'info', info)
end
call('HSET', hash, gen_field, gen)

local reply = { 'ok', inc, grace, verdict, gen, h[3] == inc and '1' or '0', h[4] or '0', fence_counter }
for _, lock in ipairs(locks) do
	if swapped then		-- nobody waits for the requests of an agent that is gone
		for _, r in ipairs(lock.queue) do
			if r.host == HOST then
				drop_request(lock, r)
			end
		end
		sweep(lock)
		pump(lock, FIRST, LAST)
		write_lock(lock)
	end
	local cover = lock.covers[HOST]
	if cover then
		reply[#reply + 1] = lock.key
		reply[#reply + 1] = cut(cover, FIRST, LAST)
		if grace == '0' then
			tell(lock, HOST)
		end
	end
end
return reply
