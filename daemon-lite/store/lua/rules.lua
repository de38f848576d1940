-- SPDX-License-Identifier: MIT
-- The rules of covers and queue, first part: reading a lock, raising a cover,
-- writing what changed, pushes. embed.sh puts this where a script says --#rules
-- (and pump.lua, recall.lua, hosts.lua where it says so): what is common stands
-- before that line and need not pay for the functions defined here, 0.3 µs each.
-- docs/PROTOCOL.md is the contract; store_model_lock.c is the same in C.

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
	if type(seq) ~= 'number' then
		return
	end
	seq = num(seq)
	local message, outbox = concat({ seq, inc, ... }, '\0'), P .. 'o:' .. host
	if type(try_call('ZADD', outbox, seq, message)) ~= 'number' then
		call('DEL', outbox)
		call('ZADD', outbox, seq, message)
	end
	call('PUBLISH', P .. 'p:' .. host, message)
end

-- lock.covers: host -> { mode, fence, told, ms, info }; told is the strongest
-- waiting mode that the host has been told of for this fence.
-- lock.queue: requests { host, req, ticket, mode, try, field, value }, by ticket.
-- What changed is collected and written by write_lock: del fields; gone hosts
-- that may have lost their last record; fresh hosts whose cover needs a new
-- fence (is_fresh the same as a set); grants, busy requests.
-- raw: the lock's HGETALL, if the caller has it. bulk: a key that cannot be read
-- gives nil instead of an error, so that one damaged key does not keep a dead
-- host's other locks for ever.
local function read_lock(key, bulk, raw)
	local name = P .. 'n:' .. key
	raw = raw or (bulk and try_call or call)('HGETALL', name)
	if raw.err then
		return nil
	end
	local covers, queue, last, sorted = {}, {}, 0, true
	for i = 1, #raw, 2 do
		local field, value = raw[i], raw[i + 1]
		local good = false
		if byte(field, 1) == 99 then		-- c/HOST
			local mode, fence, told, ms, info = match(value, '^([12]) (%d+) ([012]) (%d+) (.*)$')
			if mode then
				good = true
				covers[sub(field, 3)] = { mode = mode == '2' and 2 or 1, fence = fence, told = tonumber(told), ms = ms, info = info }
			end
		else					-- w/HOST/REQ
			local host, req = match(field, '^w/([^/]*)/(%d+)$')
			local ticket, mode, try = match(value, '^(%d+) ([12]) ([01]) ')
			if host and ticket then
				good = true
				ticket = tonumber(ticket)
				sorted = sorted and ticket > last
				last = ticket
				queue[#queue + 1] = { host = host, req = req, ticket = ticket, mode = mode == '2' and 2 or 1,
					try = try == '1', field = field, value = value }
			end
		end
		if not good and not bulk then
			error('the record ' .. field .. ' of this lock is damaged')
		end
	end
	if not sorted then
		table.sort(queue, function(a, b) return a.ticket < b.ticket end)
	end
	return { key = key, name = name, covers = covers, queue = queue,
		del = {}, gone = {}, fresh = {}, is_fresh = {}, grants = {}, busy = {} }
end

-- The strongest blocking waiting mode of other hosts that conflicts with host's cover.
local function waiting_for(lock, host)
	local cover, most = lock.covers[host], 0
	if cover then
		local any = cover.mode == 2
		for _, r in ipairs(lock.queue) do
			if r.mode > most and (any or r.mode == 2) and not r.try and r.host ~= host then
				most = r.mode
			end
		end
	end
	return most
end

-- Marks a request as gone; sweep takes those out of lock.queue.
local function drop_request(lock, r)
	r.dropped = true
	lock.del[#lock.del + 1] = r.field
	lock.gone[r.host] = true
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

-- Tells host of the tries of others that conflict with its cover: its fence is new, or its agent is.
local function tell_tries(lock, host)
	local cover = lock.covers[host]
	for _, r in ipairs(lock.queue) do
		if r.try and cover and r.host ~= host and (cover.mode == 2 or r.mode == 2) then
			push(host, 'T', lock.key, cover.fence, r.mode, r.host, r.req)
		end
	end
end

local function cover_value(cover)
	return concat({ cover.mode, cover.fence, cover.told, cover.ms, cover.info }, ' ')
end

-- Writes what changed: fences first, then indexes, deletions, records, pushes.
-- sets: more fields and values for the hash, or nil.
local function write_lock(lock, sets)
	local name, fresh, del = lock.name, lock.fresh, lock.del
	if #fresh > 0 then
		local fence, ms = call('HINCRBY', META, 'fence', #fresh) - #fresh, now_ms()
		sets = sets or {}
		for i, host in ipairs(fresh) do
			local cover = lock.covers[host]
			cover.fence, cover.ms = num(fence + i), ms
			cover.told = grace == '0' and waiting_for(lock, host) or 0
			sets[#sets + 1] = 'c/' .. host
			sets[#sets + 1] = cover_value(cover)
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
	for i = 1, #del, 500 do		-- unpack is bounded by Lua's stack
		call('HDEL', name, unpack(del, i, math.min(i + 499, #del)))
	end
	for i = 1, sets and #sets or 0, 500 do
		call('HSET', name, unpack(sets, i, math.min(i + 499, #sets)))
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

