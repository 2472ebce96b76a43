"""Admission control: demand of a pool, wait estimates, load shedding."""
