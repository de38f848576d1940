#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- expire victim counter: the caller saw victim's counter unchanged for T on its
-- own clock. Compare and delete. Reply: ok inc grace expired 0|1.

--#spans
--#rules
--#change
--#pump
--#hosts
local refused = enter()
if refused then
	return refused
end
if call('HGET', HOSTS, ARGV[8]) ~= ARGV[9] then
	return { 'ok', inc, grace, 'expired', '0' }
end
remove_host(ARGV[8])
return { 'ok', inc, grace, 'expired', '1' }
