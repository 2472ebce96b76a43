"""What a cancel costs and leaves behind: latency, a storm of cancels, and refusals of a full queue."""
