"""`penstock logs`: the logs of a cluster on this machine, as lines for people."""
