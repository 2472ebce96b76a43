"""Measurement of one engine over a grid of batches and lengths. The result is kept as a profile."""
