"""Weights of models: fetched from a hub into a cache that replicas share, and known to be complete."""
