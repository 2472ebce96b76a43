"""Measured points of one's own engine, and what they change of the prior."""
