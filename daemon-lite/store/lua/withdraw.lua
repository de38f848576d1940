#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- withdraw key req: the request is given up. Reply: ok inc grace withdrawn 0|1
-- (0: it was not waiting; perhaps a grant is on its way, an idle cover then).

--#spans
--#rules
--#change
--#pump
local refused = enter()
if refused then
	return refused
end
local lock = for_change(read_lock(ARGV[8]))
local found
for _, r in ipairs(lock.queue) do
	if r.host == HOST and req_of(r) == ARGV[9] then
		drop_request(lock, r)
		found = r
	end
end
if found then
	sweep(lock)
	pump(lock, found.s, found.e)
	write_lock(lock)
end
return { 'ok', inc, grace, 'withdrawn', found and '1' or '0' }
