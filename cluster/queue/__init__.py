"""The waiting room: contract in `base`, Redis in `redis_queue`, the in-memory twin in `memory_queue`."""
