-- End the lease of a router or replica now.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: name, "router" or "replica", whether a router's entries stay for others to adopt (0 or 1)
-- Reply: 1 if entries of it may be left and the caller should call again, else 0. If it does not, `reap` goes on.

Q.pass_when_full()
Q.open_pool()
local left = 0
if A[2] == 'router' then
  if A[3] == 1 then
    -- The same as at the end of its lease.
    Q.part_router(A[1], Q.now + tonumber(ARGV[5]))
    if Q.park(A[1], CHUNK) == CHUNK then left = 1 end
  else
    Q.part_router(A[1], Q.now)
    if Q.drop_waiting(A[1], CHUNK) >= CHUNK then left = 1 else call('ZREM', K[PARTED], A[1]) end
  end
  Q.drop_links(A[1])
else
  Q.remove_replica(A[1], 0)
end
Q.want_free(8)
Q.run_fills()
Q.close_pool()
return left
