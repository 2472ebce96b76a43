"""Measures a cluster: benchmarks of single paths, and checks that need special hardware."""
