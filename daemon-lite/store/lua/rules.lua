-- SPDX-License-Identifier: MIT
-- The rules of covers and queue; embed.sh puts them where a script says --#rules
-- (what is common stands before that line, so that it need not pay for them).
-- docs/PROTOCOL.md is the contract; store_model.c is the same in C.

local function failed(reply)	-- whether a pcall's reply is an error
	return type(reply) == 'table' and reply.err ~= nil
end

-- Lua's unpack is bounded by its stack: long lists go in pieces.
local function call_many(command, key, list)
	for i = 1, #list, 500 do
		call(command, key, unpack(list, i, math.min(i + 499, #list)))
	end
end

-- Pushes ------------------------------------------------------------------

local known = {}	-- host -> whether it exists, as far as asked

local function exists(host)
	local answer = known[host]
	if answer == nil then
		answer = call('HEXISTS', HOSTS, host) == 1
		known[host] = answer
	end
	return answer
end

-- Never fails half-way: an outbox of another type is made anew.
local function push(host, ...)
	if not exists(host) then
		return
	end
	local seq = try_call('HINCRBY', P .. 'h:' .. host, 'seq', 1)
	if failed(seq) then
		return
	end
	local text = num(seq)
	local message = concat({ text, inc, ... }, '\0')
	if failed(try_call('ZADD', P .. 'o:' .. host, text, message)) then
		call('DEL', P .. 'o:' .. host)
		call('ZADD', P .. 'o:' .. host, text, message)
	end
	call('PUBLISH', P .. 'p:' .. host, message)
end

-- One lock in memory --------------------------------------------------------

-- lock.covers: host -> { mode, fence, told, ms, info }; told is the strongest
-- waiting mode that the host has been told of for this fence.
-- lock.queue: requests { host, req, ticket, mode, try, field, value }, by ticket.
-- What changed is collected (dirty: hosts, del: fields, gone: hosts that may
-- have lost their last record, fresh: hosts whose cover needs a new fence,
-- grants, busy) and written by write_lock.
-- raw: the lock's HGETALL, if the caller has it. bulk: a key that cannot be read gives nil instead of an error, so that one
-- damaged key does not keep a dead host's other locks for ever.
local function read_lock(key, bulk, raw)
	local name = P .. 'n:' .. key
	if raw then
		bulk = false
	elseif bulk then
		raw = try_call('HGETALL', name)
		if failed(raw) then
			return nil
		end
	else
		raw = call('HGETALL', name)
	end
	local covers, queue, last, sorted = {}, {}, 0, true
	for i = 1, #raw, 2 do
		local field, value = raw[i], raw[i + 1]
		if byte(field, 1) == 99 then		-- c/HOST
			local mode, fence, told, ms, info = match(value, '^([12]) (%d+) ([012]) (%d+) (.*)$')
			if mode then
				covers[sub(field, 3)] = { mode = tonumber(mode), fence = fence, told = tonumber(told), ms = ms, info = info }
			elseif not bulk then
				error('the record ' .. field .. ' of this lock is damaged')
			end
		else					-- w/HOST/REQ
			local host, req = match(field, '^w/([^/]*)/(%d+)$')
			local ticket, mode, try = match(value, '^(%d+) ([12]) ([01]) ')
			if host and ticket then
				ticket = tonumber(ticket)
				sorted = sorted and ticket > last
				last = ticket
				queue[#queue + 1] = { host = host, req = req, ticket = ticket, mode = mode == '2' and 2 or 1,
					try = try == '1', field = field, value = value }
			elseif not bulk then
				error('the record ' .. field .. ' of this lock is damaged')
			end
		end
	end
	if not sorted then
		table.sort(queue, function(a, b) return a.ticket < b.ticket end)
	end
	return { key = key, name = name, covers = covers, queue = queue,
		dirty = {}, del = {}, gone = {}, fresh = {}, is_fresh = {}, grants = {}, busy = {} }
end

-- Sets of hosts, as far as a conflict needs them: nil nobody, a host, '*' several.
local function join(set, host)
	if set == nil or set == host then
		return host
	end
	return '*'
end

local function other(set, host)	-- whether somebody but host is in it
	return set ~= nil and set ~= host
end

-- Who covers: the hosts with EX, the hosts with any mode.
local function cover_sets(lock)
	local ex, any
	for host, cover in pairs(lock.covers) do
		any = join(any, host)
		if cover.mode == 2 then
			ex = join(ex, host)
		end
	end
	return ex, any
end

-- Who waits, blocking.
local function queue_sets(lock)
	local ex, any
	for _, r in ipairs(lock.queue) do
		if not r.try then
			any = join(any, r.host)
			if r.mode == 2 then
				ex = join(ex, r.host)
			end
		end
	end
	return ex, any
end

-- The strongest blocking waiting mode of other hosts that conflicts with host's cover.
local function waiting_for(lock, host)
	local cover, most = lock.covers[host], 0
	if cover then
		for _, r in ipairs(lock.queue) do
			if r.mode > most and not r.try and r.host ~= host and (cover.mode == 2 or r.mode == 2) then
				most = r.mode
			end
		end
	end
	return most
end

local function drop_request(lock, r)	-- the caller takes it out of lock.queue
	r.dropped = true
	lock.del[#lock.del + 1] = r.field
	lock.gone[r.host] = true
end

local function drop_cover(lock, host)
	lock.covers[host] = nil
	lock.del[#lock.del + 1] = 'c/' .. host
	lock.gone[host] = true
end

local function sweep(lock)
	local left = {}
	for _, r in ipairs(lock.queue) do
		if not r.dropped then
			left[#left + 1] = r
		end
	end
	lock.queue = left
end

-- Takes out what belongs to host.
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
end

-- Raises host's cover to mode, under a new fence; tries of others that conflict
-- with this mode are refused: a program of this host is about to hold it. (Those
-- that conflict only with what the cover was before are told again, see write_lock.)
local function raise_cover(lock, host, mode, info)
	local old, wanted = lock.covers[host], mode
	if old and old.mode > mode then
		mode = old.mode
	end
	lock.covers[host] = { mode = mode, told = 0, info = info }
	if not lock.is_fresh[host] then
		lock.is_fresh[host] = true
		lock.fresh[#lock.fresh + 1] = host
	end
	for _, r in ipairs(lock.queue) do
		if r.try and not r.dropped and r.host ~= host and (wanted == 2 or r.mode == 2) then
			drop_request(lock, r)
			lock.busy[#lock.busy + 1] = r
		end
	end
	return mode
end

-- Grants what can be granted, by ticket. Never in grace.
local function pump(lock)
	if grace == '1' or #lock.queue == 0 then
		return
	end
	local ex, any = cover_sets(lock)
	local stay_ex, stay_any
	for _, r in ipairs(lock.queue) do
		if not r.dropped then
			if other(ex, r.host) or (r.mode == 2 and other(any, r.host)) or
			   (not r.try and (other(stay_ex, r.host) or (r.mode == 2 and other(stay_any, r.host)))) then
				if not r.try then
					stay_any = join(stay_any, r.host)
					if r.mode == 2 then
						stay_ex = join(stay_ex, r.host)
					end
				end
			else
				drop_request(lock, r)
				if exists(r.host) then
					local mode = raise_cover(lock, r.host, r.mode, match(r.value, '^%d+ %d %d %d+ (.*)$') or '')
					lock.grants[#lock.grants + 1] = r
					any = join(any, r.host)
					if mode == 2 then
						ex = join(ex, r.host)
					end
				end
			end
		end
	end
	sweep(lock)
end

-- Tells host of the tries of others that conflict with its cover: its fence is new, or its agent is.
local function tell_tries(lock, host)
	local cover = lock.covers[host]
	for _, r in ipairs(lock.queue) do
		if cover and r.try and r.host ~= host and (cover.mode == 2 or r.mode == 2) then
			push(host, 'T', lock.key, cover.fence, r.mode, r.host, r.req)
		end
	end
end

local function cover_value(cover)
	return concat({ cover.mode, cover.fence, cover.told, cover.ms, cover.info }, ' ')
end

-- Writes what changed: fences first, then indexes, deletions, records, pushes.
-- sets: more fields and values for the hash (a new request), or nil.
local function write_lock(lock, sets)
	local fresh = lock.fresh
	sets = sets or {}
	if #fresh > 0 then
		local fence, ms = call('HINCRBY', META, 'fence', #fresh) - #fresh, now_ms()
		for i, host in ipairs(fresh) do
			local cover = lock.covers[host]
			if cover then
				cover.fence, cover.ms = num(fence + i), ms
				cover.told = grace == '0' and waiting_for(lock, host) or 0
				lock.dirty[host] = true
			end
		end
	end
	for host in pairs(lock.gone) do
		local left = lock.covers[host] ~= nil
		for _, r in ipairs(lock.queue) do
			left = left or r.host == host
		end
		if not left then
			call('SREM', P .. 'k:' .. host, lock.key)
		end
	end
	if #lock.del > 0 then
		call_many('HDEL', lock.name, lock.del)
	end
	for host in pairs(lock.dirty) do
		sets[#sets + 1] = 'c/' .. host
		sets[#sets + 1] = cover_value(lock.covers[host])
	end
	if #sets > 0 then
		call_many('HSET', lock.name, sets)
	end
	for _, r in ipairs(lock.grants) do
		local cover = lock.covers[r.host]
		push(r.host, 'G', lock.key, r.req, cover.mode, cover.fence, waiting_for(lock, r.host))
	end
	for _, r in ipairs(lock.busy) do
		push(r.host, 'B', lock.key, r.req)
	end
	if grace == '0' then	-- what was told under the old fences would go unanswered
		for _, host in ipairs(fresh) do
			tell_tries(lock, host)
		end
	end
end

-- Tells the hosts whose covers conflict with request r, after the write. A
-- blocking one is told once for each fence and mode (unless again); what is
-- raised in told is returned as fields for write_lock by recall_sets.
local function conflicting(lock, r)
	local hosts = {}
	for host, cover in pairs(lock.covers) do
		if host ~= r.host and (cover.mode == 2 or r.mode == 2) then
			hosts[#hosts + 1] = host
		end
	end
	return hosts
end

local function recall(lock, r, again, sets)
	local list = {}
	for _, host in ipairs(conflicting(lock, r)) do
		local cover = lock.covers[host]
		if r.try then
			list[#list + 1] = host
		elseif again or cover.told < r.mode then
			list[#list + 1] = host
			if cover.told < r.mode then
				cover.told = r.mode
				sets[#sets + 1] = 'c/' .. host
				sets[#sets + 1] = cover_value(cover)
			end
		end
	end
	return list
end

local function push_recalls(lock, r, hosts)
	for _, host in ipairs(hosts) do
		local fence = lock.covers[host].fence
		if r.try then
			push(host, 'T', lock.key, fence, r.mode, r.host, r.req)
		else
			push(host, 'R', lock.key, fence, r.mode)
		end
	end
end

-- Tells host of the strongest that waits and of the tries that conflict with its cover.
local function tell(lock, host)
	local cover = lock.covers[host]
	if not cover then
		return
	end
	local most = waiting_for(lock, host)
	if cover.told ~= most then	-- lower too: a reply that said it may have been lost
		cover.told = most
		call('HSET', lock.name, 'c/' .. host, cover_value(cover))
	end
	if most > 0 then
		push(host, 'R', lock.key, cover.fence, most)
	end
	tell_tries(lock, host)
end

-- Removes a host wholly: covers, requests, records; then grants to others.
local function remove_host(victim)
	local locks, keys = {}, call('SMEMBERS', P .. 'k:' .. victim)
	table.sort(keys)
	for _, key in ipairs(keys) do
		locks[#locks + 1] = read_lock(key, true)
	end
	local seq = tonumber(call('HGET', P .. 'h:' .. victim, 'seq') or 0) or 0
	local base = tonumber(call('HGET', META, 'seqbase') or 0) or 0
	call('HINCRBY', META, 'fence', 0)	-- an error now rather than half-way
	call('HDEL', HOSTS, victim)
	call('DEL', P .. 'h:' .. victim, P .. 'k:' .. victim, P .. 'o:' .. victim)
	if seq > base then
		call('HSET', META, 'seqbase', num(seq))
	end
	known[victim] = false
	for _, lock in ipairs(locks) do
		drop_host(lock, victim)
		lock.gone = {}
		pump(lock)
		write_lock(lock)
	end
end

