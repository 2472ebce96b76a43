-- End the lease of a router or replica now.
--
-- Needs: common, line, fill, leases. Keys and ARGV: common.lua.
-- A: name, "router" or "replica"
-- Reply: 1

open_pool()
if A[2] == 'router' then
  part_router(CALLER, NOW)
  while drop_waiting(CALLER) > 0 do end
  call('ZREM', PARTED, CALLER)
  drop_links(CALLER)
else
  remove_replica(CALLER)
end
want_free(8)
run_fills()
close_pool()
return 1
