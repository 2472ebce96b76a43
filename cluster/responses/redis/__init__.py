"""The store of responses in Redis, for production."""
