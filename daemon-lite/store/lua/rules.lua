-- SPDX-License-Identifier: MIT
-- The rules of covers and queue, first part: reading a lock, raising a cover,
-- writing what changed, pushes. embed.sh puts this where a script says --#rules
-- (and pump.lua, recall.lua, hosts.lua where it says so): what is common stands
-- before that line and need not pay for the functions defined here, 0.3 µs each.
-- docs/PROTOCOL.md is the contract; store_model_lock.c is the same in C.

local known = {}	-- host -> whether it exists, as far as asked
local fences_given = 0	-- by this call, beyond fence_counter

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

-- A cover from its record COUNT MS SPANS INFO, or nil if that is damaged; set: the
-- name of the set of its spans, if they are not in the record.
local function read_cover(value, set, bulk)
	local _, base, count, ms = find(value, '^(%d+) (%d+) ')
	local n = tonumber(count)
	if not n or n == 0 then
		return nil
	elseif byte(value, base + 1) == 42 then		-- *
		if (bulk and try_call or call)('ZCARD', set) == n then
			return { set = set, n = n, ms = ms, info = sub(value, base + 3) }
		end
	elseif byte(value, base + 59 * n + 1) == 32 and byte(value, base + 59 * n) == 44 then
		local _, last = find(value, '^%d+ %d+ [12] %d+,', base + 1)
		if last == base + 59 then
			return { text = value, base = base, n = n, ms = ms }
		end
	end
end

local function cover_info(cover)
	return cover.info or sub(cover.text, cover.base + 59 * cover.n + 2)
end

-- All spans of a cover, as a text of records.
local function cover_spans(cover)
	local list = window(cover, FIRST, LAST)
	return sub(list.text, list.base + 1, list.base + 59 * list.n)
end

-- lock.covers: host -> { text: its record, base, n, ms } or { set, n, ms, info } (see spans.lua).
-- lock.queue: requests { host, req, ticket, mode, flags, s, e, try, pass, field,
-- value }, by ticket. Modes are '1' and '2' here.
-- What changed is collected and written by write_lock: del fields; sets that go;
-- changed hosts, whose cover is written; gone hosts that may have lost their last
-- record; fresh hosts with a new fence each, in fences; grants, busy requests.
-- raw: the lock's HGETALL, if the caller has it. bulk: a key that cannot be read
-- gives nil instead of an error, so that one damaged key does not keep a dead
-- host's other locks for ever.
local function read_lock(key, bulk, raw)
	local name = P .. 'n:' .. key
	raw = raw or (bulk and try_call or call)('HGETALL', name)
	if raw.err then
		return nil
	end
	local covers, queue, before, sorted = {}, {}, 0, true
	for i = 1, #raw, 2 do
		local field, value = raw[i], raw[i + 1]
		local good = false
		if byte(field, 1) == 99 then		-- c/HOST
			local host = sub(field, 3)
			local cover = read_cover(value, P .. 's:' .. host .. '/' .. key, bulk)
			if cover then
				good = true
				covers[host] = cover
			end
		else					-- w/HOST/REQ
			local host, req = match(field, '^w/([^/]*)/(%d+)$')
			local ticket, flags, s, e, mode = match(value, '^(%d+) ([0-3]) (%d+) (%d+) ([12]) ')
			if host and ticket then
				good = true
				ticket = tonumber(ticket)
				sorted = sorted and ticket > before
				before = ticket
				queue[#queue + 1] = { host = host, req = req, ticket = ticket, mode = mode, flags = flags, s = s, e = e,
					try = flags == '1' or flags == '3', pass = flags == '2', field = field, value = value }
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
		del = {}, del_sets = {}, changed = {}, gone = {}, fresh = {}, fences = {}, grants = {}, busy = {} }
end

-- Whether a cover of another host conflicts.
local function is_covered(lock, host, s, e, mode)
	for other, cover in pairs(lock.covers) do
		if other ~= host and against(cover, s, e, mode) then
			return true
		end
	end
	return false
end

-- What waits that conflicts with these spans of host (text: records, all or a part
-- of its cover): for each blocking request of another host the parts in which it
-- does, none that lies within another one of the same span and at least its mode.
-- skip: spans of this fence do not count.
local function waiting_for(lock, host, text, base, n, skip)
	local parts, numbers = {}, {}	-- parts: by number of the span, lists of { s, e, mode }
	for _, r in ipairs(lock.queue) do
		if not r.try and r.host ~= host then
			local mode, wanted_s, wanted_e = r.mode, r.s, r.e
			for i = seek(text, base, n, 0, wanted_s), n - 1 do
				local p = base + 59 * i
				local s, e = sub(text, p + 1, p + 19), sub(text, p + 21, p + 39)
				if s >= wanted_e then
					break
				end
				if (mode == '2' or byte(text, p + 41) == 50) and sub(text, p + 43, p + 58) ~= skip then
					s, e = s < wanted_s and wanted_s or s, e > wanted_e and wanted_e or e
					local list = parts[i]
					if not list then
						list = {}
						parts[i] = list
						numbers[#numbers + 1] = i
					end
					local k, inside = 1, false
					while list[k] and not inside do
						local a = list[k]
						if a.s <= s and a.e >= e and a.mode >= mode then
							inside = true
						elseif s <= a.s and e >= a.e and mode >= a.mode then
							table.remove(list, k)
						else
							k = k + 1
						end
					end
					if not inside then
						list[k] = { s = s, e = e, mode = mode }
					end
				end
			end
		end
	end
	local out = {}
	table.sort(numbers)
	for _, i in ipairs(numbers) do
		local p = base + 59 * i
		local fence, list = sub(text, p + 43, p + 58), parts[i]
		for k, a in ipairs(list) do
			list[k] = a.s .. ' ' .. a.e .. ' ' .. a.mode .. ' ' .. fence .. ','
		end
		table.sort(list)
		out[#out + 1] = concat(list)
	end
	return concat(out)
end

-- The fence that host's changes of this lock get in this call.
local function fence_for(lock, host)
	local fence = lock.fences[host]
	if not fence then
		fences_given = fences_given + 1
		fence = format('%016.0f', fence_counter + fences_given)
		lock.fences[host] = fence
		lock.fresh[#lock.fresh + 1] = host
	end
	return fence
end

-- Takes host's cover out of the lock.
local function drop_cover(lock, host)
	local cover = lock.covers[host]
	if cover.set then
		lock.del_sets[#lock.del_sets + 1] = cover.set
	end
	lock.covers[host], lock.changed[host] = nil, nil
	lock.del[#lock.del + 1] = 'c/' .. host
	lock.gone[host] = true
end

-- In host's cover the records in out take the place of those of list (a window of
-- it) from number i to before number k.
local function change_cover(lock, host, list, i, out, k, ms, info)
	local cover = lock.covers[host]
	close_span(out)
	local n, fresh = (cover and cover.n or 0) + out.n - (k - i), concat(out)
	if n == 0 then
		return drop_cover(lock, host)
	end
	lock.changed[host] = true
	if cover and cover.set then
		local before = {}
		cover.added, cover.removed = cover.added or {}, cover.removed or {}
		for p = list.base + 59 * i + 1, list.base + 59 * k, 59 do
			before[sub(list.text, p, p + 58)] = true
		end
		for p = 1, #fresh, 59 do
			local record = sub(fresh, p, p + 58)
			if before[record] then
				before[record] = nil
			else
				cover.added[record] = true
			end
		end
		for record in pairs(before) do
			if cover.added[record] then
				cover.added[record] = nil
			else
				cover.removed[record] = true
			end
		end
		cover.n, cover.ms, cover.info = n, ms, info
		return
	end
	local head, left, right = num(n) .. ' ' .. ms .. ' ', '', ''
	if cover then
		local text, base = cover.text, cover.base
		left = i > 0 and sub(text, base + 1, base + 59 * i) or ''
		right = k < cover.n and sub(text, base + 59 * k + 1, base + 59 * cover.n) or ''
	end
	lock.covers[host] = { text = head .. left .. fresh .. right .. ' ' .. info, base = #head, n = n, ms = ms }
end

-- unpack is bounded by Lua's stack: long lists go in pieces (of an even number).
local function call_many(command, key, list)
	for i = 1, #list, 500 do
		call(command, key, unpack(list, i, math.min(i + 499, #list)))
	end
end

local function add_members(set, text)
	local list = {}
	for p = 1, #text, 59 do
		list[#list + 1] = '0'
		list[#list + 1] = sub(text, p, p + 58)
	end
	call_many('ZADD', set, list)
end

-- Writes the spans of host's cover where they belong; the record itself.
local function write_cover(key, host, cover)
	local set = cover.set
	if set and cover.removed then
		local gone, added = {}, {}
		for record in pairs(cover.removed) do
			gone[#gone + 1] = record
		end
		for record in pairs(cover.added) do
			added[#added + 1] = record
		end
		call_many('ZREM', set, gone)
		add_members(set, concat(added))
		cover.added, cover.removed = nil, nil
	end
	if set and cover.n <= FEW_INLINE then
		local head = num(cover.n) .. ' ' .. cover.ms .. ' '
		cover.text, cover.base, cover.set = head .. cover_spans(cover) .. ' ' .. cover.info, #head, nil
		call('DEL', set)
	elseif not set and cover.n > MOST_INLINE then
		cover.info = cover_info(cover)
		add_members(P .. 's:' .. host .. '/' .. key, cover_spans(cover))
		cover.set = P .. 's:' .. host .. '/' .. key
	end
	return cover.set and concat({ num(cover.n), cover.ms, '*', cover.info }, ' ') or cover.text
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

-- Raises host's cover to mode within [s, e), all of it under a new fence.
local function raise_cover(lock, host, s, e, mode, info)
	local cover, fence = lock.covers[host], fence_for(lock, host)
	local out, list = { n = 0 }, nil
	local i, k, done = 0, 0, s	-- done: up to here it is in out
	if cover then
		list = window(cover, s, e)
		local text, base, n = list.text, list.base, list.n
		i = seek(text, base, n, 0, s)
		if i > 0 and sub(text, base + 59 * i - 38, base + 59 * i - 20) == s then
			i = i - 1	-- a neighbour, which may be of one mode and fence with what is granted
		end
		k = i
		while k < n do
			local p = base + 59 * k
			local from, to = sub(text, p + 1, p + 19), sub(text, p + 21, p + 39)
			if from > e then
				break
			end
			local old_mode, old_fence = sub(text, p + 41, p + 41), sub(text, p + 43, p + 58)
			if from < s then
				add_span(out, from, to < s and to or s, old_mode, old_fence)
				from = s
			end
			local inner = to < e and to or e
			if from < inner then
				if done < from then
					add_span(out, done, from, mode, fence)
				end
				add_span(out, from, inner, old_mode == '2' and '2' or mode, fence)
				done = inner
			end
			if to > e then
				if done < e then
					add_span(out, done, e, mode, fence)
					done = e
				end
				add_span(out, from > e and from or e, to, old_mode, old_fence)
			end
			k = k + 1
		end
	end
	if done < e then
		add_span(out, done, e, mode, fence)
	end
	change_cover(lock, host, list, i, out, k, now_ms(), info)
end

-- Tries of others that conflict with what a program of host is about to hold are
-- refused. (Those that conflict only with more of its cover are told again, see write_lock.)
local function refuse_tries(lock, host, s, e, mode)
	for _, r in ipairs(lock.queue) do
		if r.try and not r.dropped and r.host ~= host and (mode == '2' or r.mode == '2') and r.s < e and s < r.e then
			drop_request(lock, r)
			lock.busy[#lock.busy + 1] = r
		end
	end
end

-- Tells host of the tries of others that conflict with its cover, the highest fence
-- there being this one (only) or another one (except): its fence is new, or its agent is.
local function tell_tries(lock, host, only, except)
	local cover = lock.covers[host]
	for _, r in ipairs(lock.queue) do
		if r.try and cover and r.host ~= host then
			local fence = against(cover, r.s, r.e, r.mode, true)
			if fence and fence ~= except and (not only or fence == only) then
				push(host, 'T', lock.key, r.s .. ' ' .. r.e .. ' ' .. r.mode .. ' ' .. fence .. ',', r.host, r.req)
			end
		end
	end
end

-- Writes what changed: fences first, then indexes, deletions, records, pushes.
-- sets: more fields and values for the hash, or nil.
local function write_lock(lock, sets)
	local name, fresh, del = lock.name, lock.fresh, lock.del
	if #fresh > 0 then
		call('HINCRBY', META, 'fence', #fresh)
	end
	for _, set in ipairs(lock.del_sets) do
		call('DEL', set)
	end
	sets = sets or {}
	for host in pairs(lock.changed) do
		sets[#sets + 1] = 'c/' .. host
		sets[#sets + 1] = write_cover(lock.key, host, lock.covers[host])
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
	call_many('HDEL', name, del)
	call_many('HSET', name, sets)
	for _, r in ipairs(lock.grants) do
		local spans = cut(lock.covers[r.host], r.s, r.e)
		push(r.host, 'G', lock.key, r.req, spans, waiting_for(lock, r.host, spans, 0, #spans / 59))
	end
	for _, r in ipairs(lock.busy) do
		push(r.host, 'B', lock.key, r.req)
	end
	if grace == '0' then	-- what was told under the old fences would go unanswered
		for _, host in ipairs(fresh) do
			tell_tries(lock, host, lock.fences[host])
		end
	end
end

