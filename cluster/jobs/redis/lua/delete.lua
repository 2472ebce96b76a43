-- Forget a job.
--
-- Keys: common.lua.

pass_when_full()
if get('state') ~= '' then forget() end
return 1
