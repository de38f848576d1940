#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- reassert newtoken info maxfence seq ncovers (key mode info)*
--	nrequests (key req mode try info)*: the host's complete state, in grace.
-- Reply: ok inc grace asserted gen_cmd gen_renew, the fence of each cover in order.

--#rules
--#pump
--#hosts
local refused = open_store()
if refused then
	return refused
end
if grace ~= '1' then
	return refuse('nograce')
end

-- Lua's unpack is bounded by its stack: long lists go in pieces.
local function call_many(command, key, list)
	for i = 1, #list, 500 do
		call(command, key, unpack(list, i, math.min(i + 499, #list)))
	end
end

local newtoken, info, maxfence, seq = ARGV[8], ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
local hash = P .. 'h:' .. HOST
local h = call('HMGET', hash, 'token', 'gen_cmd', 'gen_renew', 'seq')
if h[1] then
	if h[1] ~= TOKEN and h[1] ~= newtoken then
		return refuse('token')
	end
	if h[2] ~= GEN then		-- the state an older connection knew must not come back
		return refuse('gen')
	end
end

-- Arguments and locks: read and checked before anything is written.
local covers, requests, locks, by_key = {}, {}, {}, {}
local at = 13
for i = 1, tonumber(ARGV[12]) do
	covers[i] = { key = ARGV[at], mode = tonumber(ARGV[at + 1]), info = ARGV[at + 2] }
	at = at + 3
end
for i = 1, tonumber(ARGV[at]) do
	local k = at + 5 * (i - 1)
	requests[i] = { key = ARGV[k + 1], req = ARGV[k + 2], mode = ARGV[k + 3], try = ARGV[k + 4] == '1', info = ARGV[k + 5] }
end
local function lock_of(key, bulk)
	local lock = by_key[key]
	if not lock then
		lock = read_lock(key, bulk)
		if lock then
			by_key[key] = lock
			locks[#locks + 1] = lock
		end
	end
	return lock
end
local confirmed = {}
for _, c in ipairs(covers) do
	if c.mode ~= 1 and c.mode ~= 2 then
		error('reassert: mode must be 1 or 2')
	end
	for host, cover in pairs(lock_of(c.key).covers) do
		if host ~= HOST and (cover.mode == 2 or c.mode == 2) then
			if confirmed[host] == nil then
				confirmed[host] = call('HGET', P .. 'h:' .. host, 'inc') == inc
			end
			if confirmed[host] then
				return refuse('conflict', c.key)
			end
		end
	end
end
for _, r in ipairs(requests) do
	if not find(r.req, '^%d+$') or (r.mode ~= '1' and r.mode ~= '2') or not r.info then
		error('reassert: a request is damaged')
	end
	lock_of(r.key)
end
for _, key in ipairs(call('SMEMBERS', P .. 'k:' .. HOST)) do
	lock_of(key, true)
end

local fence = math.max(tonumber(fence_counter), maxfence)
local ticket = call('HINCRBY', META, 'ticket', #requests) - #requests
local ms = now_ms()
call('HSET', META, 'fence', num(fence + #covers))
call('DEL', P .. 'k:' .. HOST, P .. 'o:' .. HOST)
call('HSETNX', HOSTS, HOST, first_counter())
call('HSET', hash, 'token', newtoken, 'inc', inc, 'info', info,
	'gen_cmd', h[2] or GEN, 'gen_renew', h[3] or '0', 'seq', num(math.max(tonumber(h[4] or 0), seq)))

local reply = { 'ok', inc, grace, 'asserted', h[2] or GEN, h[3] or '0' }
local index, seen, sets = {}, {}, {}
local function note(key, field, value)
	if not seen[key] then
		seen[key] = true
		index[#index + 1] = key
		sets[key] = {}
	end
	table.insert(sets[key], field)
	table.insert(sets[key], value)
end
for _, lock in ipairs(locks) do
	drop_host(lock, HOST)
	if #lock.del > 0 then
		call_many('HDEL', lock.name, lock.del)
	end
end
for i, c in ipairs(covers) do
	local text = num(fence + i)
	note(c.key, 'c/' .. HOST, concat({ c.mode, text, 0, ms, c.info }, ' '))
	reply[#reply + 1] = text
end
for i, r in ipairs(requests) do
	if not r.try then
		note(r.key, concat({ 'w', HOST, r.req }, '/'), concat({ num(ticket + i), r.mode, 0, ms, r.info }, ' '))
	end
end
for _, key in ipairs(index) do
	call_many('HSET', P .. 'n:' .. key, sets[key])
end
call_many('SADD', P .. 'k:' .. HOST, index)
return reply
