"""The store of announced load in Redis."""
