-- SPDX-License-Identifier: MIT
-- Granting. Part of the rules, behind change.lua: --#pump.

-- Grants what can be granted, by ticket, where something has become free: within
-- [from, to). Never in grace. What does not overlap that waits as before, and is
-- looked at only as far as it stands before something that does: of many who wait
-- for parts of their own, one give-back concerns few.
local function pump(lock, from, to)
	local queue = lock.queue
	if grace == '1' or #queue == 0 then
		return
	end
	local low, high = to, from		-- as far as those reach that overlap it
	for i = 1, #queue do
		local r = queue[i]
		if r.s < to and from < r.e then
			low, high = r.s < low and r.s or low, r.e > high and r.e or high
		end
	end
	local stay = {}		-- who waits and stays, blocking; none that the others in it make needless
	local gone = false
	for i = 1, #queue do
		local r = queue[i]
		local host, s, e, mode, kind = r.host, r.s, r.e, r.mode, r.kind
		if s < high and low < e and not r.dropped then	-- dropped: a try that was refused in this pass
			local blocked, covered, needless, within = s >= to or from >= e, false, false, nil
			for k = 1, kind == 'try' and 0 or #stay do
				local q = stay[k]
				local q_host, q_s, q_e, q_mode = q.host, q.s, q.e, q.mode
				local same = q_s == s and q_e == e	-- mostly, and cheaper than to compare
				if q_host == host then
					covered = covered or (q.covered and q_mode <= mode and (same or (q_s >= s and q_e <= e)))
				elseif kind == 'wait' and (mode == '2' or q_mode == '2') and (same or (q_s < e and s < q_e)) then
					blocked = true
				end
				if q_mode >= mode and (same or (q_s <= s and q_e >= e)) then
					-- One of the same host says it all; two of different hosts do for any host.
					needless = needless or q_host == host or (within and within ~= q_host)
					within = q_host
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
				else
					gone = true
				end
			end
		end
	end
	sweep(lock)
	if gone and (from > FIRST or to < LAST) then	-- others may have waited behind it
		pump(lock, FIRST, LAST)
	end
end
