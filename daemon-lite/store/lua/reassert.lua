#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- reassert newtoken info maxfence seq ncovers (key spans info)*
--	nrequests (key req start end mode flags info)*: the host's complete state, in grace.
-- Reply: ok inc grace asserted gen_cmd gen_renew, the fence of each lock in order.

--#spans
--#rules
--#change
--#pump
--#hosts
local refused = open_store()
if refused then
	return refused
end
if grace ~= '1' then
	return refuse('nograce')
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
	covers[i] = { key = ARGV[at], text = ARGV[at + 1], base = 0, n = #ARGV[at + 1] / 59, info = ARGV[at + 2] }
	at = at + 3
end
for i = 1, tonumber(ARGV[at]) do
	local k = at + 7 * (i - 1)
	requests[i] = { key = ARGV[k + 1], req = ARGV[k + 2], s = ARGV[k + 3], e = ARGV[k + 4], mode = ARGV[k + 5],
		flags = ARGV[k + 6], info = ARGV[k + 7] }
end
local function lock_of(key, bulk)
	local lock = by_key[key]
	if not lock then
		lock = for_change(read_lock(key, bulk))
		if lock then
			by_key[key] = lock
			locks[#locks + 1] = lock
		end
	end
	return lock
end
local confirmed = {}
for _, c in ipairs(covers) do
	local spans, before = {}, FIRST
	if not c.info or c.n % 1 ~= 0 then
		error('reassert: a cover is damaged')
	end
	for i = 1, c.n do
		local s, e, mode = match(sub(c.text, 59 * i - 58, 59 * i), '^(%d+) (%d+) ([12]) %d+,$')
		if not s or #s ~= 19 or #e ~= 19 or s < before or s >= e or e > LAST then
			error('reassert: a cover is damaged')
		end
		before = e
		spans[i] = { s, e, mode }
	end
	for host, cover in pairs(lock_of(c.key).covers) do
		for i = 1, host ~= HOST and c.n or 0 do
			if against(cover, spans[i][1], spans[i][2], spans[i][3]) then
				if confirmed[host] == nil then
					confirmed[host] = call('HGET', P .. 'h:' .. host, 'inc') == inc
				end
				if confirmed[host] then
					return refuse('conflict', c.key)
				end
				break
			end
		end
	end
	c.spans = spans
end
for _, r in ipairs(requests) do
	if not r.info or not find(concat({ r.req, r.s, r.e, r.mode, r.flags }, ' '), '^%d+ %d+ %d+ [12] [0-3]$') or
	   #r.s ~= 19 or #r.e ~= 19 or r.s >= r.e or r.e > LAST then
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
	call_many('HDEL', lock.name, lock.del)
	for _, set in ipairs(lock.del_sets) do
		call('DEL', set)
	end
end
for i, c in ipairs(covers) do
	local out, text = { n = 0 }, format('%016.0f', fence + i)
	for _, span in ipairs(c.spans) do
		add_span(out, span[1], span[2], span[3], text)
	end
	close_span(out)
	if out.n > 0 then
		local head = num(out.n) .. ' ' .. ms .. ' '
		local cover = { text = head .. concat(out) .. ' ' .. c.info, base = #head, n = out.n, ms = ms }
		note(c.key, 'c/' .. HOST, out.n > MOST_INLINE and write_set(c.key, HOST, cover) or cover.text)
	end
	reply[#reply + 1] = num(fence + i)
end
for i, r in ipairs(requests) do
	if r.flags == '0' or r.flags == '2' then
		note(r.key, concat({ 'w', HOST, r.req }, '/'), concat({ num(ticket + i), r.flags, r.s, r.e, r.mode, ms, r.info }, ' '))
	end
end
for _, key in ipairs(index) do
	call_many('HSET', P .. 'n:' .. key, sets[key])
end
call_many('SADD', P .. 'k:' .. HOST, index)
return reply
