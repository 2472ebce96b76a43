"""The store of request records in Redis, for production."""
