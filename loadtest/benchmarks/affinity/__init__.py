"""What affinity brings: the production queue and policy on a virtual clock, over simulated engines."""
