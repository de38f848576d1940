#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- tell host nonce part last text: a part of the answer to what that host asked.
-- Nothing is stored. Reply: ok inc grace told 0|1 (0: its agent is not listening).

local refused = enter()
if refused then
	return refused
end
local message = concat({ '0', inc, 'A', HOST, ARGV[9], ARGV[10], ARGV[11], ARGV[12] }, '\0')
return { 'ok', inc, grace, 'told', call('PUBLISH', P .. 'p:' .. ARGV[8], message) > 0 and '1' or '0' }
