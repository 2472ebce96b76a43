"""Engines on paper: memory, step times, and their distance from measured points."""
