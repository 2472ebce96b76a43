"""What the load generator costs: one process, thousands of streams."""
