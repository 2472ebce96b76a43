"""Measures one engine over a grid of batches and lengths, and keeps what follows from it."""
