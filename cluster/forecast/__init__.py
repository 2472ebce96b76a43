"""Forecast of a pool's load one cold start ahead, from what it was before. Pure: no clock, no chance, no I/O."""
