-- Prolong a lease.
--
-- ARGV: 4 token, 5 lease ms
-- Reply: {} not held; {1 if its tenant wants it to end else 0, ms since somebody read it}

pass_when_full()
if not is_held(ARGV[4]) then return {} end
call('ZADD', OPEN, text(NOW + tonumber(ARGV[5])), MEMBER)
return {get('cancelled') == '' and 0 or 1, math.max(0, NOW - (tonumber(get('read')) or NOW))}
