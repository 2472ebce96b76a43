"""Bursts that are over before a replica could be ready: a number is held, and does not follow them."""
