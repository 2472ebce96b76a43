"""The registry's store in Redis, for production."""
