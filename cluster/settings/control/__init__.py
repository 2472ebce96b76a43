"""Settings of the control of a pool's replicas."""
