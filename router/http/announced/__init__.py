"""Announced load over HTTP."""
