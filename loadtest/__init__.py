"""Tools around a cluster: load tests, profiles, the simulator, the planner, and benchmarks."""
