"""Autoscalers that a simulated pool can have: Penstock's own, and others to compare with."""
