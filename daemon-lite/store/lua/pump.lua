-- SPDX-License-Identifier: MIT
-- Granting. Part of the rules, behind change.lua: --#pump.

-- Grants what can be granted, by ticket. Never in grace.
local function pump(lock)
	local queue = lock.queue
	if grace == '1' or #queue == 0 then
		return
	end
	local stay = {}		-- who waits and stays, blocking; none that the others in it make needless
	for i = 1, #queue do
		local r = queue[i]
		local host, s, e, mode, kind = r.host, r.s, r.e, r.mode, r.kind
		if not r.dropped then	-- a try that was refused in this pass
			local blocked, covered, needless, within = false, false, false, nil
			for k = 1, kind == 'try' and 0 or #stay do
				local q = stay[k]
				if q.host == host then
					covered = covered or (q.covered and q.s >= s and q.e <= e and q.mode <= mode)
				elseif kind == 'wait' and (mode == '2' or q.mode == '2') and q.s < e and s < q.e then
					blocked = true
				end
				if q.s <= s and q.e >= e and q.mode >= mode then
					-- One of the same host says it all; two of different hosts do for any host.
					needless = needless or q.host == host or (within and within ~= q.host)
					within = q.host
				end
				if needless and (blocked or covered) then
					break
				end
			end
			if not blocked and not covered then
				covered = is_covered(lock, host, s, e, mode)
			end
			if blocked or covered then
				if kind ~= 'try' and not needless then
					r.covered = covered
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

