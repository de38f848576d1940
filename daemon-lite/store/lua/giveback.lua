#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- giveback key keep fence: gives the cover with exactly this fence back (keep 0)
-- or lowers it from 2 to 1 (keep 1), then grants to others. With another fence
-- nothing happens: a late or repeated packet frees nothing newer.
-- Reply: ok inc grace cover mode fence waiting: what the host has now.

if ARGV[9] == '0' then
	local raw = redis.call('HGETALL', KEYS[1] .. 'n:' .. ARGV[8])
	if #raw == 2 and raw[1] == 'c/' .. ARGV[1] and string.match(raw[2], '^[12] (%d+) ') == ARGV[10] then	-- nobody waits
--#plain
		if plain then
			redis.call('SREM', KEYS[1] .. 'k:' .. ARGV[1], ARGV[8])
			redis.call('DEL', KEYS[1] .. 'n:' .. ARGV[8])
			return { 'ok', ARGV[5], '0', 'cover', '0', '0', '0' }
		end
	end
end
--#common
local refused = enter()
if refused then
	return refused
end
local key, keep = ARGV[8], ARGV[9]
local raw = call('HGETALL', P .. 'n:' .. key)

--#rules
--#pump
local lock = read_lock(key, false, raw)
local cover = lock.covers[HOST]

if cover and cover.fence == ARGV[10] and (keep == '0' or (keep == '1' and cover.mode == 2)) then
	if keep == '0' then
		lock.covers[HOST] = nil
		lock.del[1] = 'c/' .. HOST
		lock.gone[HOST] = true
	else
		cover.mode = 1
		lock.is_fresh[HOST] = true
		lock.fresh[1] = HOST
	end
	pump(lock)
	write_lock(lock)
	cover = lock.covers[HOST]
end
if not cover then
	return { 'ok', inc, grace, 'cover', '0', '0', '0' }
end
return { 'ok', inc, grace, 'cover', num(cover.mode), cover.fence, num(waiting_for(lock, HOST)) }
