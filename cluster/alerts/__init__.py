"""Prometheus alert rules of a cluster, each with its runbook."""
