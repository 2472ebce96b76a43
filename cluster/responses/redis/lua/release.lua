-- Let any router claim a response at once.
--
-- ARGV: 4 token
-- Reply: 1 done; 0 not held

pass_when_full()
if not is_held(ARGV[4]) then return 0 end
call('ZADD', OPEN, text(NOW), MEMBER)
return 1
