-- Forget a job or a file.
--
-- Keys: common.lua.
-- Reply: 1 done; 2 only what was left of a job without a record

pass_when_full()
if get('state') == '' then
  drop_rest()
  return 2
end
remove()
return 1
