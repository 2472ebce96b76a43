"""Benchmarks. They print ratios measured in one run. They are not in the wheel."""
