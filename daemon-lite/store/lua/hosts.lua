-- SPDX-License-Identifier: MIT
-- Whole hosts: removing them, telling them. Part of the rules, behind pump.lua: --#hosts.

-- The first counter of a host that is made: one that no earlier host of this id
-- had, or who saw that one stand still would take the living host for the dead.
local function first_counter()
	return num((tonumber(call('HGET', META, 'seqbase') or 0) or 0) + 1)
end

-- The highest of base and the numbers that a host used up.
local function used_up(host, base)
	return math.max(base, tonumber(call('HGET', P .. 'h:' .. host, 'seq') or 0) or 0,
		tonumber(call('HGET', HOSTS, host) or 0) or 0)
end

-- Takes out of a lock what belongs to host.
local function drop_host(lock, host)
	if lock.covers[host] then
		drop_cover(lock, host)
	end
	for _, r in ipairs(lock.queue) do
		if r.host == host then
			drop_request(lock, r)
		end
	end
	sweep(lock)
	lock.gone[host] = nil	-- its index goes as a whole
end

-- Tells host all that waits for its cover, but for what this call has granted: that
-- was said with it.
local function tell(lock, host)
	local cover, fence = lock.covers[host], lock.fences[host]
	if not cover then
		return
	end
	local list = window(cover, FIRST, LAST)
	local waiting = waiting_for(lock, host, list.text, list.base, list.n, fence)
	if waiting ~= '' then
		push(host, 'R', lock.key, waiting)
	end
	tell_tries(lock, host, nil, fence)
end

-- Removes a host wholly: covers, requests, records; then grants to others.
local function remove_host(victim)
	local locks, keys = {}, call('SMEMBERS', P .. 'k:' .. victim)
	table.sort(keys)
	for _, key in ipairs(keys) do
		locks[#locks + 1] = for_change(read_lock(key, true))
	end
	local base = tonumber(call('HGET', META, 'seqbase') or 0) or 0
	local used = used_up(victim, base)
	call('HINCRBY', META, 'fence', 0)	-- an error now rather than half-way
	call('HDEL', HOSTS, victim)
	call('DEL', P .. 'h:' .. victim, P .. 'k:' .. victim, P .. 'o:' .. victim)
	if used > base then
		call('HSET', META, 'seqbase', num(used))
	end
	known[victim] = false
	for _, lock in ipairs(locks) do
		drop_host(lock, victim)
		pump(lock, FIRST, LAST)
		write_lock(lock)
	end
end

