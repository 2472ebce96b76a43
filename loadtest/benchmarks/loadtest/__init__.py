"""The cost of the load generator: one process, thousands of streams."""
