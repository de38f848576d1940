#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- ask nonce key question: asks every other host what its kernel shows of its covers
-- (key '': of all, else of that lock), or what the question says. Nothing is stored.
-- Reply: ok inc grace asked, then each host whose agent was listening.

local refused = enter()
if refused then
	return refused
end
local message = concat({ '0', inc, 'D', HOST, ARGV[8], ARGV[9] or '', ARGV[10] or '' }, '\0')
local reply = { 'ok', inc, grace, 'asked' }
for _, host in ipairs(call('HKEYS', HOSTS)) do
	if host ~= HOST and call('PUBLISH', P .. 'p:' .. host, message) > 0 then
		reply[#reply + 1] = host
	end
end
return reply
