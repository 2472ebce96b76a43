"""The queue in Redis, for production."""
