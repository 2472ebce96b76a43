"""Calls of operators: status, usage, decisions, and records of requests."""
