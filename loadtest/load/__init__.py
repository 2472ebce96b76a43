"""Load tests: when requests come, their lengths, the process that sends them, and what clients see."""
