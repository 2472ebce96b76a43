-- Forget a job.
--
-- Keys: common.lua.

if get('state') ~= '' then forget() end
return 1
