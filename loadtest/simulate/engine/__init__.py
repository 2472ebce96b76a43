"""One engine on a virtual clock, and how well it stands for a recorded one."""
