#!lua flags=allow-oom
-- SPDX-License-Identifier: MIT
-- leave: the caller's host ends on purpose; everything of it is freed.
-- Reply: ok inc grace left.

--#spans
--#rules
--#change
--#pump
--#hosts
local refused = enter()
if refused then
	return refused
end
remove_host(HOST)
return { 'ok', inc, grace, 'left' }
