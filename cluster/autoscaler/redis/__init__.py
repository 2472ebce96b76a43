"""The autoscaler's store in Redis, for production."""
