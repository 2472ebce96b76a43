"""Pools of several cells at size: on a virtual clock, and on a real Redis Cluster."""
