-- SPDX-License-Identifier: MIT
-- The rules of covers and queue, first part: reading a lock, pushes. Then come, as
-- far as a script asks for them: recall.lua, change.lua, pump.lua, hosts.lua. Each
-- stands where a script says --#NAME (embed.sh); what comes before that line need
-- not pay for the functions defined there, 0.1 to 0.3 µs each.
-- docs/PROTOCOL.md is the contract; store_model_lock.c and store_model_tell.c are
-- the same in C.

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

-- lock.covers: host -> { text: its record, base, n, ms }, or { set, n, ms, info } if
-- the record has no spans (see spans.lua).
-- lock.queue: requests { host, ticket, mode, s, e, kind, field, value }, by ticket.
-- Modes are '1' and '2'; kind is 'try', 'pass' (blocking, flag 2) or 'wait'.
-- raw: the lock's HGETALL, if the caller has it. bulk: a key that cannot be read
-- gives nil instead of an error, so that one damaged key does not keep a dead
-- host's other locks for ever.
local function read_lock(key, bulk, raw)
	local name = P .. 'n:' .. key
	raw = raw or (bulk and try_call or call)('HGETALL', name)
	if raw.err then
		return nil
	end
	local covers, by_ticket, tickets, before, sorted = {}, {}, {}, 0, true
	for i = 1, #raw, 2 do
		local field, value = raw[i], raw[i + 1]
		local good = false
		if byte(field, 1) == 99 then		-- c/HOST: COUNT MS SPANS INFO
			local host = sub(field, 3)
			local _, base, count, ms = find(value, '^(%d+) (%d+) ')
			local n = tonumber(count)
			if not n or n == 0 then
				good = false
			elseif byte(value, base + 1) == 42 then		-- *
				local set = P .. 's:' .. host .. '/' .. key
				good = (bulk and try_call or call)('ZCARD', set) == n
				covers[host] = good and { set = set, n = n, ms = ms, info = sub(value, base + 3) } or nil
			elseif byte(value, base + 20) == 32 and byte(value, base + 40) == 32 and byte(value, base + 42) == 32 and
			       byte(value, base + 59 * n) == 44 and byte(value, base + 59 * n + 1) == 32 then
				good = true
				covers[host] = { text = value, base = base, n = n, ms = ms }
			end
		else					-- w/HOST/REQ: TICKET FLAGS START END MODE MS INFO
			local slash, space = find(field, '/', 3, true), find(value, ' ', 1, true)
			local ticket = slash and space and tonumber(sub(value, 1, space - 1))
			local mode = ticket and sub(value, space + 43, space + 43)
			if mode == '1' or mode == '2' then
				local flags = byte(value, space + 1) - 48
				good = true
				sorted = sorted and ticket > before
				before = ticket
				tickets[#tickets + 1] = ticket
				by_ticket[ticket] = { host = sub(field, 3, slash - 1), ticket = ticket, mode = mode, s = sub(value, space + 3, space + 21),
					e = sub(value, space + 23, space + 41), kind = flags == 0 and 'wait' or flags == 2 and 'pass' or 'try',
					field = field, value = value }
			end
		end
		if not good and not bulk then
			error('the record ' .. field .. ' of this lock is damaged')
		end
	end
	if not sorted then
		table.sort(tickets)	-- of numbers, which is cheaper than by a function
	end
	local queue = {}
	for i = 1, #tickets do
		queue[i] = by_ticket[tickets[i]]
	end
	return { key = key, name = name, covers = covers, queue = queue }
end

-- The request's id and its text.
local function req_of(r)
	return sub(r.field, #r.host + 4)
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

