#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- busy key host req: the caller holds the lock; that try is refused.
-- Reply: ok inc grace busy 0|1 (0: no such try waits).

--#spans
--#rules
--#change
local refused = enter()
if refused then
	return refused
end
local lock = for_change(read_lock(ARGV[8]))
local found = '0'
for _, r in ipairs(lock.queue) do
	if r.kind == 'try' and r.host == ARGV[9] and req_of(r) == ARGV[10] then
		drop_request(lock, r)
		lock.busy[1] = r
		found = '1'
	end
end
if found == '1' then
	sweep(lock)
	write_lock(lock)
end
return { 'ok', inc, grace, 'busy', found }
