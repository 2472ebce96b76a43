"""AdminService: pools, usage, and the autoscaler's decisions."""
