-- SPDX-License-Identifier: MIT
-- Granting. Part of the rules, behind rules.lua: --#pump.

-- Grants what can be granted, by ticket. Never in grace.
local function pump(lock)
	if grace == '1' or #lock.queue == 0 then
		return
	end
	local stay = {}		-- who waits and stays, blocking; none that the others in it make needless
	for _, r in ipairs(lock.queue) do
		local host, s, e, mode = r.host, r.s, r.e, r.mode
		if not r.dropped then	-- a try that was refused in this pass
			local blocked, needless, within = false, false, nil
			if not r.try then
				for _, q in ipairs(stay) do
					if q.host ~= host and (mode == '2' or q.mode == '2') and q.s < e and s < q.e then
						blocked = not r.pass
					end
					if q.s <= s and q.e >= e and q.mode >= mode then
						-- One of the same host says it all; two of different hosts do for any host.
						needless = needless or q.host == host or (within and within ~= q.host)
						within = q.host
					end
					if blocked and needless then
						break
					end
				end
			end
			if blocked or is_covered(lock, host, s, e, mode) then
				if not r.try and not needless then
					stay[#stay + 1] = r
				end
			else
				drop_request(lock, r)
				if exists(host) then
					raise_cover(lock, host, s, e, mode, match(r.value, '^%d+ %d %d+ %d+ %d %d+ (.*)$') or '')
					refuse_tries(lock, host, s, e, mode)
					lock.grants[#lock.grants + 1] = r
				end
			end
		end
	end
	sweep(lock)
end

