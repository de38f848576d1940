#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- endgrace: the caller saw the grace of this incarnation for T on its own clock.
-- Hosts that have not re-asserted are removed; what waits is granted, or the
-- hosts that cover it are told: in grace nobody was. Reply: ok inc grace ended 0|1 (0: it was over).

--#spans
--#rules
--#change
--#pump
--#hosts
local refused = enter()
if refused then
	return refused
end
if grace == '0' then
	return { 'ok', inc, grace, 'ended', '0' }
end
local locks, seen, silent = {}, {}, {}
for _, host in ipairs(call('HKEYS', HOSTS)) do
	if call('HGET', P .. 'h:' .. host, 'inc') ~= inc then
		silent[#silent + 1] = host
	end
	for _, key in ipairs(call('SMEMBERS', P .. 'k:' .. host)) do
		if not seen[key] then
			seen[key] = true
			locks[#locks + 1] = for_change(read_lock(key, true))
		end
	end
end
table.sort(locks, function(a, b) return a.key < b.key end)

local base = tonumber(call('HGET', META, 'seqbase') or 0) or 0
call('HINCRBY', META, 'fence', 0)	-- an error now rather than half-way
for _, host in ipairs(silent) do
	base = used_up(host, base)
	call('HDEL', HOSTS, host)
	call('DEL', P .. 'h:' .. host, P .. 'k:' .. host, P .. 'o:' .. host)
	known[host] = false
end
call('HSET', META, 'grace', '0', 'seqbase', num(base))
grace = '0'

for _, lock in ipairs(locks) do
	for _, host in ipairs(silent) do
		drop_host(lock, host)
	end
	pump(lock, FIRST, LAST)
	write_lock(lock)
	for host in pairs(lock.covers) do
		tell(lock, host)
	end
end
return { 'ok', inc, grace, 'ended', '1' }
