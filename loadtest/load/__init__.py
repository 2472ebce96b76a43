"""Load tests: when requests come, how long they are, who sends them, and what their clients see."""
