"""Autoscalers for a simulated pool: Penstock's own, and others to compare with."""
