"""A pool over many hash slots: each cell is a whole queue with its own keys, line and replicas."""
