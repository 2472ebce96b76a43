"""Foresight: the forecast of a pool at work, with its store."""
