"""Load that tenants announce before it comes: its record, and the contract of its store."""
