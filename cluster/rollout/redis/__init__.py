"""The store of roll-outs in Redis."""
