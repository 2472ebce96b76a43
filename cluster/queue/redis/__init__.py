"""The waiting room in Redis, for production."""
