#!lua flags=no-writes
-- SPDX-License-Identifier: MIT
-- status limit key: what the store has, at most limit locks (10,000 if 0 or
-- missing), or only those of one key. Changes nothing and asks for no session.
-- Reply: status, then one string a record, fields joined by NUL (PROTOCOL.md).

--#spans
--#rules
--#change
local limit, only = tonumber(ARGV[8] or ''), ARGV[9]
if not limit or limit <= 0 then
	limit = 10000
end
local info = call('INFO', 'replication')
local at = find(info, 'master_replid:', 1, true)
local m = call('HMGET', META, 'proto', 'inc', 'grace', 'ttl', 'fence', 'ticket', 'replid')
local reply = { 'status' }
local function record(...)
	reply[#reply + 1] = concat({ ... }, '\0')
end
record('meta', m[1] or '', m[2] or '', m[3] or '', m[4] or '', m[5] or '', m[6] or '', now_ms(),
	match(info, 'role:(%a+)') or '', m[7] == sub(info, at + 14, at + 53) and '1' or '0')

local keys, seen, left = {}, {}, 0
local hosts = call('HGETALL', HOSTS)
for i = 1, #hosts, 2 do
	local host = hosts[i]
	local h = call('HMGET', P .. 'h:' .. host, 'inc', 'info', 'seq')
	record('host', host, hosts[i + 1], h[1] or '', h[1] and h[1] == m[2] and '1' or '0', h[2] or '', h[3] or '0',
		num(call('ZCARD', P .. 'o:' .. host)))
	for _, key in ipairs(only and {} or call('SMEMBERS', P .. 'k:' .. host)) do
		if not seen[key] then
			seen[key] = true
			keys[#keys + 1] = key
		end
	end
end
if only then
	keys[1] = only
end
table.sort(keys)
for i, key in ipairs(keys) do
	if i > limit then
		left = #keys - limit
		break
	end
	local lock = read_lock(key, true)
	if not lock then
		record('bad', key, call('TYPE', P .. 'n:' .. key).ok)
	else
		local covering = {}
		for host in pairs(lock.covers) do
			covering[#covering + 1] = host
		end
		table.sort(covering)
		for _, host in ipairs(covering) do
			local c = lock.covers[host]
			local info, spans = c.info or sub(c.text, c.base + 59 * c.n + 2), cut(c, FIRST, LAST)
			for p = 0, #spans - 59, 59 do
				record('cover', key, host, sub(spans, p + 41, p + 41), match(sub(spans, p + 43, p + 58), '^0*(.+)$'), c.ms,
					info, sub(spans, p + 1, p + 19), sub(spans, p + 21, p + 39))
			end
		end
		for _, r in ipairs(lock.queue) do
			local ms, text = match(r.value, '^%d+ %d %d+ %d+ %d (%d+) (.*)$')
			record('wait', key, r.host, req_of(r), num(r.ticket), r.mode, match(r.value, '^%d+ (%d)'), ms or '0', text or '', r.s, r.e)
		end
	end
end
record('end', num(math.min(#keys, limit)), num(left))
return reply
