"""Benchmarks: they print ratios that are measured in one run. Not in the wheel."""
