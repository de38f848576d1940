-- SPDX-License-Identifier: MIT
-- Stands in front of every script (behind its #! line): the prologue that
-- decides whether the caller may speak. docs/PROTOCOL.md is the contract.
--
-- Invariants. Everything is read before the first write, so that an error
-- (a key of another type, a damaged record) changes nothing. Request ids,
-- offsets and fences are compared as strings, of equal width where their order
-- matters; numbers made here are written by num(), because Lua prints doubles
-- above 1e14 inexactly. No clock decides anything.
-- This file runs in every call: a function defined here costs each of them.

local P = KEYS[1]
local HOST, TOKEN, ROLE, GEN, INC, TTL, ACK =
	ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local call, try_call = redis.call, redis.pcall
local find, sub, byte, match, format, concat = string.find, string.sub, string.byte, string.match, string.format, table.concat
local META, HOSTS = P .. 'meta', P .. 'hosts'

local inc, grace = '', '0'	-- the store's; set by open_store
local fence_counter		-- as read by open_store

local function num(n)
	return format('%.0f', n)
end

local function now_ms()		-- of the server's time of day, for people
	local t = call('TIME')
	return t[1] .. sub(format('%06d', t[2]), 1, 3)
end

local function refuse(reason, text)
	return { 'refused', reason, inc, grace, text or '' }
end

-- The prologue ------------------------------------------------------------

-- Reads incarnation and grace. A server that may have forgotten something (no
-- meta, or another replication id than the stored one: a restart, a promoted
-- replica, one that came back) begins a new incarnation with grace on; but
-- nothing is done to a namespace that another protocol made.
-- Returns nil, or a refusal.
local function open_store()
	local info = call('INFO', 'replication')
	if not find(info, 'role:master', 1, true) then
		return refuse('role', 'this server is a replica')
	end
	local at = find(info, 'master_replid:', 1, true)
	local replid = sub(info, at + 14, at + 53)
	local m = call('HMGET', META, 'inc', 'replid', 'grace', 'ttl', 'fence', 'proto')
	local ttl = m[4]

	inc, grace, fence_counter = m[1], m[3], m[5]
	if m[6] and m[6] ~= '2' then
		inc, grace = inc or '', grace or '0'
		return refuse('proto', m[6])
	end
	if not inc or m[2] ~= replid or not grace or not ttl or not fence_counter then
		local t = call('TIME')
		if not ttl then
			if not find(TTL, '^[1-9]%d*$') then
				inc, grace = '', '0'
				return refuse('ttl', '0')
			end
			ttl = TTL
		end
		inc, grace = sub(replid, 1, 8) .. '-' .. t[1] .. format('%06d', tonumber(t[2])), '1'
		fence_counter = fence_counter or '0'
		call('HSET', META, 'inc', inc, 'replid', replid, 'grace', grace, 'ttl', ttl, 'fence', fence_counter)
		call('HSETNX', META, 'proto', '2')
		call('HSETNX', META, 'ticket', '0')
	end
	if ttl ~= TTL then
		return refuse('ttl', ttl)
	end
end

-- Whether the caller may speak: proto, ttl, inc, token, gen, confirm, in this order;
-- then what it has received leaves its outbox. Returns nil, or a refusal.
local function enter()
	local refused = open_store()
	if refused then
		return refused
	end
	if INC ~= inc then
		return refuse('inc')
	end
	local h = call('HMGET', P .. 'h:' .. HOST, 'token', ROLE == 'cmd' and 'gen_cmd' or 'gen_renew', 'inc')
	if not h[1] or h[1] ~= TOKEN then
		return refuse('token')
	end
	if h[2] ~= GEN then
		return refuse('gen')
	end
	if grace == '1' and h[3] ~= inc then
		return refuse('confirm')
	end
	if ACK ~= '0' then
		try_call('ZREMRANGEBYSCORE', P .. 'o:' .. HOST, '-inf', ACK)
	end
end

