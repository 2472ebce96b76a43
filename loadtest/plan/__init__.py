"""Capacity planning: does a model fit, how fast is it, what does it cost, and how certain is that."""
