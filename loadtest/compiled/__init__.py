"""Simulations in machine code, where that is asked for: their modules compiled by mypyc, outside of the sources."""
