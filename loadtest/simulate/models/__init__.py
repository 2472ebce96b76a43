"""Several models on GPUs that they share: each a pool with its own load, policy and SLO."""
