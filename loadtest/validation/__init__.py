"""Comparison of the simulated engine with recorded runs of real ones, held to what the planner knows of engines."""
