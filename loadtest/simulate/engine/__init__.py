"""One engine on a virtual clock, and its comparison with a recorded one."""
