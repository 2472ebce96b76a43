-- Read a router's mailbox and let its bell ring again.
--
-- Needs: common. Keys and ARGV: common.lua.
-- A: router
-- Reply: members of `owners` that are mail

return Q.mailbox(A[1])
