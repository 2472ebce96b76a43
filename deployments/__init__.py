"""Everything that runs in Ray Serve: the engines, and the replica that hosts one."""
