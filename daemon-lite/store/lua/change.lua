-- SPDX-License-Identifier: MIT
-- The rules of covers and queue, second part: what changes a lock, and writing it.
-- Behind rules.lua: --#change.

-- The younger a local is, the less it costs to define a function that uses it.
local call, sub, byte, concat, num = call, sub, byte, concat, num

-- A lock from read_lock (or nil), to be changed. What changes is collected and
-- written by write_lock: del fields; sets that go; changed hosts, whose cover is
-- written; gone hosts that may have lost their last record; fresh hosts with a new
-- fence each, in fences; grants, busy requests.
local function for_change(lock)
	if lock then
		lock.del, lock.del_sets, lock.changed, lock.gone = {}, {}, {}, {}
		lock.fresh, lock.fences, lock.grants, lock.busy = {}, {}, {}, {}
	end
	return lock
end

-- What of the cover lies in [s, e), as a text of records.
local function cut(cover, s, e)
	local list = window(cover, s, e)
	local text, base, n = list.text, list.base, list.n
	local i = seek(text, base, n, 0, s)
	local j = seek(text, base, n, i, e)
	local first, last = base + 59 * i, base + 59 * j
	if j < n and sub(text, last + 1, last + 19) < e then
		last = last + 59
	end
	if first == last then
		return ''
	end
	local out = sub(text, first + 1, last)
	if sub(out, 1, 19) < s then
		out = s .. sub(out, 20)
	end
	if sub(out, -39, -21) > e then
		out = sub(out, 1, -40) .. e .. sub(out, -20)
	end
	return out
end

-- A list under construction: out[1…] texts with out.n records in all; the last
-- span is kept open, since neighbours of one mode and one fence are one span.
local function close_span(out)
	if out.e then
		out[#out + 1] = out.s .. ' ' .. out.e .. ' ' .. out.mode .. ' ' .. out.fence .. ','
		out.n = out.n + 1
		out.e = nil
	end
end

local function add_span(out, s, e, mode, fence)
	if out.e == s and out.mode == mode and out.fence == fence then
		out.e = e
	else
		close_span(out)
		out.s, out.e, out.mode, out.fence = s, e, mode, fence
	end
end

-- What waits that conflicts with these spans of host (text: records, all or a part
-- of its cover): for each blocking request of another host the parts in which it
-- does, each part once, with the strongest mode.
-- skip: spans of this fence do not count.
local function waiting_for(lock, host, text, base, n, skip)
	if n == 0 or #lock.queue == 0 then
		return ''
	end
	local parts, numbers = {}, {}	-- parts: by number of the span, range -> mode
	local wanted_s, wanted_e, strongest	-- many want the same
	for j = 1, #lock.queue do
		local r = lock.queue[j]
		local mode = r.mode
		if r.kind ~= 'try' and r.host ~= host and (r.s ~= wanted_s or r.e ~= wanted_e or mode > strongest) then
			wanted_s, wanted_e, strongest = r.s, r.e, mode
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
					local k = s .. ' ' .. e .. ' '
					if (list[k] or '0') < mode then
						list[k] = mode
					end
				end
			end
		end
	end
	local out = {}
	table.sort(numbers)
	for _, i in ipairs(numbers) do
		local p = base + 59 * i
		local fence, list = sub(text, p + 43, p + 58), {}
		for range, mode in pairs(parts[i]) do
			list[#list + 1] = range .. mode .. ' ' .. fence .. ','
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
	local n, fresh = cover.n + out.n - (k - i), concat(out)
	if n == 0 then
		return drop_cover(lock, host)
	end
	lock.changed[host] = true
	if cover.set then
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
	local head, text, base = num(n) .. ' ' .. ms .. ' ', cover.text, cover.base
	local left, right = sub(text, base + 1, base + 59 * i), sub(text, base + 59 * k + 1, base + 59 * cover.n)
	lock.covers[host] = { text = head .. left .. fresh .. right .. ' ' .. info, base = #head, n = n, ms = ms }
end

-- unpack is bounded by Lua's stack: long lists go in pieces (of an even number).
local function call_many(command, key, list)
	for i = 1, #list, 500 do
		call(command, key, unpack(list, i, math.min(i + 499, #list)))
	end
end

-- Writes the spans of a cover that has them in a set, or is to have them there.
-- Returns its record. (Few need this: it uses globals, so that it is cheap to define.)
local function write_set(key, host, cover)
	local sub, set, added, removed = string.sub, cover.set or KEYS[1] .. 's:' .. host .. '/' .. key, {}, {}
	for record in pairs(cover.removed or {}) do
		removed[#removed + 1] = record
	end
	for record in pairs(cover.added or {}) do
		added[#added + 1] = '0'
		added[#added + 1] = record
	end
	if not cover.set then
		for p = cover.base + 1, cover.base + 59 * cover.n, 59 do
			added[#added + 1] = '0'
			added[#added + 1] = sub(cover.text, p, p + 58)
		end
		cover.info = sub(cover.text, cover.base + 59 * cover.n + 2)
	end
	call_many('ZREM', set, removed)
	call_many('ZADD', set, added)
	cover.set, cover.added, cover.removed = set, nil, nil
	local head = string.format('%.0f', cover.n) .. ' ' .. cover.ms .. ' '
	if cover.n > FEW_INLINE then
		return head .. '* ' .. cover.info
	end
	cover.text = head .. table.concat(redis.call('ZRANGE', set, 0, -1)) .. ' ' .. cover.info
	cover.base, cover.set = #head, nil
	redis.call('DEL', set)
	return cover.text
end

-- Marks a request as gone; sweep takes those out of lock.queue.
local function drop_request(lock, r)
	r.dropped, lock.has_dropped = true, true
	lock.del[#lock.del + 1] = r.field
	lock.gone[r.host] = true
end

local function sweep(lock)
	if not lock.has_dropped then
		return
	end
	local queue, left = lock.queue, 0
	for i = 1, #queue do
		local r = queue[i]
		queue[i] = nil
		if not r.dropped then
			left = left + 1
			queue[left] = r
		end
	end
	lock.has_dropped = false
end

-- Raises host's cover to mode within [s, e), all of it under a new fence.
local function raise_cover(lock, host, s, e, mode, info)
	local cover, fence = lock.covers[host], fence_for(lock, host)
	if not cover then	-- the common case
		local ms = now_ms()
		local head = '1 ' .. ms .. ' '
		lock.covers[host] = { text = head .. s .. ' ' .. e .. ' ' .. mode .. ' ' .. fence .. ', ' .. info, base = #head, n = 1, ms = ms }
		lock.changed[host] = true
		return
	end
	local list, out = window(cover, s, e), { n = 0 }
	local text, base, n = list.text, list.base, list.n
	local i, done = seek(text, base, n, 0, s), s	-- done: up to here it is in out
	if i > 0 and sub(text, base + 59 * i - 38, base + 59 * i - 20) == s then
		i = i - 1	-- a neighbour, which may be of one mode and fence with what is granted
	end
	local k = i
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
	if done < e then
		add_span(out, done, e, mode, fence)
	end
	change_cover(lock, host, list, i, out, k, now_ms(), info)
end

-- Tries of others that conflict with what a program of host is about to hold are
-- refused. (Those that conflict only with more of its cover are told again, see write_lock.)
local function refuse_tries(lock, host, s, e, mode)
	for _, r in ipairs(lock.queue) do
		if r.kind == 'try' and not r.dropped and r.host ~= host and (mode == '2' or r.mode == '2') and r.s < e and s < r.e then
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
		if r.kind == 'try' and cover and r.host ~= host then
			local fence = against(cover, r.s, r.e, r.mode, true)
			if fence and fence ~= except and (not only or fence == only) then
				push(host, 'T', lock.key, r.s .. ' ' .. r.e .. ' ' .. r.mode .. ' ' .. fence .. ',', r.host, req_of(r))
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
		local cover = lock.covers[host]
		sets[#sets + 1] = 'c/' .. host
		sets[#sets + 1] = (cover.set or cover.n > MOST_INLINE) and write_set(lock.key, host, cover) or cover.text
	end
	for host in pairs(lock.gone) do
		local left, i = lock.covers[host] ~= nil, #lock.queue
		while not left and i > 0 do
			left = lock.queue[i].host == host
			i = i - 1
		end
		if not left then
			call('SREM', P .. 'k:' .. host, lock.key)
		end
	end
	call_many('HDEL', name, del)
	call_many('HSET', name, sets)
	for _, r in ipairs(lock.grants) do
		local spans = cut(lock.covers[r.host], r.s, r.e)
		push(r.host, 'G', lock.key, req_of(r), spans, waiting_for(lock, r.host, spans, 0, #spans / 59))
	end
	for _, r in ipairs(lock.busy) do
		push(r.host, 'B', lock.key, req_of(r))
	end
	if grace == '0' then	-- what was told under the old fences would go unanswered
		for _, host in ipairs(fresh) do
			tell_tries(lock, host, lock.fences[host])
		end
	end
end

