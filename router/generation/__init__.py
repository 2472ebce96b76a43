"""A request that runs: its choices, their attempts and output."""
