"""Capacity planning: does it fit, how fast is it, what does it cost, and how sure is that."""
