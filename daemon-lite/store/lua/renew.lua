#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- renew: the host lives. Reply: ok inc grace renewed counter n, n messages of
-- the outbox (oldest first, at most 1,000), then host and counter of every host.

local refused = enter()
if refused then
	return refused
end
local counter = call('HINCRBY', HOSTS, HOST, 1)
local messages = try_call('ZRANGE', P .. 'o:' .. HOST, 0, 999)
if messages.err then	-- of another type: the next push makes it anew
	messages = {}
end
local reply = { 'ok', inc, grace, 'renewed', num(counter), num(#messages) }
for _, message in ipairs(messages) do
	reply[#reply + 1] = message
end
for _, item in ipairs(call('HGETALL', HOSTS)) do
	reply[#reply + 1] = item
end
return reply
