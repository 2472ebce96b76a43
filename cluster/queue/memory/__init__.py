"""The queue in memory, for tests and simulations: the same promises, the same test suite."""
