"""A simulated pool: replicas, traffic, and the event loop."""
