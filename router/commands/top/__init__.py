"""`penstock top`: a cluster live in a terminal. Pure parts make the picture; `terminal` and `poll` do the I/O."""
