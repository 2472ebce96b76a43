"""`make dist`: builds both distributions, and tries them in environments that have nothing else."""
