-- SPDX-License-Identifier: MIT
-- Recalling. Part of the rules, behind rules.lua: --#recall.

-- The hosts to be told that r waits for their cover. A blocking request is told
-- once for each fence and mode (unless again); what that changes in the records
-- is added to sets. push_recalls then tells them, after the write.
local function recall(lock, r, again, sets)
	local hosts = {}
	for host, cover in pairs(lock.covers) do
		if host ~= r.host and (cover.mode == 2 or r.mode == 2) then
			if r.try or again or cover.told < r.mode then
				hosts[#hosts + 1] = host
			end
			if not r.try and cover.told < r.mode then
				cover.told = r.mode
				sets[#sets + 1] = 'c/' .. host
				sets[#sets + 1] = cover_value(cover)
			end
		end
	end
	return hosts
end

local function push_recalls(lock, r, hosts)
	for _, host in ipairs(hosts) do
		local fence = lock.covers[host].fence
		if r.try then
			push(host, 'T', lock.key, fence, r.mode, r.host, r.req)
		else
			push(host, 'R', lock.key, fence, r.mode)
		end
	end
end

