"""The job store in Redis, for production."""
