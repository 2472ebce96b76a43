"""Slow requests whose cause was planted, and what `explain` says of them."""
