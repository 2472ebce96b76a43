"""Verbs of `penstock plan`, one per file. Flags choose between them."""
