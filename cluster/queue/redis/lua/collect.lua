-- Read a router's mailbox and let its bell ring again.
--
-- Keys: names.lua. ARGV: common.lua.
-- A: router
-- Reply: members of `owners` that are mail

return Q.mailbox(A[1])
