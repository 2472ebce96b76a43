"""Breaks a cluster of real processes on purpose, and checks what its clients saw."""
