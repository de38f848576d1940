-- SPDX-License-Identifier: MIT
-- Recalling. Part of the rules, behind rules.lua: --#recall.

-- Whether host was told that the part [s, e) of its span from from to to is wanted in
-- this mode: a blocking request of another host that came before r wants the very
-- same part. (One that wants more does not say it all: the host may wait for longer
-- until that is free.)
local function was_told(lock, host, r, from, to, s, e)
	for i = 1, #lock.queue do
		local q = lock.queue[i]
		if q ~= r and q.kind ~= 'try' and q.host ~= host and q.mode >= r.mode and
		   (q.s == s or (q.s < s and s == from)) and (q.e == e or (q.e > e and e == to)) then
			return true
		end
	end
	return false
end

-- What is to be told to the hosts whose covers keep r waiting, as { host, spans }
-- (of a try: one span). A blocking request is not told again where another one was
-- (unless again). push_recalls tells it, after the write.
local function recall(lock, r, again)
	local told = {}
	local wanted_s, wanted_e, mode = r.s, r.e, r.mode
	for host, cover in pairs(lock.covers) do
		if host ~= r.host and r.kind == 'try' then
			local fence = against(cover, wanted_s, wanted_e, mode, true)
			if fence then
				told[#told + 1] = { host, wanted_s .. ' ' .. wanted_e .. ' ' .. mode .. ' ' .. fence .. ',' }
			end
		elseif host ~= r.host and (again or not was_told(lock, host, r, nil, nil, wanted_s, wanted_e)) then
			local list, out = cover.set and window(cover, wanted_s, wanted_e) or cover, {}
			local text, base, n = list.text, list.base, list.n
			for i = n > 3 and seek(text, base, n, 0, wanted_s) or 0, n - 1 do
				local p = base + 59 * i
				local s, e = sub(text, p + 1, p + 19), sub(text, p + 21, p + 39)
				if s >= wanted_e then
					break
				end
				if e > wanted_s and (mode == '2' or byte(text, p + 41) == 50) then
					local from, to = s, e
					s, e = s < wanted_s and wanted_s or s, e > wanted_e and wanted_e or e
					if again or not was_told(lock, host, r, from, to, s, e) then
						out[#out + 1] = s .. ' ' .. e .. ' ' .. mode .. ' ' .. sub(text, p + 43, p + 58) .. ','
					end
				end
			end
			if #out > 0 then
				told[#told + 1] = { host, concat(out) }
			end
		end
	end
	return told
end

local function push_recalls(lock, r, told)
	for _, t in ipairs(told) do
		if r.kind == 'try' then
			push(t[1], 'T', lock.key, t[2], r.host, req_of(r))
		else
			push(t[1], 'R', lock.key, t[2])
		end
	end
end

