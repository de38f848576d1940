-- SPDX-License-Identifier: MIT
-- Span lists: records of 59 bytes, START END MODE FENCE, (PROTOCOL.md), as they lie
-- in a text behind its first `base` bytes. Byte numbers in a record: START 1-19,
-- END 21-39, MODE 41, FENCE 43-58. Part of the rules, before rules.lua.
--
-- A cover of many spans is never read as a whole: they are the members of a sorted
-- set (cover.set), of which only what touches a range is fetched. What this call
-- has changed there lies in cover.added and cover.removed until it is written.

local MOST_INLINE, FEW_INLINE = 32, 16	-- spans: from above the first one in a set, down to the second one in the record
local FIRST, LAST = '0000000000000000000', '9223372036854775808'

-- The first record at or behind number lo (from 0) that ends behind x; n if none does.
local function seek(text, base, n, lo, x)
	local hi, step = lo, 1	-- what is looked for is often near lo: a long list is walked through in one pass
	while hi < n and sub(text, base + 59 * hi + 21, base + 59 * hi + 39) <= x do
		lo, hi, step = hi + 1, hi + step, step * 2
	end
	hi = hi < n and hi or n
	while lo < hi do
		local mid = (lo + hi - (lo + hi) % 2) / 2
		local p = base + 59 * mid
		if sub(text, p + 21, p + 39) > x then
			hi = mid
		else
			lo = mid + 1
		end
	end
	return lo
end

-- The spans of a cover that touch [s, e], as a list { text, base, n }, perhaps with
-- others around them. any: one of those that overlap will do.
local function window(cover, s, e, any)
	local set, removed = cover.set, cover.removed
	if not set then
		return cover
	end
	local most = '(' .. e .. '!'	-- behind every record that starts at e or before
	local got, list = call('ZREVRANGEBYLEX', set, most, '-', 'LIMIT', 0, 3), {}
	if #got == 3 and sub(got[3], 21, 39) >= s and (removed or not any) then
		got = call('ZREVRANGEBYLEX', set, most, '[' .. s)
		got[#got + 1] = call('ZREVRANGEBYLEX', set, '(' .. s, '-', 'LIMIT', 0, 1)[1]
	end
	for i = #got, 1, -1 do
		local record = got[i]
		if #record == 59 and sub(record, 21, 39) >= s and not (removed and removed[record]) then
			list[#list + 1] = record
		end
	end
	if removed then
		for record in pairs(cover.added) do
			if sub(record, 21, 39) >= s and sub(record, 1, 19) <= e then
				list[#list + 1] = record
			end
		end
		table.sort(list)
	end
	return { text = concat(list), base = 0, n = #list }
end

-- A fence of a span that conflicts with mode in [s, e), or nil. most: the highest.
local function against(cover, s, e, mode, most)
	local list = cover.set and window(cover, s, e, mode == '2' and not most) or cover
	local text, base, n = list.text, list.base, list.n
	local found
	for i = n > 3 and seek(text, base, n, 0, s) or 0, n - 1 do
		local p = base + 59 * i
		if sub(text, p + 1, p + 19) >= e then
			return found
		end
		if sub(text, p + 21, p + 39) > s and (mode == '2' or byte(text, p + 41) == 50) then
			local fence = sub(text, p + 43, p + 58)
			if not most then
				return fence
			end
			if not found or fence > found then
				found = fence
			end
		end
	end
	return found
end

