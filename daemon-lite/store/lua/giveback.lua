#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- giveback key parts: of the host's cover within each part, what has its fence or
-- a lower one is given back (mode 0) or lowered from 2 to 1 (mode 1); then what
-- can be is granted to others. What has a higher fence stays: a late or repeated
-- packet frees nothing newer.
-- Reply: ok inc grace cover spans waiting: what the host has now within the parts.

local raw = redis.call('HGETALL', KEYS[1] .. 'n:' .. ARGV[8])
if #raw == 2 and raw[1] == 'c/' .. ARGV[1] and #ARGV[9] == 59 then	-- nobody else has anything
	local sub, part, cover = string.sub, ARGV[9], raw[2]
	local _, p = string.find(cover, '^1 %d+ ')
	if p and sub(part, 40, 42) == ' 0 ' and sub(part, 1, 19) <= sub(cover, p + 1, p + 19) and
	   sub(cover, p + 21, p + 39) <= sub(part, 21, 39) and sub(cover, p + 43, p + 58) <= sub(part, 43, 58) then
--#plain
		if plain then
			redis.call('SREM', KEYS[1] .. 'k:' .. ARGV[1], ARGV[8])
			redis.call('DEL', KEYS[1] .. 'n:' .. ARGV[8])
			return { 'ok', ARGV[5], '0', 'cover', '', '' }
		end
	end
end
--#common
local refused = enter()
if refused then
	return refused
end
local key, parts = ARGV[8], ARGV[9]

--#spans
--#rules
--#change
--#pump
-- Of what the parts ask for, all that their fences allow. Whether anything changed.
local function reduce_cover(lock, host, parts)
	local cover = lock.covers[host]
	local list = window(cover, sub(parts, 1, 19), sub(parts, -39, -21))
	local text, base, n = list.text, list.base, list.n
	if cover.n == 1 and sub(parts, 40, 42) == ' 0 ' and sub(parts, 1, 19) <= sub(text, base + 1, base + 19) and
	   sub(text, base + 21, base + 39) <= sub(parts, 21, 39) and sub(text, base + 43, base + 58) <= sub(parts, 43, 58) then
		drop_cover(lock, host)		-- the common case: all of it
		return true
	end
	local out, changed = { n = 0 }, false
	local k, rest = 0, nil		-- the next record; where its rest begins, if a part has cut it
	for q = 0, #parts - 59, 59 do
		local part_s, part_e, keep, highest = sub(parts, q + 1, q + 19), sub(parts, q + 21, q + 39),
			sub(parts, q + 41, q + 41), sub(parts, q + 43, q + 58)
		local at = base + 59 * k
		if rest and sub(text, at + 21, at + 39) <= part_s then
			add_span(out, rest, sub(text, at + 21, at + 39), sub(text, at + 41, at + 41), sub(text, at + 43, at + 58))
			k, rest = k + 1, nil
		end
		if not rest then
			local i = seek(text, base, n, k, part_s)
			if i > k then
				close_span(out)
				out[#out + 1] = sub(text, base + 59 * k + 1, base + 59 * i)
				out.n = out.n + i - k
				k = i
			end
		end
		while k < n do
			local p = base + 59 * k
			local s, e = rest or sub(text, p + 1, p + 19), sub(text, p + 21, p + 39)
			if s >= part_e then
				break
			end
			local mode, fence = sub(text, p + 41, p + 41), sub(text, p + 43, p + 58)
			if s < part_s then
				add_span(out, s, part_s, mode, fence)
				s = part_s
			end
			local inner = e < part_e and e or part_e
			if fence > highest or (keep == '1' and mode == '1') then
				add_span(out, s, inner, mode, fence)
			else
				changed = true
				if keep == '1' then
					add_span(out, s, inner, '1', fence_for(lock, host))
				end
			end
			if e > part_e then
				rest = part_e
				break
			end
			k, rest = k + 1, nil
		end
	end
	if changed then
		if rest then
			local p = base + 59 * k
			add_span(out, rest, sub(text, p + 21, p + 39), sub(text, p + 41, p + 41), sub(text, p + 43, p + 58))
			k = k + 1
		end
		change_cover(lock, host, list, 0, out, k, cover.ms, cover.info or sub(text, base + 59 * n + 2))
	end
	return changed
end

if #parts % 59 ~= 0 then
	error('giveback: the parts are damaged')
end
local before = FIRST
for q = 1, #parts, 59 do
	local s, e, mode = sub(parts, q, q + 18), sub(parts, q + 20, q + 38), sub(parts, q + 39, q + 41)
	if (mode ~= ' 0 ' and mode ~= ' 1 ') or byte(parts, q + 58) ~= 44 or s < before or s >= e then
		error('giveback: the parts are damaged')
	end
	before = e
end

local lock = for_change(read_lock(key, false, raw))
if parts ~= '' and lock.covers[HOST] and reduce_cover(lock, HOST, parts) then
	pump(lock, sub(parts, 1, 19), sub(parts, -39, -21))
	write_lock(lock)
end
local cover = lock.covers[HOST]
if not cover then
	return { 'ok', inc, grace, 'cover', '', '' }
end
local spans, at = {}, 0
local list = window(cover, sub(parts, 1, 19), sub(parts, -39, -21))	-- asked for once, not for each part
while at < #parts do		-- parts that lie side by side are one
	local s, e = sub(parts, at + 1, at + 19), sub(parts, at + 21, at + 39)
	at = at + 59
	while sub(parts, at + 1, at + 19) == e do
		e = sub(parts, at + 21, at + 39)
		at = at + 59
	end
	spans[#spans + 1] = cut(list, s, e)
end
spans = concat(spans)
return { 'ok', inc, grace, 'cover', spans, waiting_for(lock, HOST, spans, 0, #spans / 59) }
