-- SPDX-License-Identifier: MIT
-- Granting. Part of the rules, behind rules.lua: --#pump.

-- Grants what can be granted, by ticket. Never in grace. Sets of hosts, as far
-- as a conflict needs them: nil nobody, a host, '*' several; ex has mode 2.
local function pump(lock)
	if grace == '1' or #lock.queue == 0 then
		return
	end
	local ex, any			-- who covers
	local stay_ex, stay_any		-- who waits and stays, blocking
	for host, cover in pairs(lock.covers) do
		any = (any == nil or any == host) and host or '*'
		if cover.mode == 2 then
			ex = (ex == nil or ex == host) and host or '*'
		end
	end
	for _, r in ipairs(lock.queue) do
		local host, wants_ex = r.host, r.mode == 2
		if r.dropped then
			-- a try that was refused in this pass
		elseif (ex and ex ~= host) or (wants_ex and any and any ~= host) or
		       (not r.try and ((stay_ex and stay_ex ~= host) or (wants_ex and stay_any and stay_any ~= host))) then
			if not r.try then
				stay_any = (stay_any == nil or stay_any == host) and host or '*'
				if wants_ex then
					stay_ex = (stay_ex == nil or stay_ex == host) and host or '*'
				end
			end
		else
			drop_request(lock, r)
			if exists(host) then
				local mode = raise_cover(lock, host, r.mode, match(r.value, '^%d+ %d %d %d+ (.*)$') or '')
				lock.grants[#lock.grants + 1] = r
				any = (any == nil or any == host) and host or '*'
				if mode == 2 then
					ex = (ex == nil or ex == host) and host or '*'
				end
			end
		end
	end
	sweep(lock)
end

