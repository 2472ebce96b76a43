"""Announced load: the calls, and the counting of what those tenants really send."""
