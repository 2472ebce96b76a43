"""The Ray Serve side: engines, and the replica that hosts one."""
