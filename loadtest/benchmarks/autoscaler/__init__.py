"""Autoscalers on recorded and made-up loads, at equal attainment, against a plan that knows the future."""
