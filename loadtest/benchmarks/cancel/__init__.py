"""The cost and the remains of a cancel: latency, a storm of cancels, and refusals of a full queue."""
