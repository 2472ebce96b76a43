"""The benefit of affinity: the production queue and policy on a virtual clock, over simulated engines."""
